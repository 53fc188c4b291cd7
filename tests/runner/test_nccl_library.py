"""`--nccl PATH|VERSION`: real files, and real wheels that the real pip finds in a folder."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from runner.cli import main
from runner.errors import UserError
from runner.nccl_library import LIBRARY, find_nccl

MACHINES = {"x86_64": 62, "aarch64": 183}


def shared_library(*, machine: int | None = None, name: bytes = b"ncclGetVersion") -> bytes:
    """The header of a 64-bit little-endian ELF file for this machine, and after it a string table with `name`."""
    machine = MACHINES[platform.machine()] if machine is None else machine
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + (3).to_bytes(2, "little") + machine.to_bytes(2, "little")
    return header + bytes(44) + b"\0" + name + b"\0"


def make_wheel(folder: Path, version: str, *, package: str = "nvidia_nccl_cu13", member: str = LIBRARY) -> Path:
    """A wheel that pip accepts, tagged as NVIDIA tags theirs."""
    info = f"{package}-{version}.dist-info"
    wheel = folder / f"{package}-{version}-py3-none-manylinux_2_18_{platform.machine()}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member, shared_library())
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all that pip sees."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_a_path_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(shared_library())
    link = tmp_path / "mine.so"
    link.symlink_to(library)
    monkeypatch.chdir(tmp_path)
    assert find_nccl("./libnccl.so.2", cuda_major=13) == library
    assert find_nccl("mine.so", cuda_major=13) == link


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is no shared library"),
        (b"GROUP ( libnccl.so.2.30 )", "is no shared library"),
        (shared_library(machine=8), "is a library for another processor"),
        (shared_library(name=b"ncclGetVersions"), "has no ncclGetVersion"),
    ],
)
def test_a_file_that_could_not_be_preloaded_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(content)
    with pytest.raises(UserError, match=problem) as caught:
        find_nccl(str(library), cuda_major=13)
    assert str(library) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_a_folder_and_a_blank_in_the_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist; give the path"):
        find_nccl(str(tmp_path / "none.so"), cuda_major=13)
    with pytest.raises(UserError, match="is a folder"):
        find_nccl(str(tmp_path), cuda_major=13)
    blank = tmp_path / "my nccl.so"
    blank.write_bytes(shared_library())
    with pytest.raises(UserError, match="LD_PRELOAD takes blanks"):
        find_nccl(str(blank), cuda_major=13)


@pytest.mark.parametrize("command", ["doctor", "run"])
def test_a_missing_file_is_told_before_torch_is_looked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    arguments = [command, "--python", str(tmp_path / "no-python"), "--nccl", str(tmp_path / "none.so")]
    assert main(arguments) == 2
    assert "none.so does not exist" in capsys.readouterr().err


def test_a_version_comes_out_of_its_wheel_and_is_kept(tmp_path: Path, index: Path) -> None:
    wheel = make_wheel(index, "2.30.7")
    make_wheel(index, "2.30.7", package="nvidia_nccl_cu12")
    told: list[str] = []
    library = find_nccl("2.30.7", cuda_major=13, cache=tmp_path / "cache", tell=told.append)
    assert library == tmp_path / "cache" / "nvidia-nccl-cu13-2.30.7" / "libnccl.so.2"
    assert library.read_bytes() == shared_library()
    assert len(told) == 1
    assert "nvidia-nccl-cu13 2.30.7" in told[0]
    wheel.unlink()
    assert find_nccl("2.30.7", cuda_major=13, cache=tmp_path / "cache", tell=told.append) == library
    assert len(told) == 1
    assert "cu12" in str(find_nccl("2.30.7", cuda_major=12, cache=tmp_path / "cache"))
    assert not list((tmp_path / "cache").glob("download-*"))


def test_the_cache_is_where_xdg_says(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(index, "2.30.7")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert find_nccl("2.30.7", cuda_major=13).is_relative_to(tmp_path / "xdg" / "symmem-check" / "nccl")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert find_nccl("2.30.7", cuda_major=13).is_relative_to(tmp_path / "home" / ".cache" / "symmem-check")


def test_a_version_that_does_not_exist_names_those_that_do(tmp_path: Path, index: Path) -> None:
    make_wheel(index, "2.28.9")
    make_wheel(index, "2.30.7")
    with pytest.raises(UserError, match=r"has no version 2\.99\.1 .* it has 2\.28\.9, 2\.30\.7") as caught:
        find_nccl("2.99.1", cuda_major=13, cache=tmp_path / "cache")
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="no nvidia-nccl-cu14"):
        find_nccl("2.30.7", cuda_major=14, cache=tmp_path / "cache")
    assert not (tmp_path / "cache" / "nvidia-nccl-cu13-2.99.1").exists()


def test_a_wheel_without_the_library_is_refused(tmp_path: Path, index: Path) -> None:
    make_wheel(index, "0.0.1", member="nvidia/nccl/placeholder")
    with pytest.raises(UserError, match=r"nvidia_nccl_cu13-0\.0\.1-.*has no nvidia/nccl/lib/libnccl\.so\.2"):
        find_nccl("0.0.1", cuda_major=13, cache=tmp_path / "cache")
    assert not (tmp_path / "cache" / "nvidia-nccl-cu13-0.0.1").exists()


def test_an_index_out_of_reach_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="can't be reached"):
        find_nccl("2.30.7", cuda_major=13, cache=tmp_path / "cache")


def test_a_python_without_pip_and_none_at_all_are_told(tmp_path: Path, index: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    with pytest.raises(UserError, match="No module named pip"):
        find_nccl("2.30.7", cuda_major=13, cache=tmp_path / "cache", python=str(bare / "bin" / "python"))
    with pytest.raises(UserError, match="can't be run"):
        find_nccl("2.30.7", cuda_major=13, cache=tmp_path / "cache", python=str(tmp_path / "no-python"))


def test_a_cache_that_can_not_be_written_is_told(tmp_path: Path, index: Path) -> None:
    make_wheel(index, "2.30.7")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"can't keep it in .*file"):
        find_nccl("2.30.7", cuda_major=13, cache=tmp_path / "file" / "cache")


def test_a_folder_named_pip_where_the_user_stands_is_not_run(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(index, "2.30.7")
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "pip.py").write_text("raise SystemExit('the wrong pip')")
    monkeypatch.chdir(tmp_path / "repository")
    assert find_nccl("2.30.7", cuda_major=13, cache=tmp_path / "cache").is_file()


def test_two_at_once_download_once(tmp_path: Path, index: Path) -> None:
    make_wheel(index, "2.30.7")
    told: list[str] = []
    found: list[Path] = []

    def want_it() -> None:
        found.append(find_nccl("2.30.7", cuda_major=13, cache=tmp_path / "cache", tell=told.append))

    threads = [threading.Thread(target=want_it) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert len(set(found)) == 1
    assert len(told) == 1


@pytest.mark.slow
@pytest.mark.skipif(
    "SYMMEM_CHECK_TEST_NCCL_DOWNLOAD" not in os.environ,
    reason="downloads 200 MB; set SYMMEM_CHECK_TEST_NCCL_DOWNLOAD=1 to run it",
)
def test_a_real_version_loads_and_tells_its_own_number(tmp_path: Path) -> None:
    library = find_nccl("2.27.7", cuda_major=13, cache=tmp_path / "cache")
    number = ctypes.c_int()
    assert ctypes.CDLL(str(library)).ncclGetVersion(ctypes.byref(number)) == 0
    assert number.value == 22707
