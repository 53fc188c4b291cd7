"""A suite: which cases to run, and what is expected of each. The grammar is told in checks/suites/default.yaml.

`load_suite` finds one by name or path, `select` narrows it, `plan` makes of it what the ranks are to do. The ranks
know nothing of what is expected, so a run can be judged by another suite, or later.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from .errors import UserError
from .launch import checks_folder
from .model import Expectation, GatePhase, Kind
from .plan import DEFAULT_CONFIGURATION, Case, Configuration, Plan
from .versions import within
from .yaml_file import did_you_mean, quoted


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream problem that explains a fallback, an error or wrong values, for some versions only.

    `issue` is its URL, `title` one line; `torch` and `nccl` are bounds (see versions.py), at least one of them given.
    With a `kind` it explains only the collectives of that kind.
    """

    issue: str
    title: str
    torch: str | None = None
    nccl: str | None = None
    kind: Kind | None = None

    def applies(self, *, torch: str | None, nccl: str | None) -> bool:
        """Whether it is known of these versions, those really loaded. A bounded version that is None never fits."""
        return (self.torch is None or within(torch, self.torch)) and (self.nccl is None or within(nccl, self.nccl))


class SuiteCase(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a check's matrix with what is expected of it.

    `axes` are all axes, those of the matrix in their order and then the fixed ones, with `size` in bytes;
    `deadline` is in seconds; `expect` and `known` name only the phases that are judged; `because` says why this
    is expected; `line` is where the suite file declares the check. Where the kinds of a phase have each its own
    expectation, those are in `kinds`, and `expect` has the strongest of them. Of several known problems the first
    that applies is meant. `needs` are the conditions without which the case can't be run.
    """

    id: str
    check: str
    workload: str
    axes: dict[str, str | int]
    deadline: float
    expect: dict[GatePhase, Expectation]
    kinds: dict[GatePhase, dict[Kind, Expectation]] = {}
    known: dict[GatePhase, tuple[Known, ...]] = {}
    because: str | None = None
    configuration: str = DEFAULT_CONFIGURATION
    needs: dict[str, str | bool] = {}
    line: int

    @property
    def folder(self) -> str:
        """Where the case's evidence lies in the run folder; an id is safe as a path."""
        return f"cases/{self.id}"


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """A suite file, read. `path` is its file; `steps` are traced, the `warmup` steps before them are not kept.

    `configurations` are the launch configurations besides the default, by name.
    """

    name: str
    path: str
    ranks: int
    steps: int
    warmup: int
    configurations: dict[str, Configuration] = {}
    cases: tuple[SuiteCase, ...]

    def select(self, globs: Sequence[str]) -> Suite:
        """The suite with only the cases whose id matches one of `globs` (`*` matches `/` too); all if there is none.

        Raises UserError for a glob that matches no case.
        """
        if not globs:
            return self
        for glob in globs:
            if not any(fnmatch.fnmatchcase(case.id, glob) for case in self.cases):
                ids = [case.id for case in self.cases]
                more = f", … ({len(ids)} in all)" if len(ids) > 8 else ""
                raise UserError(
                    f"--only {quoted(glob)}: no case of the suite {self.name} ({self.path}) has such an id. "
                    f"Its cases: {', '.join(ids[:8])}{more}"
                )
        kept = (case for case in self.cases if any(fnmatch.fnmatchcase(case.id, glob) for glob in globs))
        return msgspec.structs.replace(self, cases=tuple(kept))

    def plan(
        self,
        *,
        ranks: int | None = None,
        ranks_per_gpu: int = 1,
        device: Literal["cuda", "cpu"] = "cuda",
        backend: str = "nccl",
        root: Path | None = None,
    ) -> Plan:
        """What the ranks are to do; `ranks` replaces the suite's own number, `root` is the working directory if None.

        Raises UserError as `find_workloads` does.
        """
        self.find_workloads(root)
        used = {case.configuration for case in self.cases}
        return Plan(
            ranks=self.ranks if ranks is None else ranks,
            ranks_per_gpu=ranks_per_gpu,
            device=device,
            backend=backend,
            warmup=self.warmup,
            steps=self.steps,
            root=None if root is None else str(root),
            configurations={name: content for name, content in self.configurations.items() if name in used},
            cases=[
                Case(
                    id=case.id,
                    folder=case.folder,
                    workload=case.workload,
                    axes=case.axes,
                    deadline=case.deadline,
                    configuration=case.configuration,
                    needs=case.needs,
                )
                for case in self.cases
            ],
        )

    def find_workloads(self, root: Path | None = None) -> None:
        """Raise UserError for a workload whose file is not there: under checks/workloads, or under `root`."""
        for case in self.cases:
            self._find_workload(case, root or Path.cwd())

    def _find_workload(self, case: SuiteCase, root: Path) -> None:
        place = f"{self.path}, line {case.line}: checks.{case.check}.workload"
        file, colon, _ = case.workload.rpartition(":")
        if colon:
            path = (root / file).resolve()
            # `..` and a link both lead out: what runs here must be what the repository's reviewers have seen.
            if not path.is_relative_to(root.resolve()):
                raise UserError(f"{place}: {quoted(file)} leads out of {root}; a workload lies inside the repository")
            if not path.is_file():
                raise UserError(f"{place}: there is no file {quoted(file)} under {root}")
            return
        folder = checks_folder() / "workloads"
        names = sorted(path.stem for path in folder.glob("[!_]*.py"))
        if case.workload not in names:
            raise UserError(
                f"{place}: no workload is named {quoted(case.workload)}{did_you_mean(case.workload, names)}"
            )


def bundled_suites() -> dict[str, Path]:
    """The suites that ship with symmem-check, by name."""
    return {path.stem: path for path in sorted((checks_folder() / "suites").glob("*.yaml"))}


def load_suite(suite: str | Path) -> Suite:
    """Read a suite: the name of a bundled one ("default"), or the path of a file.

    Text is a path if it has a `/` or ends in .yaml or .yml. Raises UserError with file, line and key.
    """
    from .suite_file import read_suite

    if isinstance(suite, str) and "/" not in suite and not suite.endswith((".yaml", ".yml")):
        bundled = bundled_suites()
        if suite not in bundled and Path(suite).is_dir():
            raise UserError(f"--suite {quoted(suite)}: is a folder; give a suite file in it")
        if suite not in bundled:
            hint = did_you_mean(suite, bundled)
            raise UserError(
                f"--suite {quoted(suite)}: no suite of that name ships with symmem-check{hint}, or a path to a file"
            )
        return read_suite(bundled[suite])
    return read_suite(Path(suite))
