"""What the bandwidth workload measured, put side by side, and the conclusion drawn from it."""

from __future__ import annotations

import pytest

from runner.judge.bandwidth import bandwidth_rows, conclusion, size_name
from runner.result import BandwidthRow
from runner.runfolder import Bandwidth

MIB = 2**20


def one(mechanism: str, size: int, time_us: float) -> Bandwidth:
    return Bandwidth(
        kind="all_reduce", bytes=size, mechanism=mechanism, time_us=time_us, busbw_gbps=size / time_us / 1e3
    )


def row(size: int, symmetric_us: float, general_us: float) -> BandwidthRow:
    [made] = bandwidth_rows([[one("symmetric", size, symmetric_us), one("general", size, general_us)]])
    return made


def test_a_collective_is_as_slow_as_its_slowest_rank() -> None:
    ranks = [
        [one("symmetric", MIB, 40.0), one("general", MIB, 45.0)],
        [one("symmetric", MIB, 50.0), one("general", MIB, 44.0)],
    ]
    [found] = bandwidth_rows(ranks)
    assert (found.symmetric_us, found.general_us) == (50.0, 45.0)
    assert found.symmetric_gbps == MIB / 50.0 / 1e3


def test_a_size_with_one_mechanism_alone_is_left_out() -> None:
    assert bandwidth_rows([[one("symmetric", MIB, 40.0)]]) == []


def test_where_symmetric_pays_and_from_where_it_costs() -> None:
    # Two H200s over NVLink without multicast: NCCL 2.30.7's all-reduce, see README.md.
    rows = [row(MIB, 36.2, 45.6), row(8 * MIB, 49.6, 47.7), row(64 * MIB, 319.6, 256.1), row(512 * MIB, 2386.0, 1715.0)]
    assert conclusion("all_reduce", rows) == (
        "all_reduce: symmetric is faster at 1 MiB and less (up to 1.3 times, at 1 MiB); it costs at 64 MiB and more "
        "(up to 28% of the bus bandwidth, at 512 MiB), where NCCL takes it all the same"
    )


def test_even_everywhere() -> None:
    rows = [row(MIB, 40.0, 40.0), row(8 * MIB, 100.0, 98.0)]
    assert conclusion("all_reduce", rows) == "all_reduce: symmetric and general are even at every size"


def test_faster_at_every_size() -> None:
    rows = [row(MIB, 20.0, 40.0), row(8 * MIB, 50.0, 98.0)]
    assert conclusion("all_reduce", rows) == "all_reduce: symmetric is faster at every size (up to 2.0 times, at 1 MiB)"


def test_a_kind_that_was_not_measured_has_no_conclusion() -> None:
    assert conclusion("all_gather", [row(MIB, 20.0, 40.0)]) is None


@pytest.mark.parametrize(
    ("size", "name"), [(2048, "2 KiB"), (8 * MIB, "8 MiB"), (3 * 2**29, "1.5 GiB"), (100, "100 B")]
)
def test_sizes_as_people_write_them(size: int, name: str) -> None:
    assert size_name(size) == name
