"""The action's inputs: from the variables that action.yml sets, checked strictly once, then frozen.

action.yml hands each over as SYMMEM_CHECK_INPUT_NAME, so that no value ever stands in a script.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypeVar, cast, get_args

import msgspec

from .errors import UserError
from .github.settings import DEFAULT_ARTIFACT, DEFAULT_KEY
from .machines.arguments import DEFAULT_KEY as DEFAULT_MACHINE_KEY
from .machines.arguments import key as machine_key
from .model import GatePhase
from .plan import LauncherName
from .result import Gate
from .settings import DEFAULT_OUT, outcomes, percentage, positive

PREFIX = "SYMMEM_CHECK_INPUT_"
Mode = Literal["check", "report", "start", "stop", "reap"]
Upload = Literal["none", "reports", "all"]

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LONGEST_RUN = 6 * 24 * 60
"""Minutes; no longer than a job may take on a runner of one's own (5 days), and a little more."""
_T = TypeVar("_T")


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """What the workflow asked for. Paths are as given, relative to the workspace; None is what was left empty.

    `baseline` is `auto`, `none` or a path; `machine` is YAML or the path of a file with it.
    """

    mode: Mode = "check"
    suite: str | None = None
    only: tuple[str, ...] = ()
    traces: tuple[str, ...] = ()
    script: str | None = None
    script_args: tuple[str, ...] = ()
    ranks: int | None = None
    ranks_per_gpu: int | None = None
    launcher: LauncherName = "torchrun"
    python: str | None = None
    nccl: str | None = None
    witness: bool = False
    timeout_minutes: int = 30
    baseline: str = "auto"
    require_baseline: bool = False
    gate: Gate = Gate()
    junit: str | None = None
    page: bool = False
    comment: bool = True
    comment_key: str = DEFAULT_KEY
    upload: Upload = "reports"
    machine: str | None = None
    machine_key: str = DEFAULT_MACHINE_KEY

    @property
    def is_of_machines(self) -> bool:
        """Whether a machine is started or ended, and nothing is judged."""
        return self.mode in ("start", "stop", "reap")

    @property
    def suffix(self) -> str:
        """What tells the files of this check from those of another one in the workflow: empty for the default key."""
        return "" if self.comment_key == DEFAULT_KEY else f"-{self.comment_key}"

    @property
    def out(self) -> Path:
        """The output folder, in the workspace."""
        return Path(f"{DEFAULT_OUT}{self.suffix}").absolute()

    @property
    def artifact(self) -> str:
        """The name under which the result is uploaded, and looked for as a baseline."""
        return f"{DEFAULT_ARTIFACT}{self.suffix}"


def read_inputs(environment: Mapping[str, str]) -> Inputs:
    """The inputs out of the environment. Raises UserError that names the input and what is allowed."""
    given = _Given(environment)
    minimum: dict[GatePhase, float | None] = {
        "forward": given.parsed("min-forward-coverage", percentage, None),
        "backward": given.parsed("min-backward-coverage", percentage, None),
    }
    default = Inputs()
    inputs = Inputs(
        mode=cast("Mode", given.word("mode", get_args(Mode), default.mode)),
        suite=given.text("suite"),
        only=given.lines("only"),
        traces=given.lines("traces"),
        script=given.text("script"),
        script_args=given.parsed("script-args", _words, ()),
        ranks=given.parsed("ranks", positive, None),
        ranks_per_gpu=given.parsed("ranks-per-gpu", positive, None),
        launcher=cast("LauncherName", given.word("launcher", get_args(LauncherName), default.launcher)),
        python=given.text("python"),
        nccl=given.text("nccl"),
        witness=given.boolean("witness", default.witness),
        timeout_minutes=given.parsed("timeout-minutes", _minutes, default.timeout_minutes),
        baseline=given.text("baseline") or default.baseline,
        require_baseline=given.boolean("require-baseline", default.require_baseline),
        gate=Gate(
            fail_on=given.parsed("fail-on", outcomes, Gate().fail_on),
            minimum={phase: value / 100 for phase, value in minimum.items() if value is not None},
            coverage_by=cast(
                'Literal["calls", "bytes"]', given.word("coverage-by", ("calls", "bytes"), Gate().coverage_by)
            ),
        ),
        junit=given.text("junit"),
        page=given.boolean("page", default.page),
        comment=given.boolean("comment", default.comment),
        comment_key=given.parsed("comment-key", _key, default.comment_key),
        upload=cast("Upload", given.word("upload", get_args(Upload), default.upload)),
        machine=given.text("machine"),
        machine_key=given.parsed("machine-key", machine_key, default.machine_key),
    )
    has_token = given.boolean("has-runner-token", False)
    if inputs.is_of_machines:
        _refuse_what_is_no_machines(inputs, has_token)
    else:
        _refuse_contradictions(inputs, has_token)
    return inputs


