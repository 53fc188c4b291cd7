"""The small parts of checks/ that need no second rank."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
import torch

from checks.case import Case
from checks.control import Control, PeerLost
from checks.deadline import peer_trouble, stacks
from checks.nvidia import loaded_nccl_path, release
from checks.record import Record
from checks.session import find_obstacle
from checks.workloads import find_workload
from checks.workloads.all_reduce import all_reduce, pattern


def test_a_record_is_ended_once_and_by_whoever_comes_first(tmp_path: Path) -> None:
    record = Record(tmp_path / "cases" / "a", "a", rank=3, start=1)
    path = tmp_path / "cases" / "a" / "rank3.json"
    assert json.loads(path.read_text())["state"] == "started"
    assert record.finish("hung", "no end", "stack")
    assert not record.finish("ok")
    content = json.loads(path.read_text())
    assert (content["state"], content["outcome"], content["message"], content["start"]) == ("done", "hung", "no end", 1)
    assert [entry.name for entry in path.parent.iterdir()] == ["rank3.json"]


@pytest.mark.parametrize(
    ("code", "version"), [(23007, "2.30.7"), (22809, "2.28.9"), (2804, "2.8.4"), (21000, "2.10.0")]
)
def test_nccls_version_code(code: int, version: str) -> None:
    assert release(code) == version


def test_no_nccl_is_loaded_without_cuda() -> None:
    if torch.version.cuda is None:
        assert loaded_nccl_path() is None


@pytest.fixture
def controls(monkeypatch: pytest.MonkeyPatch) -> list[Control]:
    """Two ranks' clients of one store, which rank 0 hosts as it does without torchrun's agent."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    for attempt in range(5):
        host = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        monkeypatch.setenv("MASTER_PORT", str(host.port))
        del host
        try:
            first = Control(0, 2, may_host=True)
        except torch.distributed.DistNetworkError:  # another process took the port that was free a moment ago
            if attempt == 4:
                raise
            continue
        return [first, Control(1, 2, may_host=True)]
    raise AssertionError("unreachable")


def test_ranks_agree_over_the_store(controls: list[Control]) -> None:
    first, second = controls
    first.post("case0", outcome="ok")
    with pytest.raises(PeerLost, match="no answer from rank 1 within 0 s"):
        first.gather("case0", 0.05)
    second.post("case0", outcome="raised", message="why")
    second.post("case0", outcome="ok")  # the first answer stands
    assert first.gather("case0", 60)[1] == {"outcome": "raised", "message": "why"}
    assert peer_trouble(first, "case0") == (1, {"outcome": "raised", "message": "why"})
    assert peer_trouble(second, "case0") is None


def test_a_rank_leaves_the_agreement_as_soon_as_it_knows_enough(controls: list[Control]) -> None:
    controls[1].post("case0", outcome="hung")
    assert list(controls[0].gather("case0", 60, lambda answers: 1 in answers)) == [1]


def test_a_barrier_holds_until_all_have_come(controls: list[Control]) -> None:
    first, second = controls
    late = threading.Timer(0.2, second.post, args=("step",))
    began = time.monotonic()
    late.start()
    first.barrier("step", 60)
    assert time.monotonic() - began >= 0.2
    late.join()


def test_stacks_tell_where_every_other_thread_is() -> None:
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.append(stacks()), name="asker")
    thread.start()
    thread.join()
    assert told[0].splitlines()[-1].strip() and "Thread MainThread:" in told[0]
    assert "test_stacks_tell_where" in told[0] and "Thread asker" not in told[0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such", "there is no workload 'no_such'"),
        ("__init__", "there is no workload '__init__'"),
        ("../all_reduce", "there is no workload"),
        ("nowhere.py:f", "nowhere.py is not there"),
        ("own.py:g", "has no function 'g'"),
        ("own.py:number", "has no function 'number'"),
    ],
)
def test_a_workload_that_is_not_there(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "own.py").write_text("number = 5\ndef f(case, pool): ...\n")
    with pytest.raises(LookupError, match=message):
        find_workload(name, tmp_path)


def test_a_workload_is_found_by_name_and_by_file(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def f(case, pool): return 7\n")
    assert find_workload("all_reduce", tmp_path) is all_reduce
    assert find_workload("own.py:f", tmp_path) is find_workload("own.py:f", tmp_path)
    assert find_workload("own.py:f", tmp_path)(None, None) == 7


def make_case(record: Record) -> Case:
    """Return a case for its `check` alone, which needs no process group."""
    case = Case.__new__(Case)
    case.record = record
    return case


def test_values_add_up_over_checks(tmp_path: Path) -> None:
    case = make_case(Record(tmp_path, "a", rank=0, start=0))
    expected = torch.zeros(4, dtype=torch.float64)
    case.check(torch.tensor([0.0, 0.5, -0.5, 0.0]), expected, tolerance=0.5)
    assert case.record.content["values"] == {"checked": 4, "wrong": 0, "max_error": 0.5, "tolerance": 0.5}
    case.check(torch.tensor([0.0, 0.75, torch.inf, torch.nan]), expected, tolerance=0.25)
    values = case.record.content["values"]
    assert (values["checked"], values["wrong"], values["tolerance"]) == (8, 3, 0.5)
    assert values["max_error"] == torch.finfo(torch.float64).max
    with pytest.raises(ValueError, match=r"shape \(1,\) are compared with \(4,\)"):
        case.check(torch.zeros(1), expected, tolerance=1.0)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_the_pattern_differs_and_its_sum_is_exact(dtype: torch.dtype) -> None:
    ranks = [pattern(64, seed, dtype, torch.device("cpu")).to(torch.float64) for seed in range(4)]
    assert not ranks[0].equal(ranks[1])
    assert all((rank.diff() != 0).all() for rank in ranks)
    total = torch.stack(ranks).sum(dim=0)
    assert total.to(dtype).to(torch.float64).equal(total)


@pytest.mark.parametrize(
    ("axis", "message"), [({"op": "xor"}, "no op 'xor'"), ({"dtype": "int32"}, "'int32' is no floating")]
)
def test_the_probe_refuses_what_it_cannot_do(axis: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        all_reduce(None, None, **{"dtype": "float32", "op": "sum", "size": 64, **axis})


def test_what_this_machine_cannot_do_is_said_before_the_ranks_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = {"device": "cuda", "ranks": 2, "ranks_per_gpu": 2}
    environment = {"nccl": {"version": "2.28.9"}}
    assert find_obstacle({**plan, "device": "cpu"}, environment) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_obstacle(plan, environment) == f"torch {torch.__version__} sees no GPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert find_obstacle({**plan, "ranks": 3}, environment) == "2 GPUs are needed, and torch sees 1"
    told = "several ranks on one GPU need NCCL 2.30.3 or newer, and loaded is 2.28.9: give one with --nccl 2.30.7"
    assert find_obstacle(plan, environment) == told
    assert find_obstacle(plan, {"nccl": {"version": "2.30.3"}}) is None
    assert find_obstacle({**plan, "ranks": 1, "ranks_per_gpu": 1}, environment) is None
