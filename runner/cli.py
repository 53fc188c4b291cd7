"""The command line: each sub-command is a few lines over the parts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from . import __version__
from .errors import SymmemCheckError

EPILOG = """\
exit status: 0 the gate holds, 1 it does not, 2 the call or a file is wrong,
             3 nothing could be measured
"""
DOCTOR_EPILOG = """\
exit status: 0 symmetric kernels can run here, 1 they can't, 2 the call is wrong,
             3 it could not be told (no GPU, or no torch that can use one)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status. Errors end in one line on stderr, without a traceback."""
    given, script_arguments = _split(list(sys.argv[1:] if arguments is None else arguments))
    parsed = _parser().parse_args(given, argparse.Namespace(script_arguments=script_arguments))
    try:
        status: int = parsed.command(parsed)
    except SymmemCheckError as error:
        _tell(f"symmem-check: {error}")
        return error.exit_status
    except BrokenPipeError:  # the reader of our output, such as head, has left
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        _tell("symmem-check: interrupted")
        return 130
    return status


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Take what follows `--` from the arguments of `run`: it is the training script's, whatever it looks like."""
    if arguments[:1] != ["run"] or "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="symmem-check",
        description="Tell, for every collective of a PyTorch training step, whether it ran on symmetric memory.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"symmem-check {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_run(commands)
    _add_classify(commands)
    _add_doctor(commands)
    return parser


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
    run.add_argument("--only", metavar="GLOB", action="append", default=[], help="only the cases whose id matches")
    run.add_argument("--ranks", metavar="N", type=positive, help="how many ranks (default: as the suite says)")
    run.add_argument(
        "--ranks-per-gpu", metavar="N", type=positive,
        help="how many ranks share a GPU (default: 1; 2 for 2 ranks on a single GPU); more than 1 needs NCCL 2.30.3",
    )  # fmt: skip
    run.add_argument("--python", metavar="EXE", help="the Python with the torch to test (default: python3 on the PATH)")
    run.add_argument(
        "--nccl", metavar="PATH|VERSION", help="run on another NCCL: a libnccl.so.2, or a version to fetch"
    )
    run.add_argument(
        "--out", metavar="DIR", type=Path, default=DEFAULT_OUT, help=f"output folder (default: {DEFAULT_OUT})"
    )
    run.add_argument("--replay", action="store_true", help="judge the recorded run that ships with symmem-check")
    _add_script(run)
    run.set_defaults(command=_run)


def _add_script(run: argparse.ArgumentParser) -> None:
    from .settings import SCRIPT_STEPS, SCRIPT_TIMEOUT, SCRIPT_WARMUP, percentage, positive

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
    for phase in ("forward", "backward"):
        script.add_argument(
            f"--min-{phase}-coverage", metavar="PERCENT", type=percentage,
            help=f"fail where fewer of the eligible calls in {phase} are symmetric",
        )  # fmt: skip


def _add_classify(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    classify = commands.add_parser(
        "classify",
        help="tell what the collectives in recorded traces ran on",
        description="Read Kineto traces (plain or gzip, told by content) and tell each collective's phase, kind, "
        "mechanism and evidence.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    classify.add_argument("traces", metavar="TRACE", nargs="+", help="trace files, folders of them, or globs")
    classify.add_argument("--format", choices=("table", "json", "csv"), default="table", help="default: table")
    classify.set_defaults(command=_classify)


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
    doctor.set_defaults(command=_doctor)


def _run(parsed: argparse.Namespace) -> int:
    from .report.terminal import print_run_table
    from .run import EXIT_STATUS, run
    from .settings import run_settings

    settings = run_settings(parsed)
    if settings.script is None:
        result = run(settings, _tell)
    else:
        from .script import run_script

        result = run_script(settings, settings.script, _tell)
    print_run_table(result, sys.stdout)
    _tell(f"symmem-check: reports are in {settings.out}")
    return EXIT_STATUS[result.verdict.word]


def _classify(parsed: argparse.Namespace) -> int:
    from .traces import read_traces, write_json

    traces = read_traces(parsed.traces, warn=lambda line: _tell(f"symmem-check: {line}"))
    for error in traces.errors:
        _tell(f"symmem-check: {error.file}: {error.message}")
    if parsed.format == "json":
        write_json(traces)
    elif parsed.format == "csv":
        from .report.collectives import write_collectives_csv

        write_collectives_csv(traces.files, sys.stdout)
    else:
        from .report.collectives import print_collectives_table

        print_collectives_table(traces.files, traces.coverage, sys.stdout)
    if traces.exit_status == 3:
        _tell("symmem-check: no collective was found, so nothing could be measured")
    return traces.exit_status


def _doctor(parsed: argparse.Namespace) -> int:
    from .doctor import doctor

    diagnosis = doctor(parsed.python, parsed.nccl, tell=_tell)
    if parsed.format == "json":
        import msgspec

        sys.stdout.write(msgspec.json.encode(diagnosis).decode() + "\n")
    else:
        from .report.doctor import print_diagnosis

        print_diagnosis(diagnosis, sys.stdout)
    return diagnosis.verdict.exit_status


def _tell(line: str) -> None:
    """Print one line of progress or trouble to stderr, without control characters from names in it."""
    print("".join(char if char.isprintable() else "�" for char in line), file=sys.stderr, flush=True)
