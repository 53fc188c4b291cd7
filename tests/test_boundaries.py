"""The rules between the two halves, told by the source itself: who may import what, and how long a file may be."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = Path(__file__).resolve().parent.parent
STANDARD = {*sys.stdlib_module_names, "tomllib"}
MAX_LINES = 400


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (PROJECT / folder).rglob("*.py") if "replay" not in path.parts)


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and top-level name of every absolute import, wherever it stands in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, (node.module or "").split(".")[0]


def foreign_imports(*folders: str) -> dict[str, list[str]]:
    """Where each name outside the standard library is imported: name → ["runner/suite.py:12"]."""
    found: dict[str, list[str]] = {}
    for path in sources(*folders):
        for line, name in imports(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            if name not in STANDARD:
                found.setdefault(name, []).append(f"{path.relative_to(PROJECT)}:{line}")
    return found


def declared(*extras: str) -> set[str]:
    """The distributions that pyproject.toml asks for, in normal form."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    return {normal(Requirement(one).name) for one in wanted}


def normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


@functools.cache
def owners() -> dict[str, set[str]]:
    """Which installed distributions bring a module; Python 3.10's own packages_distributions misses many."""
    found: dict[str, set[str]] = {}
    for distribution in metadata.distributions():
        for module in {file.parts[0].removesuffix(".py") for file in distribution.files or []}:
            found.setdefault(module, set()).add(normal(distribution.name))
    return found


def undeclared(found: dict[str, list[str]], allowed: set[str]) -> dict[str, list[str]]:
    return {name: places for name, places in found.items() if not owners().get(name, {name}) & allowed}


def test_checks_imports_torch_and_the_standard_library_only() -> None:
    found = foreign_imports("checks")
    assert "torch" in found
    assert set(found) == {"torch"}, found


def test_runner_never_imports_torch_and_declares_what_it_imports() -> None:
    found = foreign_imports("runner")
    assert "msgspec" in found
    assert "torch" not in found, found
    assert undeclared(found, declared("ec2", "kubernetes")) == {}


def test_the_tests_declare_what_they_import() -> None:
    found = foreign_imports("tests")
    own = {"runner", "checks", "tests"}
    # torch is put beside them by the Makefile: its version is a choice of the test environment.
    others = {name: places for name, places in found.items() if name not in {*own, "torch"}}
    assert "pytest" in others
    assert undeclared(others, declared("test")) == {}


def test_nothing_is_declared_that_nothing_imports() -> None:
    found = foreign_imports("runner")
    used = {owner for name in found for owner in owners().get(name, {name})}
    assert declared("ec2", "kubernetes") - used - {"isal"} == set()


@pytest.mark.parametrize("half", ["runner", "checks"])
def test_neither_half_knows_its_own_name(half: str) -> None:
    """They are installed under other names, and a training repository may have a `runner` or `checks` of its own."""
    found = foreign_imports(half)
    assert not {"runner", "checks", "symmem_check"} & set(found), found


def test_no_file_is_longer_than_one_sitting() -> None:
    long = {
        str(path.relative_to(PROJECT)): lines
        for path in sources("runner", "checks", "tests")
        if (lines := path.read_text(encoding="utf-8").count("\n")) > MAX_LINES
    }
    assert len(sources("runner", "checks")) > 10
    assert long == {}


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(PROJECT))
        for path in sources("runner", "checks")
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []
