"""The conditions of a case, compared with what a rank has recorded; the words are what the report shows."""

from __future__ import annotations

import pytest

from checks.needs import unmet

PLAN = {"device": "cuda", "ranks": 4, "ranks_per_gpu": 2}
OWN = {"device": "cuda", "ranks": 4, "ranks_per_gpu": 1}
CPU = {"device": "cpu", "ranks": 2, "ranks_per_gpu": 1}
FACTS = {
    "torch": "2.11.0+cu130",
    "nccl": {"version": "2.30.7", "path": None, "built": "2.28.9"},
    "capability": [9, 0],
    "multicast": True,
    "env": {},
}
ON_CPU = {**FACTS, "nccl": None, "capability": None, "multicast": None}


@pytest.mark.parametrize(
    ("needs", "plan", "facts", "says"),
    [
        ({}, PLAN, FACTS, None),
        ({"torch": ">=2.11"}, PLAN, FACTS, None),
        ({"torch": ">=2.12"}, PLAN, FACTS, "needs torch >= 2.12; this is 2.11.0+cu130"),
        ({"torch": ">=2.9,<2.11"}, PLAN, FACTS, "needs torch >= 2.9, < 2.11; this is 2.11.0+cu130"),
        ({"torch": ">2.11"}, PLAN, FACTS, "needs torch > 2.11; this is 2.11.0+cu130"),
        ({"torch": "==2.11, !=2.11.1"}, PLAN, FACTS, None),
        ({"torch": "<= 2.11.0.0"}, PLAN, FACTS, None),
        ({"torch": ">=2.9"}, PLAN, FACTS, None),  # as numbers: as text 2.9 is above 2.11
        ({"torch": ">=2.15"}, PLAN, {**FACTS, "torch": "2.15.0.dev20260301+cu130"}, None),
        ({"torch": ">=2.9"}, PLAN, {**FACTS, "torch": "2.9.0a0+145a3a7.nv25.10"}, None),
        ({"torch": "<3"}, PLAN, {**FACTS, "torch": "unknown"}, "needs torch < 3; this is unknown"),
        ({"nccl": ">=2.30.3"}, PLAN, FACTS, None),
        ({"nccl": "<2.30.7"}, PLAN, FACTS, "needs nccl < 2.30.7; this is 2.30.7"),
        ({"nccl": ">=2.27"}, CPU, ON_CPU, "needs nccl >= 2.27; here none is known"),
        ({"nccl": "!=2.29"}, CPU, ON_CPU, "needs nccl != 2.29; here none is known"),
        ({"capability": ">=9.0"}, PLAN, FACTS, None),
        ({"capability": ">=10.0"}, PLAN, FACTS, "needs capability >= 10.0; this is 9.0"),
        ({"capability": ">=9.0"}, PLAN, {**FACTS, "capability": [10, 0]}, None),
        ({"ranks": ">=4"}, PLAN, FACTS, None),
        ({"ranks": ">4"}, PLAN, FACTS, "needs ranks > 4; this is 4"),
        ({"gpus": ">=2"}, PLAN, FACTS, None),
        ({"gpus": ">=3"}, PLAN, FACTS, "needs gpus >= 3; this is 2"),
        ({"gpus": ">=2"}, {**PLAN, "ranks": 3}, FACTS, None),
        ({"gpus": ">=1"}, CPU, ON_CPU, "needs gpus >= 1; this is 0"),
        ({"own-gpu": True}, OWN, FACTS, None),
        ({"own-gpu": True}, PLAN, FACTS, "needs a GPU for each rank; here 2 ranks share one"),
        ({"own-gpu": True}, CPU, ON_CPU, "needs a GPU for each rank; this run is on the cpu"),
        ({"multicast": True}, OWN, FACTS, None),
        ({"multicast": True}, PLAN, FACTS, "needs multicast, which ranks that share a GPU don't have"),
        ({"multicast": True}, OWN, {**FACTS, "multicast": False}, "needs multicast, which this GPU does not have"),
        ({"multicast": True}, OWN, {**FACTS, "multicast": None}, "needs multicast; whether this GPU has it is unknown"),
        ({"multicast": True}, CPU, ON_CPU, "needs multicast; this run is on the cpu"),
        # Every condition counts, and the first that does not hold is told.
        ({"torch": ">=2.11", "ranks": ">=8", "gpus": ">=8"}, PLAN, FACTS, "needs ranks >= 8; this is 4"),
    ],
)  # fmt: skip
def test_a_condition_holds_or_is_told_in_words(needs: dict, plan: dict, facts: dict, says: str | None) -> None:
    assert unmet(needs, plan, facts) == says


@pytest.mark.parametrize("variable", ["NCCL_NVLS_ENABLE=0", "TORCH_SYMM_MEM_DISABLE_MULTICAST=1"])
def test_what_a_variable_switches_off_is_no_excuse(variable: str) -> None:
    name, value = variable.split("=")
    assert unmet({"multicast": True}, OWN, {**FACTS, "multicast": False, "env": {name: value}}) is None
    assert unmet({"multicast": True}, OWN, {**FACTS, "multicast": False, "env": {name: "2"}}) is not None


def test_a_condition_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no condition 'cuda'"):
        unmet({"cuda": ">=13"}, PLAN, FACTS)
