"""What is kept of the catalogue between calls: never of another text, never in anyone's way."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runner import kernels

NAME = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ROW = """\
  - name: mine
    pattern: my_all_reduce
    library: mine
    mechanism: unknown
    source: this test
"""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A catalogue of its own, where Python would keep compiled modules."""
    path = tmp_path / "kernels.yaml"
    shutil.copyfile(kernels.CATALOGUE, path)
    (tmp_path / "__pycache__").mkdir()
    return path


@pytest.fixture(autouse=True)
def writing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


def kept(path: Path) -> list[Path]:
    return list((path.parent / "__pycache__").iterdir())


def test_the_second_reading_gives_the_same_without_the_yaml(copied, monkeypatch):
    first = kernels.load(copied)
    assert len(kept(copied)) == 1
    monkeypatch.setattr(kernels, "_from_yaml", lambda *_: 1 / 0)
    assert kernels.load(copied) == first
    assert kernels.matcher(kernels.load(copied))(NAME) == kernels.classify(NAME)


def test_a_changed_catalogue_is_read_anew(copied):
    before = kernels.load(copied)
    copied.write_text(copied.read_text() + ROW)
    after = kernels.load(copied)
    assert [row.name for row in after.rows] == [*(row.name for row in before.rows), "mine"]
    assert kernels.load(copied) == after


def test_another_version_reads_it_anew(copied, monkeypatch):
    kernels.load(copied)
    monkeypatch.setattr("runner.kept.__version__", "0.0.1")
    monkeypatch.setattr(kernels, "_from_yaml", lambda *_: "read anew")
    assert kernels.load(copied) == "read anew"


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-9], lambda data: data[:40] + b"\xc1" * 99])
def test_a_broken_one_is_not_believed(damage, copied):
    first = kernels.load(copied)
    [path] = kept(copied)
    path.write_bytes(damage(path.read_bytes()))
    assert kernels.load(copied) == first


@pytest.mark.parametrize("why", ["no folder", "a file in its place", "not wanted"])
def test_where_nothing_can_be_kept(why, copied, monkeypatch):
    folder = copied.parent / "__pycache__"
    if why == "not wanted":
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
    else:
        folder.rmdir()
    if why == "a file in its place":
        folder.write_text("")
    assert kernels.load(copied) == kernels.load()
    assert not folder.is_dir() or kept(copied) == []


def test_a_mistake_is_told_and_not_kept(copied):
    copied.write_text(copied.read_text() + ROW.replace("mechanism: unknown", "mechanism: magic"))
    for _ in range(2):
        with pytest.raises(kernels.UserError, match="mine"):
            kernels.load(copied)
    assert kept(copied) == []


def test_classify_needs_no_yaml_then(tmp_path):
    """As a user has it: the package in a folder of its own, called twice."""
    project = Path(__file__).parents[2]
    shutil.copytree(project / "runner", tmp_path / "runner", ignore=shutil.ignore_patterns("__pycache__"))
    trace = project / "tests" / "data" / "traces" / "h200" / "train_tp_ckpt_pool_r0.json.gz"
    script = (
        "import sys; from runner.cli import main; main(sys.argv[1:]); print('yaml' in sys.modules, file=sys.stderr)"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", script, "classify", "--format", "json", str(trace)],
            cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True, timeout=60,
        )
        for _ in range(2)
    ]  # fmt: skip
    assert [run.stderr.strip() for run in told] == ["True", "False"]
    assert told[0].stdout == told[1].stdout


def test_a_broken_catalogue_is_told_once_and_blamed_on_no_trace(tmp_path):
    project = Path(__file__).parents[2]
    shutil.copytree(project / "runner", tmp_path / "runner", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "runner" / "kernels.yaml").open("a") as file:
        file.write(ROW.replace("my_all_reduce", "my_all_reduce("))
    traces = sorted((project / "tests" / "data" / "traces" / "h200").glob("train_tp_ckpt_pool_*.json.gz"))
    done = subprocess.run(
        [sys.executable, "-m", "runner", "classify", *map(str, traces)],
        cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("symmem-check: kernels.yaml: row mine: the pattern is no regular expression")
