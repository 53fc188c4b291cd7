"""The README's own workload, as it stands there."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.plan import Case
from tests.runner.test_launch import Run, cpu_plan


@pytest.mark.slow
def test_the_workload_that_the_readme_shows(project: Path, tmp_path: Path) -> None:
    shown = (project / "README.md").read_text().partition("# probes/ones.py")[2].partition("```")[0]
    (tmp_path / "probes").mkdir()
    (tmp_path / "probes" / "ones.py").write_text("#" + shown)
    case = Case(
        id="ones",
        folder="cases/ones",
        workload="probes/ones.py:ones",
        axes={"pool": "none", "size": 2**20},
        deadline=60.0,
    )
    run = Run(tmp_path / "run", cpu_plan(case, root=tmp_path))
    assert (run.outcomes("ones"), run.messages("ones")) == (["ok", "ok"], [None, None])
