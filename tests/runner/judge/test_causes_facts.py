"""The tables of what each NCCL can, against the names of the kernels in its wheels."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from runner.judge.causes_facts import FIRST_SYMMETRIC, FUNCTIONS, OPS, kernel_names, sides_needed, version_numbers
from runner.judge.coverage import REDUCIBLE_DTYPES

WHEELS: dict[str, list[str]] = json.loads((Path(__file__).parents[2] / "data" / "nccl-kernels.json").read_text())
SYMMETRIC_NAME = re.compile(
    r"ncclSymk?DevKernel_((AllReduce|AllGather|ReduceScatter)_\w+?)(?:_(sum|avg)_(\w+?))?(?:_profile)?\("
)


@pytest.mark.parametrize("version", WHEELS)
def test_the_tables_say_what_is_in_nccls_own_binaries(version: str) -> None:
    """Kernel names, ops and dtypes of every version's wheel."""
    kernels = [found for name in WHEELS[version] if (found := SYMMETRIC_NAME.match(name))]
    numbers = version_numbers(version)
    assert bool(kernels) == (numbers >= FIRST_SYMMETRIC)
    assert {kernel[1] for kernel in kernels} == (kernel_names(numbers) if kernels else set())
    kinds = {function: kind for kind, function in FUNCTIONS.items()}
    ops = {(kernel[3], kinds[kernel[2]]) for kernel in kernels if kernel[3]}
    assert ops == {(op, kind) for op, since in OPS.items() for kind, first in since.items() if numbers >= first}
    dtypes = {
        "f32": "float32",
        "f16": "float16",
        "bf16": "bfloat16",
        "f8e4m3": "float8_e4m3fn",
        "f8e5m2": "float8_e5m2",
    }
    if kernels:
        assert {dtypes[kernel[4]] for kernel in kernels if kernel[4]} == REDUCIBLE_DTYPES


@pytest.mark.parametrize(
    ("kind", "version", "sides"),
    [
        ("all_gather", (2, 28, 9), ("input", "output")),
        ("all_gather", (2, 29, 2), ("output",)),
        ("reduce_scatter", (2, 29, 2), ("input",)),
        ("reduce_scatter", None, ("input",)),
        ("all_reduce", (2, 32, 3), ("input", "output")),
        ("broadcast", (2, 32, 3), ("input", "output")),
    ],
)
def test_the_sides_that_must_be_symmetric(kind: str, version: tuple[int, ...] | None, sides: tuple[str, ...]) -> None:
    assert sides_needed(kind, version) == sides


def test_a_version_is_read_without_its_build_label() -> None:
    assert version_numbers("2.30.7+cuda13.0") == (2, 30, 7)
