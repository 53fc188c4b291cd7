"""The action's steps: set up, fetch (with a token), run (without one), report (with one); or set up and machine.

Between them lies a folder under RUNNER_TEMP, so a step knows of the others only what is in its files.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import msgspec

from .action_inputs import Inputs, read_inputs
from .errors import SymmemCheckError, UserError
from .github.settings import DEFAULT_KEY, GithubSettings, github_settings
from .model import GatePhase
from .report.annotations import Annotation, command
from .report.text import one_line
from .result import Result
from .settings import RunSettings, ScriptSettings

INPUTS, BASELINE, PROBLEM = "inputs.json", "baseline.json", "problem.txt"
STATE = "SYMMEM_CHECK_STATE"


def main(arguments: Sequence[str]) -> int:
    """Run the step that is named; return its exit status. An error becomes an annotation and a line, no traceback."""
    steps: dict[str, Callable[[], int]] = {
        "setup": _setup, "fetch": _fetch, "run": _run, "report": _report, "machine": _machine,
    }  # fmt: skip
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell may have had them ignored
        signal.signal(number, _leave)
    try:
        return steps[arguments[0]]()
    except SymmemCheckError as error:
        print(command(Annotation("error", arguments[0], str(error))), flush=True)
        if arguments[0] in ("setup", "machine"):  # no report step comes after them
            _summary(_no_result(str(error)))
        elif arguments[0] != "report" and (state := os.environ.get(STATE)):
            (Path(state) / PROBLEM).write_text(str(error), encoding="utf-8")
        return error.exit_status


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _setup() -> int:
    from .run import prepare

    inputs = read_inputs(os.environ)
    if inputs.mode == "check":
        prepare(inputs.out)  # now, so that no later step takes what an earlier job left there for this one's
    state = Path(tempfile.mkdtemp(prefix="state-", dir=Path(os.environ["RUNNER_TEMP"]) / "symmem-check"))
    (state / INPUTS).write_bytes(msgspec.json.encode(inputs))
    judges = "false" if inputs.is_of_machines else "true"
    extra = ""
    if inputs.machine is not None:
        from .machines.spec import extra_of

        extra = extra_of(inputs.machine)
    _output({"python": sys.executable, "state": str(state), "mode": inputs.mode, "judges": judges, "extra": extra})
    return 0


def _machine() -> int:
    from .action_machine import run_machine

    return run_machine(_state()[1], tell=_tell, output=_output, summary=_summary)


def _fetch() -> int:
    state, inputs = _state()
    if inputs.mode == "report":
        from .github.artifacts import fetch_result

        found = fetch_result(_github(inputs, state / "other"))
        shutil.copyfile(found, state / "result.json")
        return 0
    if inputs.baseline != "auto":
        return 0
    from .github.artifacts import find_baseline

    baseline = find_baseline(_github(inputs, state / "base"), tell=_tell)
    if baseline is not None:
        shutil.copyfile(baseline, state / BASELINE)
    return 0


def _run() -> int:
    from .report.terminal import print_run_table
    from .run import EXIT_STATUS

    state, inputs = _state()
    settings = _run_settings(inputs, _baseline(inputs, state))
    with _no_commands(), _deadline(inputs):
        result = _checked(inputs, settings)
        print_run_table(result, sys.stdout)
    return EXIT_STATUS[result.verdict.word]


def _checked(inputs: Inputs, settings: RunSettings) -> Result:
    if inputs.traces:
        from .action_traces import run_traces

        return run_traces(inputs.traces, settings, _tell)
    if settings.script is not None:
        from .script import run_script

        return run_script(settings, settings.script, _tell)
    from .run import run

    return run(settings, _tell)


def _baseline(inputs: Inputs, state: Path) -> Path | None:
    if inputs.baseline == "none":
        return None
    if inputs.baseline != "auto":
        return Path(inputs.baseline)
    found = state / BASELINE
    if not found.is_file() and inputs.require_baseline:
        raise UserError("require-baseline: there is no baseline")
    return found if found.is_file() else None


def _run_settings(inputs: Inputs, baseline: Path | None) -> RunSettings:
    from .settings import SCRIPT_STEPS, SCRIPT_WARMUP, default_python

    script = None
    if inputs.script is not None:
        if not Path(inputs.script).is_file():
            raise UserError(f"script: {inputs.script}: no such file in the workspace; check the repository out before")
        script = ScriptSettings(
            file=inputs.script, arguments=inputs.script_args, steps=SCRIPT_STEPS, warmup=SCRIPT_WARMUP,
            keep_going=False, timeout=inputs.timeout_minutes * 60,
        )  # fmt: skip
    return RunSettings(
        suite=inputs.suite or "default",
        only=inputs.only,
        ranks=inputs.ranks,
        ranks_per_gpu=inputs.ranks_per_gpu,
        launcher=inputs.launcher,
        python=inputs.python or ("" if inputs.traces else default_python()),
        nccl=inputs.nccl,
        out=inputs.out,
        replay=False,
        script=script,
        gate=inputs.gate,
        baseline=baseline,
        page=inputs.page,
        witness=inputs.witness,
    )


@contextmanager
def _deadline(inputs: Inputs) -> Iterator[None]:
    """End a suite's run in time, by the signal that a cancel would send; a script has a time limit of its own."""
    if inputs.script is not None:
        yield
        return

    def end() -> None:
        _tell(f"timeout-minutes: {inputs.timeout_minutes} minutes are over")
        os.kill(os.getpid(), signal.SIGTERM)

    timer = threading.Timer(inputs.timeout_minutes * 60, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _no_commands() -> Iterator[None]:
    """Keep the runner from taking a line of what is under test, such as a kernel's name, for a command of ours.

    https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands#stopping-and-starting-workflow-commands
    """
    word = secrets.token_hex(16)
    print(f"::stop-commands::{word}", flush=True)
    try:
        yield
    finally:
        print(f"::{word}::", flush=True)


# ---- report ----------------------------------------------------------------------------------------------------------


def _report() -> int:
    from .result import read_result

    state, inputs = _state()
    for name in ("REPOSITORY", "REF"):  # the runner's own variables are empty in some of its versions
        if value := os.environ.get(f"SYMMEM_CHECK_ACTION_{name}"):
            os.environ[f"GITHUB_ACTION_{name}"] = value
    out = inputs.out if inputs.mode == "check" else state
    if not (out / "result.json").is_file():
        problem = state / PROBLEM
        why = problem.read_text(encoding="utf-8") if problem.is_file() else "it was ended before there was a result"
        _summary(_no_result(why))
        return 2
    result = read_result(out / "result.json")
    _write_reports(result, inputs, out)
    _output(_outputs(result, inputs, out))  # first, since with GitHub much can go wrong
    _output({"comment-url": _annotate(result, inputs, out)})
    return 0


def _write_reports(result: Result, inputs: Inputs, out: Path) -> None:
    """Write the reports that the result does not yet have, and the summary, whose links need this step's facts."""
    from .github.settings import glossary_url
    from .report.junit import junit_xml
    from .report.markdown import summary_markdown
    from .report.page import write_page

    summary = summary_markdown(result, glossary=glossary_url())
    (out / "summary.md").write_text(summary, encoding="utf-8")
    _summary(summary)
    (out / "junit.xml").write_text(junit_xml(result), encoding="utf-8")
    if inputs.junit is not None:
        try:
            Path(inputs.junit).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(out / "junit.xml", inputs.junit)
        except OSError as error:
            raise UserError(f"junit: {inputs.junit} can't be written ({error.strerror or error})") from None
    if inputs.page and not (out / "page.html").is_file():
        write_page(result, out / "page.html")


def _annotate(result: Result, inputs: Inputs, out: Path) -> str:
    """Print the annotations, and comment on the pull request; returns the comment's address, or nothing."""
    from .report.annotations import annotation_lines

    for line in annotation_lines(result, failing=frozenset(result.gate.fail_on)):
        print(line)
    if not inputs.comment or any(start.ended == "stopped" for start in result.starts):
        return ""
    if not os.environ.get("GITHUB_TOKEN"):
        print(command(Annotation("notice", "no comment", "token is empty, so there is none to comment with")))
        return ""
    from .github.comment import post_comment

    outcome = post_comment(result, _github(inputs, out))
    _tell(f"comment {outcome.action}: {outcome.notice or outcome.url or ''}")
    if outcome.notice:
        print(command(Annotation("notice", f"comment {outcome.action}", outcome.notice)))
    return outcome.url or ""


def _outputs(result: Result, inputs: Inputs, out: Path) -> dict[str, str]:
    junit = Path(inputs.junit).absolute() if inputs.junit is not None else out / "junit.xml"
    page = out / "page.html" if inputs.page else None
    reports = [out / "junit.xml", out / "summary.md", *([page] if page else [])]
    if inputs.upload == "all" and (out / "run").is_dir():
        reports.append(out / "run")
    uploads = inputs.mode == "check" and inputs.upload != "none"
    return {
        "verdict": result.verdict.word,
        "forward-coverage": _percent(result, "forward"),
        "backward-coverage": _percent(result, "backward"),
        "regressions": str(len(result.baseline.regressed) if result.baseline is not None else 0),
        "result": str(out / "result.json"),
        "junit": str(junit),
        "page": str(page or ""),
        "artifact": inputs.artifact,
        "upload-result": str(out / "result.json") if uploads else "",
        "upload-reports": "\n".join(map(str, reports)) if uploads else "",
    }


def _percent(result: Result, phase: GatePhase) -> str:
    """A phase's coverage as the gate counts it, in percent, rounded down so that 100 means all; or nothing."""
    from .judge.gate import ratio

    found = ratio(result.coverage.get(phase), result.gate.coverage_by)
    return "" if found is None else f"{int(found * 1000 + 1e-9) / 10:g}"


# ---- the runner's files ----------------------------------------------------------------------------------------------


def _state() -> tuple[Path, Inputs]:
    state = Path(os.environ.get(STATE, ""))
    try:
        return state, msgspec.json.decode((state / INPUTS).read_bytes(), type=Inputs)
    except (OSError, msgspec.MsgspecError):
        raise UserError(f"{STATE} names no folder of the action's first step; nothing may be removed there") from None


def _github(inputs: Inputs, out: Path) -> GithubSettings:
    asked = argparse.Namespace(
        comment_key=inputs.comment_key or DEFAULT_KEY, pull_request=None, artifact=inputs.artifact, base_branch=None,
        require_baseline=inputs.require_baseline,
    )  # fmt: skip
    return github_settings(asked, out)


def _output(values: dict[str, str]) -> None:
    """Set the step's outputs. The delimiter is random, so that no value can end itself and set another."""
    word = f"end-{secrets.token_hex(16)}"
    with Path(os.environ["GITHUB_OUTPUT"]).open("a", encoding="utf-8") as file:
        file.writelines(f"{name}<<{word}\n{value}\n{word}\n" for name, value in values.items())


def _summary(text: str) -> None:
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)


def _no_result(why: str) -> str:
    """The summary where there is no result; Markdown shows the sentence as it is."""
    told = "".join(f"\\{char}" if char in r"\`*_{}[]<>()#+-.!|~&@:" else char for char in one_line(why, 2000))
    return f"### symmem-check: no result\n\n{told}\n"


def _tell(line: str) -> None:
    """Print one line into the workflow's log; names in it can give no commands."""
    from .report.text import inert

    print("symmem-check:", inert("".join(char if char.isprintable() else "�" for char in line)), flush=True)
