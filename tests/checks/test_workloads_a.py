"""The workloads of single collectives and of stress: real ranks over gloo, and the parts that need none."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from checks.memory import Incapable, Memory
from checks.pools import Pool
from checks.values import PERIOD, combined, known_values, rounding
from checks.workloads import back_to_back, bandwidth, collectives, nested_pools, register_loop, two_threads
from checks.workloads.collectives import refuse_what_torch_lacks
from runner.launch import run_plan
from runner.plan import Case, Plan
from runner.runfolder import Bandwidth, Record, RunFolder, read_json

PLANTED = Path(__file__).with_name("workloads_planted.py")
CPU = torch.device("cpu")


def case(name: str, workload: str, **axes: str | int) -> Case:
    return Case(id=name, folder=f"cases/{name}", workload=workload, axes=axes, deadline=60.0)


def collective(kind: str, *, call: str = "sync", dtype: str = "float32", op: str = "sum", **axes: str) -> Case:
    name = "-".join((kind, call, dtype, op, *axes.values()))
    return case(name, "collectives", kind=kind, call=call, dtype=dtype, op=op, size=4096, **axes)


def stress(workload: str, **axes: str | int) -> Case:
    return case(workload, workload, **{"dtype": "bfloat16", "size": 4096, **axes})


def planted(function: str, **axes: str | int) -> Case:
    return case("-".join((function, *map(str, axes.values()))), f"{PLANTED}:{function}", **axes)


# Values of a rank: 4096 bytes of the larger buffer are 1024 of float32, or half of them on the smaller side.
RIGHT = [
    (collective("all_reduce"), 1024),
    (collective("all_reduce", op="max"), 1024),
    (collective("all_reduce", dtype="int32"), 1024),
    (collective("all_reduce", dtype="bfloat16", call="async"), 2048),
    (collective("all_reduce", call="coalesced"), 1024),
    (collective("all_reduce", call="functional"), 1024),
    (collective("all_gather"), 1024),
    (collective("all_gather", place="in"), 1024),
    (collective("all_gather", call="coalesced"), 1024),
    (collective("all_gather", call="functional", dtype="bfloat16"), 2048),
    (collective("reduce_scatter"), 512),
    (collective("reduce_scatter", place="in"), 512),
    (collective("reduce_scatter", call="coalesced", op="max"), 512),
    (collective("reduce_scatter", call="functional"), 512),
    (collective("all_to_all", call="async"), 1024),
    (collective("all_to_all", call="functional"), 1024),
    (collective("broadcast", dtype="int32"), 1024),
    (collective("broadcast", call="functional"), 1024),
    (stress("back_to_back"), 2048),
    (stress("two_groups"), 4096),
    (stress("register_loop", rounds=3), 4 * 2048),
]
INCAPABLE = [
    (collective("all_reduce", dtype="float8_e4m3fn"), "float8_e4m3fn is reduced by NCCL only"),
    (collective("all_gather", call="side-stream"), "a side stream needs a GPU"),
    (case("graph", "back_to_back", dtype="float32", size=4096, graph="yes"), "a CUDA graph needs a GPU"),
    (case("early", "back_to_back", dtype="float32", size=4096, producer="early"), "from compute capability 9.0 on"),
    (stress("nested_pools", inner="symmetric"), "a memory pool needs a GPU"),
    (stress("two_threads"), "the pool set-up none has no pool"),
    (stress("symm_mem_ops", algorithm="one-shot"), "torch's symmetric memory needs a GPU"),
    (stress("bandwidth", kind="all_gather"), "bandwidth needs GPUs"),
]
WRONG = [
    (planted("one_value_off", kind="all_reduce"), [0, 1]),
    (planted("one_value_off", kind="reduce_scatter"), [0, 1]),
    (planted("pieces_swapped", kind="all_gather"), [300, 300]),
    (planted("pieces_swapped", kind="all_to_all"), [300, 300]),
    (planted("nothing_done", kind="broadcast"), [0, 300]),
    (planted("one_stale_round", size=4096), [300, 300]),
]
GATHER, GROWTH = collective("gather"), stress("pool_growth")


def by_id(cases: list) -> list:
    return [pytest.param(case, value, id=case.id) for case, value in cases]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """One run of two ranks with all the cases below."""
    path = tmp_path_factory.mktemp("run") / "run"
    cases = [case for case, _ in [*RIGHT, *INCAPABLE, *WRONG]]
    plan = Plan(ranks=2, device="cpu", backend="gloo", steps=1, cases=[GATHER, GROWTH, *cases])
    starts = run_plan(plan, path, python=sys.executable)
    assert [start.end.ended for start in starts] == ["finished"]
    return RunFolder(path)


def records(folder: RunFolder, case: Case) -> list[Record]:
    found = folder.records(case)
    return [found[rank] for rank in (0, 1)]


@pytest.mark.slow
class TestOneRun:
    @pytest.mark.parametrize(("case", "values"), by_id(RIGHT))
    def test_the_values_are_right_and_all_are_looked_at(self, folder: RunFolder, case: Case, values: int) -> None:
        for record in records(folder, case):
            assert (record.outcome, record.message) == ("ok", None)
            assert record.values is not None
            assert (record.values.checked, record.values.wrong, record.values.max_error) == (values, 0, 0.0)

    @pytest.mark.parametrize(("case", "reason"), by_id(INCAPABLE))
    def test_what_needs_a_gpu_says_so(self, folder: RunFolder, case: Case, reason: str) -> None:
        for record in records(folder, case):
            assert record.outcome == "incapable" and reason in (record.message or "")

    @pytest.mark.parametrize(("case", "fewest"), by_id(WRONG))
    def test_a_planted_error_is_found(self, folder: RunFolder, case: Case, fewest: list[int]) -> None:
        for record, expected in zip(records(folder, case), fewest, strict=True):
            assert record.values is not None
            assert record.outcome == ("wrong-values" if expected else "ok")
            assert record.values.wrong == expected if expected <= 1 else record.values.wrong >= expected

    def test_a_gather_is_checked_where_it_arrives(self, folder: RunFolder) -> None:
        root, other = records(folder, GATHER)
        assert (root.outcome, other.outcome) == ("ok", "ok")
        assert root.values is not None and other.values is not None
        assert (root.values.checked, other.values.checked) == (1024, 512)

    def test_a_growing_pool_has_a_new_buffer_each_time(self, folder: RunFolder) -> None:
        for record in records(folder, GROWTH):
            # 5 steps (one to allocate, one watched, one not traced, one to warm up, one traced) of 4 buffers.
            assert record.outcome == "ok" and record.values is not None
            assert record.values.checked == sum(range(1, 21)) * 2048

    @pytest.mark.parametrize(
        ("case", "roles"),
        [
            (collective("all_reduce"), {"in-place": 4096}),
            (collective("all_gather", place="in"), {"input": 2048, "output": 4096}),
            (collective("reduce_scatter"), {"input": 4096, "output": 2048}),
            (collective("all_to_all", call="functional"), {"input": 4096, "output": 4096}),
        ],
        ids=lambda value: getattr(value, "id", ""),
    )
    def test_the_buffers_are_recorded(self, folder: RunFolder, case: Case, roles: dict[str, int]) -> None:
        for record in records(folder, case):
            assert {buffer.role: buffer.bytes for buffer in record.buffers} == roles
            assert {buffer.kind for buffer in record.buffers} == {case.axes["kind"]}
            assert {(buffer.phase, buffer.registration) for buffer in record.buffers} == {("forward", "none")}


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (("reduce", "sum", "both", "out", "sync"), "there is no kind 'reduce'"),
        (("all_gather", "xor", "both", "out", "sync"), "there is no op 'xor'"),
        (("all_gather", "sum", "left", "out", "sync"), "there is no registered 'left'"),
        (("all_gather", "sum", "both", "over", "sync"), "there is no place 'over'"),
        (("all_gather", "sum", "both", "out", "later"), "there is no call 'later'"),
        (("all_reduce", "sum", "both", "out", "sync"), "all_reduce in place only"),
        (("broadcast", "sum", "input", "in", "sync"), "broadcast in place only"),
        (("all_to_all", "sum", "both", "in", "sync"), "no sync all_to_all in place"),
        (("all_gather", "sum", "both", "in", "functional"), "no functional all_gather in place"),
        (("gather", "sum", "both", "out", "coalesced"), "no coalesced gather"),
    ],
)
def test_a_call_that_torch_lacks_is_refused(axes: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        refuse_what_torch_lacks(*axes)


def test_only_the_side_named_is_made_in_the_pool() -> None:
    inside: list[bool] = []
    made: dict[str, list[bool]] = {}

    @contextlib.contextmanager
    def use() -> Iterator[None]:
        inside.append(True)
        yield

    for registered in ("both", "input", "output", "none"):
        for kind in ("all_gather", "reduce_scatter", "all_to_all", "all_reduce"):
            inside.clear()
            pool = Pool("static", around_buffer=use)
            fake = type("Rank", (), {"rank": 1, "world_size": 2, "device": CPU})
            call = collectives.make_call(fake, pool, kind, torch.float32, "sum", 4096, registered, "out", 0)
            made[f"{kind}/{registered}"] = list(inside)
            assert max(call.input.nbytes, call.output.nbytes) == 4096
    assert {name: len(times) for name, times in made.items()} == {
        "all_gather/both": 2, "reduce_scatter/both": 2, "all_to_all/both": 2, "all_reduce/both": 1,
        "all_gather/input": 1, "reduce_scatter/input": 1, "all_to_all/input": 1, "all_reduce/input": 1,
        "all_gather/output": 1, "reduce_scatter/output": 1, "all_to_all/output": 1, "all_reduce/output": 0,
        "all_gather/none": 0, "reduce_scatter/none": 0, "all_to_all/none": 0, "all_reduce/none": 0,
    }  # fmt: skip


# ---- values ----------------------------------------------------------------------------------------------------------


def test_known_values_repeat_with_their_period_and_differ_by_seed() -> None:
    values = known_values(PERIOD + 10, 3, torch.float32, CPU)
    assert values[:10].equal(values[PERIOD:]) and values.unique().tolist() == [0, 1, 2]
    assert (values[:1000] != known_values(1000, 4, torch.float32, CPU)).sum() > 500
    # A shift by any block of bytes must show.
    assert all((values[:4096] != values.roll(-shift)[:4096]).sum() > 2000 for shift in (1, 3, 128, 4096, 1 << 19))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2", "int32"])
def test_known_values_and_their_sum_are_exact_where_no_rounding_is_allowed(dtype: str) -> None:
    element = getattr(torch, dtype)
    for ranks in (2, 4, 8, 100):
        if rounding(element, "sum", ranks) == 0.0:
            total = combined(range(ranks), "sum")
            assert total.to(torch.float32).to(element).to(torch.float64).equal(total)


def test_rounding_is_allowed_only_where_it_happens() -> None:
    assert rounding(torch.bfloat16, "sum", 128) == 0.0 < rounding(torch.bfloat16, "sum", 129)
    assert rounding(torch.float8_e5m2, "sum", 4) == 0.0 < rounding(torch.float8_e5m2, "sum", 5)
    assert rounding(torch.float8_e5m2, "max", 1000) == rounding(torch.int32, "sum", 1000) == 0.0
    assert rounding(torch.bfloat16, "sum", 1) == 0.0
    # One value wrong by one must still show in an average over a few ranks.
    assert 0.0 < rounding(torch.bfloat16, "avg", 4) < 0.25


@pytest.mark.parametrize(("op", "combine"), [("sum", sum), ("max", max), ("min", min), ("avg", lambda v: sum(v) / 3)])
def test_the_reference_is_the_reduction(op: str, combine) -> None:
    got = combined([5, 6, 7], op)[:50].tolist()
    parts = [known_values(50, seed, torch.float64, CPU).tolist() for seed in (5, 6, 7)]
    assert got == pytest.approx([combine(values) for values in zip(*parts, strict=True)])


# ---- stress ----------------------------------------------------------------------------------------------------------


def test_growth_of_gpu_memory_is_told() -> None:
    mebi = 1 << 20
    register_loop.refuse_growth([0, 100 * mebi, 100 * mebi, 90 * mebi, 100 * mebi, 100 * mebi, 132 * mebi])
    register_loop.refuse_growth([5 * mebi])
    with pytest.raises(MemoryError, match="90 MiB of GPU memory were lost in 51 registrations"):
        register_loop.refuse_growth([2 * mebi * number for number in range(51)])


def test_the_early_producer_is_for_float32_only() -> None:
    with pytest.raises(ValueError, match=r"early for float32, and not early for torch\.bfloat16"):
        back_to_back.make_producer("early", torch.bfloat16, CPU)
    with pytest.raises(ValueError, match="not late for"):
        back_to_back.make_producer("late", torch.float32, CPU)


class FakeCase:
    """What a workload needs before it communicates."""

    device, rank, world_size = CPU, 0, 2


def refusing_pool(message: str | None) -> Pool:
    """A pool that a second thread may not enter, with this message; or may, without one."""
    main = threading.get_ident()

    @contextlib.contextmanager
    def use() -> Iterator[None]:
        if message is not None and threading.get_ident() != main:
            raise RuntimeError(message)
        yield

    return Pool("static", Memory(CPU), around_buffer=use)


@pytest.mark.parametrize(
    ("message", "told"),
    [(None, "the rule that forbids it is gone"), ("no memory", "but with other words: no memory")],
)
def test_a_pool_that_lets_a_second_thread_in_is_told(message: str | None, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        two_threads.two_threads(FakeCase(), refusing_pool(message), dtype="float32", size=64)


def test_the_refusal_of_the_second_thread_is_recognised() -> None:
    refused = two_threads.enter_on_another_thread(
        refusing_pool("beginAllocateToPool: already recording to mempool_id"), torch.ones(1)
    )
    assert refused is not None and two_threads.REFUSAL in str(refused)


def test_nested_pools_need_a_gpu() -> None:
    with pytest.raises(Incapable, match="a memory pool needs a GPU"):
        nested_pools.nested_pools(FakeCase(), Pool("static"), dtype="float32", size=64, inner="ordinary")


# ---- bandwidth -------------------------------------------------------------------------------------------------------


def test_sizes_grow_up_to_the_one_asked_for() -> None:
    sizes = bandwidth.sizes_up_to(1 << 30)
    assert sizes[:3] == [2048, 8192, 32768] and sizes[-2:] == [512 << 20, 1 << 30] and len(sizes) == 11
    assert bandwidth.sizes_up_to(2048) == [2048]
    assert bandwidth.sizes_up_to(8 << 20)[-1] == 8 << 20


@pytest.mark.parametrize(
    ("kind", "ranks", "expected"),
    # A GB in a millisecond is 1000 GB/s of algorithm bandwidth.
    [("all_reduce", 2, 1000), ("all_reduce", 8, 1750), ("all_gather", 4, 750), ("reduce_scatter", 2, 500)],
)
def test_bus_bandwidth_is_counted_as_nccl_tests_does(kind: str, ranks: int, expected: float) -> None:
    entry = bandwidth.entry(kind, "symmetric", 1_000_000_000, 1000.0, ranks)
    assert entry["busbw_gbps"] == pytest.approx(expected)
    assert bandwidth.entry(kind, "general", 2048, 0.0, ranks)["busbw_gbps"] == 0.0


def test_a_record_of_bandwidth_is_read(tmp_path: Path) -> None:
    from checks.record import Record as Written

    written = Written(tmp_path, "bandwidth/all_gather", rank=0, start=0)
    written.content["bandwidth"] = [bandwidth.entry("all_gather", "general", 2048, 10.0, 2)]
    written.finish("ok")
    read = read_json(written.path, Record)
    assert read.bandwidth == [
        Bandwidth(kind="all_gather", bytes=2048, mechanism="general", time_us=10.0, busbw_gbps=0.102)
    ]


@pytest.mark.parametrize(("gpus", "shared"), [(["GPU-1", "GPU-1"], True), (["GPU-1", "GPU-2"], False)])
def test_ranks_that_share_a_gpu_have_no_bandwidth(
    monkeypatch: pytest.MonkeyPatch, gpus: list[str], shared: bool
) -> None:
    class Store:
        posted: dict[str, str]

        def post(self, topic: str, **answer: str) -> None:
            self.posted = answer

        def gather(self, topic: str, seconds: float) -> dict[int, dict]:
            return {0: self.posted, 1: {"gpu": gpus[1]}}

    fake = type("Rank", (), {"id": "b", "deadline": 1.0, "world_size": 2, "device": torch.device("cuda", 0)})()
    fake.control = Store()
    monkeypatch.setattr(bandwidth, "describe_device", lambda index: {"uuid": gpus[0]})
    with pytest.raises(Incapable, match="share 1 GPU") if shared else contextlib.nullcontext():
        bandwidth.refuse_shared_gpus(fake)
