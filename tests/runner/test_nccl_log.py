"""NCCL's log as each version writes it, and as nobody should: read, and held against the traces."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.errors import UserError
from runner.judge.witness import CaseWitness, ProcessLog, case_witness, witness
from runner.model import Collective
from runner.nccl_log import (
    LONGEST_TEXT,
    MOST_SORTS,
    MOST_WARNINGS,
    Communicator,
    LogCall,
    NcclLog,
    log_path,
    log_variables,
    read_log,
)
from runner.run import REPLAY
from runner.trace.collectives import read_collectives

ROOT = Path(__file__).parents[2]
PREFIX = "node-1:4242:4242 [0] NCCL INFO "
WARNING = "\n[2026-03-01 10:20:30] node-1:4242:4300 [0] enqueue.cc:812 (ncclLaunchKernel) NCCL WARN "

# What the versions print for an all-reduce on each mechanism, from the format strings in NCCL's sources.
SYMMETRIC = "AllReduce [Symmetric]: 8388608 Bytes -> Kernel AllReduce_RSxLD_AGxST nchannels 32 nthreads 512"
GENERAL = "AllReduce: 8388608 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}"
VERSIONS = {
    "2.27.7": (SYMMETRIC, GENERAL),
    "2.28.9": (f"{SYMMETRIC} nWorks 1", GENERAL),
    "2.29.7": (f"{SYMMETRIC} nWorks 1", GENERAL),
    "2.30.7": (f"{SYMMETRIC} nWorks 2", GENERAL),
    "2.31.2": (f"{SYMMETRIC} nWorks 1 cgaClusterSize 2", f"{GENERAL} cgaClusterSize 4"),
}
COPY = "AllGather [Copy Engine]: 8388608 Bytes -> cudaMemcpy; CE synchronization with NVLS"
OVER_NETWORK = "AllGather [Hierarchical CE]: 8388608 Bytes -> RMA proxy + CE"
CALL = (
    "AllReduce: opCount 1f sendbuff 0x7f0000000000 recvbuff 0x7f0000000000 count 4194304 datatype 9 op {} root 0 "
    "comm 0x55d0c0ffee00 [nranks=2] stream 0x55d0c0ffee80"
)


def written(tmp_path: Path, *messages: str, version: str = "2.30.7") -> Path:
    path = tmp_path / "nccl.4242.log"
    lines = [f"NCCL version {version}+cuda13.0", *messages]
    path.write_text("".join(f"{line if line.startswith(chr(10)) else PREFIX + line}\n" for line in lines))
    return path


def reading(tmp_path: Path, *messages: str, version: str = "2.30.7") -> NcclLog:
    return read_log(written(tmp_path, *messages, version=version))


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_tells_symmetric_from_general(tmp_path: Path, version: str) -> None:
    symmetric, general = VERSIONS[version]
    log = reading(tmp_path, symmetric, general, general, version=version)
    assert log.facts.version == version
    assert log.calls == {
        LogCall("all_reduce", "nccl-symmetric", "RSxLD_AGxST", 8388608): 1,
        LogCall("all_reduce", "nccl", None, 8388608): 2,
    }


def test_copy_engines_are_told(tmp_path: Path) -> None:
    log = reading(tmp_path, COPY, OVER_NETWORK, "AllGather [Copy Engine]: 8388608 Bytes -> cudaMemcpy")
    assert log.calls == {LogCall("all_gather", "nccl-copy-engine", None, 8388608): 3}


def test_what_is_no_choice_of_a_kernel_is_not_counted(tmp_path: Path) -> None:
    log = reading(
        tmp_path,
        CALL.format(0),
        "Symmetric VA size=128GB",
        "8388608 Bytes -> Algo 1 proto 2 time 12.5",  # as 2.21 had it, without the function
        f"NCCL_SYM_KERNEL set by environment to {SYMMETRIC}",
        "Best tuning { .func = AllReduce, .symKernelId = AllReduce_RSxLD_AGxST, .ceMethodId = 0 }",
    )
    assert log.calls == {}


def test_why_a_communicator_has_no_symmetric_memory(tmp_path: Path) -> None:
    texts = {
        "Symmetric memory is not supported. cuMemEnable 1, ginSupport 0, globalNicFused 1": {
            "cuMemEnable": 1, "ginSupport": 0, "globalNicFused": 1,
        },
        "Symmetric memory is not supported. cuMemEnable 0, globalGinSupport 0, globalNicFused 0 cuMemGdrSupport 1": {
            "cuMemEnable": 0, "globalGinSupport": 0, "globalNicFused": 0, "cuMemGdrSupport": 1,
        },
        "symmetricSupport 0, cuMemEnable 1, globalGinSupport 0, cuMemGdrSupport 1, contiguousRanksPerHost 1, "
        "crossNicSupport 0": {
            "symmetricSupport": 0, "cuMemEnable": 1, "globalGinSupport": 0, "cuMemGdrSupport": 1,
            "contiguousRanksPerHost": 1, "crossNicSupport": 0,
        },
    }  # fmt: skip
    facts = reading(tmp_path, *texts, "symmetricSupport 1, cuMemEnable 1, globalGinSupport 0").facts
    assert facts.unsupported == tuple(texts.values())
    assert facts.unsupported_text == next(iter(texts))


def test_what_a_log_says_of_the_machine(tmp_path: Path) -> None:
    facts = reading(
        tmp_path,
        "NCCL_CUMEM_ENABLE set by environment to 0.",
        "NCCL_ALGO set by environment to ring,tree",
        "comm 0x5639e9f0e8c0 rank 3 nRanks 24 nNodes 3 localRanks 8 localRank 3 MNNVL 0",
        "comm 0x5639e9f0e8d0 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 1",
        "Check P2P Type isAllDirectP2p 0 directMode 0 isAllCudaP2p 1",
    ).facts
    assert facts.variables == {"NCCL_CUMEM_ENABLE": "0", "NCCL_ALGO": "ring,tree"}
    assert facts.communicators == (Communicator(3, 24, 3, False), Communicator(0, 2, 1, True))
    assert facts.p2p == ({"isAllDirectP2p": 0, "directMode": 0, "isAllCudaP2p": 1},)


def test_ops_are_read_from_the_calls(tmp_path: Path) -> None:
    facts = reading(tmp_path, *(CALL.format(op) for op in (0, 4, 2, 0, 7))).facts
    assert facts.ops == {"all_reduce": frozenset({"sum", "avg", "max", "made by the caller"})}


def test_warnings_are_kept_once_and_short(tmp_path: Path) -> None:
    text = "ncclSymkGetKernelIndex: unknown red op 4 for id 3"
    old = "\nnode-1:4242:4300 [0] enqueue.cc:812 NCCL WARN an older version's, without a time"
    facts = reading(tmp_path, WARNING + text, WARNING + text, old, WARNING + "x" * 2000 + "\x1b[31m").facts
    assert facts.warnings[:2] == (text, "an older version's, without a time")
    assert len(facts.warnings) == 3
    assert len(facts.warnings[2]) == LONGEST_TEXT


def test_control_characters_do_not_come_through(tmp_path: Path) -> None:
    (text,) = reading(tmp_path, WARNING + "red \x1b[31m\u202e\x00 text").facts.warnings
    assert text == "red  [31m   text"


def test_a_window_has_its_own_calls_and_the_set_up_of_all(tmp_path: Path) -> None:
    symmetric, general = VERSIONS["2.30.7"]
    set_up = "comm 0x5639e9f0e8c0 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0"
    path = written(tmp_path, set_up, CALL.format(2), general)
    begin = path.stat().st_size
    with path.open("a") as file:
        file.write(f"{PREFIX}{CALL.format(0)}\n{PREFIX}{symmetric}\n")
    end = path.stat().st_size
    with path.open("a") as file:
        file.write(f"{PREFIX}{general}\n{WARNING}later\n")
    part = ProcessLog(tmp_path, 4242).part((begin, end))
    assert part.calls == {LogCall("all_reduce", "nccl-symmetric", "RSxLD_AGxST", 8388608): 1}
    assert part.facts.ops == {"all_reduce": frozenset({"sum"})}
    assert part.facts.communicators == (Communicator(0, 2, 1, False),)
    assert part.facts.version == "2.30.7"
    assert not part.facts.warnings
    assert ProcessLog(tmp_path, 4242).part((begin, None)).facts.warnings == ("later",)


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    assert not ProcessLog(tmp_path, 1).exists
    with pytest.raises(UserError, match=r"nccl\.1\.log: can't be read"):
        ProcessLog(tmp_path, 1).part(None)


# Beside the trace ---------------------------------------------------------------------------------------------------


def row(mechanism: str = "nccl", kind: str = "all_reduce", **changes: Any) -> Collective:
    known: dict[str, Any] = {
        "rank": 0, "step": 1, "phase": "forward", "kind": kind, "mechanism": mechanism, "multicast": None,
        "symmetric": mechanism != "nccl", "algorithm": "RSxLD_AGxST" if mechanism == "nccl-symmetric" else None,
        "dtype": "bfloat16", "bytes": 8388608, "group": "default_pg", "group_size": 2, "start": 0.0, "duration": 1.0,
        "kernel": None, "calls": 1, "why": "",
    }  # fmt: skip
    return Collective(**(known | changes))


def window(tmp_path: Path, *messages: str, version: str = "2.30.7") -> NcclLog:
    return reading(tmp_path, *messages, version=version)._replace(whole=False)


SYM, GEN = VERSIONS["2.30.7"]


@pytest.mark.parametrize(
    ("messages", "rows", "said"),
    [
        ([SYM, SYM, GEN], [row("nccl-symmetric"), row("nccl-symmetric"), row()], []),
        ([SYM, SYM], [row(), row()], ["all_reduce: NCCL's log has 2 symmetric, the trace 2 general"]),
        (
            [SYM, GEN],
            [row("nccl-symmetric")],
            ["all_reduce: NCCL's log has 1 symmetric and 1 general, the trace 1 symmetric"],
        ),
        ([GEN], [row(), row(kind="reduce_scatter")], ["reduce_scatter: NCCL's log has none, the trace 1 general"]),
        # one general kernel for three calls has three lines, one symmetric kernel has one
        ([GEN, GEN, GEN], [row(calls=3)], []),
        ([SYM], [row("nccl-symmetric", calls=3)], []),
        ([COPY], [row("nccl-copy-engine", "all_gather")], []),
        ([COPY], [row("nccl", "all_gather")], ["all_gather: NCCL's log has 1 copy engine, the trace 1 general"]),
        # send/recv and what is made of it leave no line; a group of one rank has no kernel
        ([GEN], [row(), row(kind="all_to_all"), row(kind="send_recv"), row(group_size=1)], []),
        # what is not NCCL's, NCCL does not log
        ([GEN], [row(), row("torch-symm-mem")], []),
        # of coalesced calls the trace has no kind, so the general ones can't be counted; the symmetric ones can
        ([GEN, GEN, GEN], [row(), row(kind="unknown", calls=2)], []),
        ([GEN, SYM], [row(), row(kind="unknown")], ["all_reduce: NCCL's log has 1 symmetric, the trace none"]),
        (
            [SYM],
            [row("nccl-symmetric", algorithm="AGxLL_R")],
            ["all_reduce: NCCL's log names RSxLD_AGxST, the trace AGxLL_R"],
        ),
        ([], [row()], ["NCCL's log has no line on the collectives of the trace (a replayed CUDA graph leaves none)"]),
        ([SYM], [], []),
    ],
)  # fmt: skip
def test_log_and_trace_of_the_same_steps(
    tmp_path: Path, messages: Sequence[str], rows: Sequence[Collective], said: list[str]
) -> None:
    assert witness(window(tmp_path, *messages), rows) == said


def test_a_recorded_trace_beside_the_log_it_would_have_left(tmp_path: Path) -> None:
    """The pool around a whole step, two steps: forward is symmetric, backward is not."""
    rows = read_collectives(REPLAY / "cases" / "all_reduce" / "step" / "rank0.trace.json.gz").collectives
    assert witness(window(tmp_path, SYM, GEN, SYM, GEN), rows) == []
    assert witness(window(tmp_path, SYM, SYM, SYM, GEN), rows) == [
        "all_reduce: NCCL's log has 3 symmetric and 1 general, the trace 2 symmetric and 2 general"
    ]


def test_a_whole_log_has_other_steps_too(tmp_path: Path) -> None:
    log = reading(tmp_path, SYM, SYM, SYM, GEN)
    assert witness(log, [row("nccl-symmetric")]) == []
    assert witness(log, [row("nccl-copy-engine")]) == [
        "all_reduce: NCCL's log has 3 symmetric and 1 general, the trace 1 copy engine"
    ]


def test_copy_engines_are_not_missed_where_nccl_does_not_log_them(tmp_path: Path) -> None:
    rows = [row("nccl-copy-engine", "all_gather"), row()]
    assert witness(window(tmp_path, GEN, version="2.28.9"), rows) == []
    assert witness(window(tmp_path, GEN, version="2.29.7"), rows) == [
        "all_gather: NCCL's log has none, the trace 1 copy engine"
    ]


def test_a_case_has_its_own_part_of_the_log(tmp_path: Path) -> None:
    path = written(tmp_path, GEN, WARNING + "of the case before")
    begin = path.stat().st_size
    with path.open("a") as file:
        file.write(f"{PREFIX}{SYM}\n{WARNING}ncclSymkGetKernelIndex: unknown red op 4 for id 3\n")
    log = ProcessLog(tmp_path, 4242)
    found = case_witness(log, (begin, path.stat().st_size), [row()])
    assert found.disagreements == ["all_reduce: NCCL's log has 1 symmetric, the trace 1 general"]
    assert found.facts is not None
    assert found.facts.version == "2.30.7"
    died = case_witness(log, (begin, None), [])
    assert died.warnings == ["NCCL warned: ncclSymkGetKernelIndex: unknown red op 4 for id 3"]
    assert died.disagreements == []


def test_a_case_without_log_or_place_in_it_has_no_witness(tmp_path: Path) -> None:
    nothing = CaseWitness([], [], None)
    assert case_witness(ProcessLog(tmp_path, 1), (0, 10), [row()]) == nothing
    written(tmp_path, GEN)
    assert case_witness(ProcessLog(tmp_path, 4242), None, [row("nccl-symmetric")]) == nothing


# Hostile text -------------------------------------------------------------------------------------------------------


def test_a_log_without_end_takes_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "nccl.4242.log"
    with path.open("w") as file:
        file.write("x" * 8_000_000 + "\n")
        for number in range(2 * MOST_SORTS):
            file.write(f"{PREFIX}AllReduce: {number} Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..0}}\n")
            file.write(f"{PREFIX}NCCL_X{number} set by environment to {'y' * 150}\n{WARNING}{number} {'z' * 150}\n")
        file.write(f"{PREFIX}{GEN}")
    tracemalloc.start()
    log = read_log(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8_000_000
    assert len(log.calls) == MOST_SORTS
    assert len(log.facts.warnings) == MOST_WARNINGS
    assert log.cut is not None
    assert witness(log, [row()]) == [f"NCCL's log can't be compared: {log.cut}"]


def test_a_line_that_is_too_long_hides_no_other(tmp_path: Path) -> None:
    log = reading(tmp_path, "a" * 100_000 + GEN, GEN)
    assert sum(log.calls.values()) == 1


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=300),
            st.text(max_size=200).map(lambda text: (PREFIX + text).encode("utf-8", "surrogatepass")),
        )
    )
)
def test_no_text_breaks_the_reader(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.log"
    path.write_bytes(b"\n".join(lines) + f"\n{PREFIX}{GEN}\n".encode())
    log = read_log(path)
    assert log.calls[LogCall("all_reduce", "nccl", None, 8388608)] >= 1
    assert all(text.isprintable() for text in (*log.facts.warnings, *log.facts.variables.values()))


# The other half -----------------------------------------------------------------------------------------------------


def test_the_ranks_find_the_log_that_the_runner_asks_for(tmp_path: Path) -> None:
    """The runner's variables and path, and the ranks' own look at it, mean the same file."""
    folder = tmp_path / "50% of it"
    folder.mkdir()
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from checks.nccl_log import log_size\n"
        "before = log_size()\n"
        "path = os.path.join(sys.argv[2], f'nccl.{os.getpid()}.log')\n"
        "open(path, 'w').write('NCCL version 2.30.7\\n')\n"
        "print(os.getpid(), before, log_size())\n"
    )
    environment = {**os.environ, **log_variables(folder)}
    assert environment["NCCL_DEBUG"] == "INFO"
    output = subprocess.run(
        [sys.executable, "-c", code, str(ROOT), str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert output[1:] == ["None", "20"]
    assert read_log(log_path(folder, int(output[0]))).facts.version == "2.30.7"


def test_without_a_log_there_is_no_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from checks.nccl_log import log_size

    monkeypatch.delenv("NCCL_DEBUG_FILE", raising=False)
    assert log_size() is None
    monkeypatch.setenv("NCCL_DEBUG_FILE", str(tmp_path / "nccl.%h.%p.%x.log"))
    assert log_size() is None
