"""The arguments of each sub-command, and what `--help` says of them."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import __version__

EPILOG = """\
exit status: 0 the gate holds, 1 it does not, 2 the call or a file is wrong,
             3 nothing could be measured
"""
CLASSIFY_EPILOG = """\
exit status: 0 read, 2 the call is wrong or a file could not be read,
             3 no collective was found
"""
COMPARE_EPILOG = """\
exit status: 0 nothing regressed, 1 something did, 2 the call or a file is wrong,
             3 HEAD has nothing that was measured
"""
DOCTOR_EPILOG = """\
exit status: 0 symmetric kernels can run here, 1 they can't, 2 the call is wrong,
             3 it could not be told (no GPU, or no torch that can use one)
"""


def parser(command: str | None = None) -> argparse.ArgumentParser:
    """The whole command line, or what is needed where it begins with a sub-command's name: that one's part.

    `command` is that name, as cli.COMMANDS has it.
    """
    made = argparse.ArgumentParser(
        prog="symmem-check",
        description="Tell, for every collective of a PyTorch training step, whether it ran on symmetric memory.",
        epilog=f"{EPILOG}             4 no capacity (machine)\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="version", version=f"symmem-check {__version__}")
    commands = made.add_subparsers(title="commands", metavar="COMMAND", required=True)
    adders = {
        "run": _add_run, "classify": _add_classify, "compare": _add_compare, "report": _add_report,
        "fetch": _add_fetch, "doctor": _add_doctor, "machine": _add_machine,
    }  # fmt: skip
    for add in [adders[command]] if command in adders else adders.values():
        add(commands)
    for part in commands.choices.values():
        part.set_defaults(own=part)  # whose usage is told of a mistake
    return made


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from .settings import DEFAULT_OUT, positive

    run = commands.add_parser(
        "run",
        help="run probes, or your own training script, on this machine's GPUs and judge them",
        usage="symmem-check run [options] [--script FILE [options] [-- ARGUMENTS]]",
        description="Run a suite of probes, or your own training script, on this machine's GPUs, classify what ran, "
        "and judge it. Writes result.json, junit.xml, summary.md and the run folder.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("--suite", metavar="FILE", help="a suite file, or the name of one that ships (default: default)")
    run.add_argument(
        "--only", metavar="GLOB", action="append", default=[],
        help="only the cases whose id matches; may be given again",
    )  # fmt: skip
    run.add_argument("--ranks", metavar="N", type=positive, help="how many ranks (default: as the suite says)")
    run.add_argument(
        "--ranks-per-gpu", metavar="N", type=positive,
        help="how many ranks share a GPU (default: 1; 2 for 2 ranks on a single GPU); more than 1 needs NCCL 2.30.3",
    )  # fmt: skip
    run.add_argument(
        "--launcher", choices=("torchrun", "slurm"), default="torchrun",
        help="what starts the ranks: torchrun on this machine (default), or srun on all of the allocation that this is "
        "called in, as many as it has tasks",
    )  # fmt: skip
    run.add_argument("--python", metavar="EXE", help="the Python with the torch to test (default: python3 on the PATH)")
    run.add_argument(
        "--nccl", metavar="PATH|VERSION", help="run on another NCCL: a libnccl.so.2, or a version to fetch"
    )
    run.add_argument(
        "--out", metavar="DIR", type=Path, default=DEFAULT_OUT, help=f"output folder (default: {DEFAULT_OUT})"
    )
    run.add_argument("--page", action="store_true", help="write page.html too: all of it as one page")
    run.add_argument(
        "--witness", action="store_true", help="have NCCL write its own log, and tell where the traces say otherwise"
    )
    run.add_argument("--replay", action="store_true", help="judge the recorded run that ships with symmem-check")
    _add_gate(run)
    _add_script(run)
    run.set_defaults(command="run")


def _add_script(run: argparse.ArgumentParser) -> None:
    from .settings import SCRIPT_STEPS, SCRIPT_TIMEOUT, SCRIPT_WARMUP, positive

    script = run.add_argument_group(
        "your own training script",
        "It runs unchanged under torchrun; some of its steps are traced, and then it is ended. A step ends where the "
        "optimizer that stepped first steps again.",
    )
    script.add_argument("--script", metavar="FILE", help="the script; its arguments stand at the end, after --")
    script.add_argument("--steps", metavar="N", type=positive, help=f"steps to trace (default: {SCRIPT_STEPS})")
    script.add_argument(
        "--warmup", metavar="N", type=positive, help=f"steps before those, at least 2 (default: {SCRIPT_WARMUP})"
    )
    script.add_argument("--keep-going", action="store_true", help="let the script run to its end")
    script.add_argument(
        "--timeout", metavar="SECONDS", type=positive, help=f"for the whole script (default: {SCRIPT_TIMEOUT})"
    )


def _add_gate(run: argparse.ArgumentParser) -> None:
    from .settings import outcomes, percentage

    gate = run.add_argument_group(
        "the gate",
        "What ran is compared with the baseline by launches a step, never by time. What was symmetric there and is no "
        "longer has the outcome regressed, whatever the suite expects.",
    )
    gate.add_argument("--baseline", metavar="FILE", help="the result.json of an earlier run to compare with")
    gate.add_argument("--require-baseline", action="store_true", help="fail where --baseline is not given or empty")
    gate.add_argument(
        "--fail-on", metavar="LIST", type=outcomes,
        help="the outcomes that fail, with commas (default: regressed,fail,error,unmeasured)",
    )  # fmt: skip
    for phase in ("forward", "backward"):
        gate.add_argument(
            f"--min-{phase}-coverage", metavar="PERCENT", type=percentage,
            help=f"fail where less of what is eligible in {phase} is symmetric, or nothing is eligible",
        )  # fmt: skip
    gate.add_argument(
        "--coverage-by", choices=("calls", "bytes"), default="calls", help="what these two count (default: calls)"
    )


def _add_classify(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    classify = commands.add_parser(
        "classify",
        help="tell what the collectives in recorded traces ran on",
        description="Read Kineto traces (plain or gzip, told by content) and tell each collective's phase, kind, "
        "mechanism and evidence.",
        epilog=CLASSIFY_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    classify.add_argument("traces", metavar="TRACE", nargs="+", help="trace files, folders of them, or globs")
    classify.add_argument("--format", choices=("table", "json", "csv"), default="table", help="default: table")
    classify.set_defaults(command="classify")


def _add_compare(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    compare = commands.add_parser(
        "compare",
        help="tell what is no longer symmetric between two runs",
        description="Compare two results, or two folders of traces, by launches a step, never by time. Exit status 1 "
        "where something regressed: it was symmetric in BASE, and in HEAD it falls back or can't be told.",
        epilog=COMPARE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = "a result.json, the output folder of a run, or a trace or a folder of traces"
    compare.add_argument("base", metavar="BASE", help=what)
    compare.add_argument("head", metavar="HEAD", help="the same of the other run")
    compare.add_argument("--format", choices=("table", "json"), default="table", help="default: table")
    compare.set_defaults(command="compare")


def _add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from .github.settings import add_github_arguments

    report = commands.add_parser(
        "report",
        help="write reports of a result, and print it",
        description="Make reports from a result.json alone, on any machine. The exit status is the verdict's.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument("result", metavar="RESULT", type=Path, help="a result.json, or the output folder of a run")
    report.add_argument("--junit", metavar="FILE", type=Path, help="write it as JUnit XML")
    report.add_argument(
        "--junit-properties", action="store_true", help="in it, properties for each test case; not in Jenkins' schema"
    )
    report.add_argument("--markdown", metavar="FILE", type=Path, help="write it as Markdown, for a step summary")
    report.add_argument("--page", metavar="FILE", type=Path, help="write it as one HTML page")
    github = report.add_argument_group("on GitHub", "The token is taken from GITHUB_TOKEN.")
    github.add_argument("--annotations", action="store_true", help="print it as annotations of a workflow's run")
    github.add_argument("--comment", action="store_true", help="comment on the pull request")
    add_github_arguments(github)
    report.set_defaults(command="report")


def _add_fetch(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from .github.settings import add_github_arguments

    fetch = commands.add_parser(
        "fetch",
        help="on GitHub: fetch the result of another run",
        description="Fetch a result that another run left as an artifact: `baseline`, the newest complete one of the "
        "base branch, or `result`, that of the run that a workflow_run event is about. Prints the file's path. The "
        "token is taken from GITHUB_TOKEN, and belongs in a step of its own, apart from the code under test.",
    )
    fetch.add_argument("what", choices=("baseline", "result"))
    fetch.add_argument("--out", metavar="DIR", type=Path, default=Path(), help="where to (default: here)")
    fetch.add_argument("--require-baseline", action="store_true", help="fail where there is no baseline")
    add_github_arguments(fetch)
    fetch.set_defaults(command="fetch")


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="tell whether this machine can run symmetric kernels, and if not, why not",
        description="Look at GPUs, driver, torch, the NCCL that is really loaded, links, limits and variables; tell "
        "for each what it prevents and the mend, and at the end which symmetric kernels this machine can run.",
        epilog=DOCTOR_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.add_argument("--python", metavar="EXE", help="the Python with the torch to look at (default: python3)")
    doctor.add_argument("--nccl", metavar="PATH|VERSION", help="look with another NCCL: a libnccl.so.2, or a version")
    doctor.add_argument("--format", choices=("table", "json"), default="table", help="default: table")
    doctor.set_defaults(command="doctor")


def _add_machine(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from .machines.arguments import add_machine

    add_machine(commands)
