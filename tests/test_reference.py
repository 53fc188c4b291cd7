"""The reference against every recorded truth, and against the rules that no recorded trace shows."""

from __future__ import annotations

import ast
import copy
import json
from pathlib import Path

import pytest

from tests import reference

DATA = Path(__file__).parent / "data"
TRUTHS = sorted((DATA / "traces").glob("*/*.truth.json"))
COLLECTIVE_FIELDS = {
    *("rank", "step", "phase", "kind", "mechanism", "symmetric", "multicast", "algorithm", "dtype", "bytes", "group"),
    *("group_size", "start", "duration", "kernel", "calls"),
}
SPELLED = {"ts": "start", "name": "kernel", "collective": "kind"}
VALID_JSON = ("00", "06", "16", "22", "24", "40", "44", "46", "48", "50", "52", "54", "56", "58", "60", "62")


def malformed(number):
    (path,) = (DATA / "malformed").glob(f"{number}_*")
    return path


def test_all_truths_ship():
    assert len(TRUTHS) == 90
    assert {path.parent.name for path in TRUTHS} == {"h200", "public"}


@pytest.mark.parametrize("path", TRUTHS, ids=lambda path: path.name.removesuffix(".truth.json"))
def test_truth(path):
    truth = json.loads(path.read_text())
    result = reference.classify(path.with_name(truth["trace"]))
    wanted, found = [], []
    for entry, collective in zip(truth["collectives"], result["collectives"], strict=True):
        assert collective.keys() == COLLECTIVE_FIELDS
        facts = {SPELLED.get(key, key): value for key, value in entry.items() if key != "evidence"}
        if collective["mechanism"] == "nccl-copy-engine":
            facts["kernel"] = None
        wanted.append(facts)
        found.append({key: collective[key] for key in facts})
    assert found == wanted
    whole = {key: truth[key] for key in ("rank", "world_size", "one_rank_calls", "barrier_calls") if key in truth}
    assert {key: result[key] for key in whole} == whole


@pytest.mark.parametrize("number", VALID_JSON)
def test_odd_but_valid(number):
    result = reference.classify(malformed(number))
    told = [(c["phase"], c["kind"], c["mechanism"], c["symmetric"]) for c in result["collectives"]]
    gather = ("forward", "all_gather", "nccl", False)
    scatter = ("backward", "reduce_scatter", "nccl-symmetric", True)
    wanted = {
        "54": [("unknown", *gather[1:]), ("unknown", *scatter[1:])],
        "56": [gather, ("backward", "reduce_scatter", "nccl", False)],
        "62": [gather, gather, scatter, scatter],
    }
    assert told == wanted.get(number, [gather, scatter])
    assert result["rank"] == (None if number in ("40", "62") else 0)
    assert all(c["dtype"] == "bfloat16" and c["duration"] > 0 for c in result["collectives"])
    assert [c["bytes"] for c in result["collectives"]] == [None if number == "54" else 4096] * len(told)


def test_no_events_is_not_no_collectives():
    assert reference.classify(malformed("64"))["collectives"] == []
    with pytest.raises(ValueError, match="no traceEvents"):
        reference.classify(malformed("42"))


def test_it_shares_nothing_with_the_product():
    for name in ("reference.py", "reference_names.py"):
        tree = ast.parse((Path(__file__).parent / name).read_text())
        modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        modules += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        assert modules
        assert not [module for module in modules if module.split(".")[0] in ("runner", "symmem_check", "checks")]


# ---- rules that no recorded trace shows: small changes of one that is read right


@pytest.fixture
def base():
    return copy.deepcopy(reference.read(malformed("00")))


def named(trace, part):
    """The one row whose name holds `part`."""
    (row,) = [row for row in trace["traceEvents"] if part in row["name"] and row.get("ph") == "X"]
    return row


def scatter_of(trace):
    return reference.classify(trace)["collectives"][1]


def test_a_final_callback_of_autograd_is_backward(base):
    base["traceEvents"].remove(named(base, "evaluate_function"))
    assert scatter_of(base)["phase"] == "forward"
    thread = {"ph": "M", "name": "thread_name", "pid": 100, "tid": 200, "args": {"name": "thread 200 (pt_autograd_0)"}}
    base["traceEvents"].append(thread)
    assert scatter_of(base)["phase"] == "backward"


def test_the_optimizers_step(base):
    frame = named(base, "evaluate_function")
    frame.update(name="Optimizer.step#AdamW.step", cat="user_annotation")
    assert scatter_of(base)["phase"] == "optimizer"


def test_an_annotation_that_names_two_phases_names_none(base):
    frame = named(base, "evaluate_function")
    frame.update(name="forward_backward", cat="user_annotation")
    assert scatter_of(base)["phase"] == "forward"
    frame["name"] = "1 (B)"
    assert scatter_of(base)["phase"] == "backward"


def test_a_forward_op_below_backward_is_recompute(base):
    op = named(base, "c10d::_reduce_scatter_base_")
    op["args"].update({"Sequence number": 7, "Fwd thread id": 0})
    assert scatter_of(base)["phase"] == "recompute"


def test_an_external_id_that_repeats_the_correlation_joins_nothing(base):
    kernel, launch = named(base, "ncclSymkDevKernel"), named(base, "cuLaunchKernelEx")
    launch["args"]["correlation"] = 99
    assert scatter_of(base)["phase"] == "backward"
    kernel["args"]["External id"] = kernel["args"]["correlation"] = 9
    assert scatter_of(base)["phase"] == "unknown"


@pytest.mark.parametrize("name", ["hipExtLaunchKernel", "hipLaunchKernel"])
def test_amd_runtime_makes_it_rccl(base, name):
    named(base, "cuLaunchKernelEx")["name"] = name
    assert [c["mechanism"] for c in reference.classify(base)["collectives"]] == ["rccl", "rccl-symmetric"]


def test_an_unknown_kernel_counts_only_under_a_communication_op(base):
    named(base, "ncclSymkDevKernel")["name"] = "my_kernel<float>(float*)"
    told = scatter_of(base)
    assert (told["mechanism"], told["symmetric"], told["kind"]) == ("unknown", None, "reduce_scatter")
    record = next(row for row in base["traceEvents"] if row["name"] == "record_param_comms" and row["tid"] == 200)
    record["name"] = "aten::add"
    assert len(reference.classify(base)["collectives"]) == 1


def test_a_group_of_one_rank_is_only_counted(base):
    for row in base["traceEvents"]:
        if row.get("tid") == 200 or "ncclSymk" in row["name"]:
            row.get("args", {}).update({"Group size": 1})
    result = reference.classify(base)
    assert len(result["collectives"]) == 1
    assert result["one_rank_calls"] == 1


def test_after_the_last_backward_of_a_step_comes_the_optimizer(base):
    thread = [row for row in base["traceEvents"] if row.get("tid") == 200 and "evaluate_function" not in row["name"]]
    for row in thread:
        row["ts"] += 200
    assert scatter_of(base)["phase"] == "optimizer"
    named(base, "ProfilerStep#3")["name"] = "a step of another profiler"
    assert scatter_of(base)["phase"] == "forward"