class _Given:
    """The inputs as text. An empty one counts as left out, since a workflow hands on its own empty inputs."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def text(self, name: str) -> str | None:
        variable = PREFIX + name.upper().replace("-", "_")
        if variable not in self._environment:
            raise UserError(f"{variable} is not set; action.yml has to hand the input {name} over")
        value = self._environment[variable].strip()
        if "\0" in value:
            raise UserError(f"{name}: has a NUL in it")
        return value or None

    def lines(self, name: str) -> tuple[str, ...]:
        lines = (line.strip() for line in (self.text(name) or "").splitlines())
        return tuple(line for line in lines if line)

    def word(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        value = self.text(name) or default
        if value not in allowed:
            raise UserError(f"{name}: {value!r} is not one of {', '.join(allowed)}")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        return self.word(name, ("true", "false"), "true" if default else "false") == "true"

    def parsed(self, name: str, parse: Callable[[str], _T], default: _T) -> _T:
        value = self.text(name)
        if value is None:
            return default
        try:
            return parse(value)
        except argparse.ArgumentTypeError as error:
            raise UserError(f"{name}: {error}") from None


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"can't be split into words ({error}); close every quotation mark") from None


def _minutes(text: str) -> int:
    value = positive(text)
    if value > _LONGEST_RUN:
        raise argparse.ArgumentTypeError(f"{text} is more than {_LONGEST_RUN} minutes")
    return value


def _key(text: str) -> str:
    if not _KEY.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no key; give up to 64 letters, digits, dots, dashes and underscores"
        )
    return text


def _refuse_what_is_no_machines(inputs: Inputs, has_token: bool) -> None:
    """Raise UserError for inputs that a machine's start or end would ignore in silence, and for what it lacks."""
    names = [*_of_a_check(inputs), *_of_a_judgement(inputs)]
    if names:
        raise UserError(f"{' and '.join(names)} can't go with mode: {inputs.mode}, which runs and judges nothing")
    if inputs.machine is None:
        raise UserError(f"mode: {inputs.mode} needs machine: YAML that says where the GPUs come from")
    if not has_token:
        raise UserError(
            f"mode: {inputs.mode} needs runner-token: one that may register runners, which the job's own may not. A "
            "pull request from a fork, or by Dependabot, has no secrets, and so no machine"
        )


def _of_a_check(inputs: Inputs) -> list[str]:
    """The inputs that say what to check, of those that are given."""
    given = {
        "suite": inputs.suite, "only": inputs.only, "traces": inputs.traces, "script": inputs.script,
        "script-args": inputs.script_args, "ranks": inputs.ranks, "ranks-per-gpu": inputs.ranks_per_gpu,
        "python": inputs.python, "nccl": inputs.nccl, "launcher": inputs.launcher != Inputs().launcher,
        "witness": inputs.witness,
    }  # fmt: skip
    return [name for name, value in given.items() if value]


def _of_a_judgement(inputs: Inputs) -> list[str]:
    """The inputs that ask for more than is asked for anyhow."""
    judged = {"min-…-coverage": inputs.gate.minimum, "require-baseline": inputs.require_baseline}
    return [name for name, value in judged.items() if value]


def _refuse_contradictions(inputs: Inputs, has_token: bool) -> None:
    """Raise UserError for inputs that don't go together: one of them would be ignored in silence."""
    if has_token:  # the code under test runs in this job
        raise UserError(f"runner-token has no place in mode: {inputs.mode}; give it to start, stop and reap alone")
    if inputs.machine is not None or inputs.machine_key != DEFAULT_MACHINE_KEY:
        raise UserError(f"machine and machine-key can't go with mode: {inputs.mode}; start it in a job before")
    names = _of_a_check(inputs)
    if inputs.mode == "report":
        names += _of_a_judgement(inputs)
        if names:
            raise UserError(f"{' and '.join(names)} can't go with mode: report, which runs and judges nothing")
        return
    for main, others in (("traces", {*names} - {"traces"}), ("script", {"suite", "only", "traces", "launcher"})):
        extra = [name for name in names if name in others]
        if main in names and extra:
            raise UserError(f"{' and '.join(extra)} can't go with {main}; leave one of them out")
    if inputs.script_args and inputs.script is None:
        raise UserError("script-args are a script's; give one with script")
    if inputs.require_baseline and inputs.baseline == "none":
        raise UserError("require-baseline: true can't go with baseline: none")
