"""A plain, slow reading of one Kineto trace, to hold against the product's fast one.

It follows the same rules as `runner/trace`, written apart from it: the whole file through `json`, lists and
dicts, a scan of a thread's rows for every launch. It imports nothing of `runner`, so a fault there cannot hide
itself here. It reads valid traces only; how a damaged file is told or salvaged is the product's own business.
"""

from __future__ import annotations

import collections
import functools
import gzip
import json
import math
import re
from pathlib import Path

from tests.reference_names import (
    COPY_ENGINE_KINDS,
    CPU_OPS,
    about_call,
    is_backward_frame,
    is_barrier,
    is_call,
    is_collective_call,
    is_described_call,
    is_symmetric,
    joins,
    kind_of,
    kind_of_word,
    mechanism_of,
    moves_no_data,
    named_dtype,
    number,
    phase_of_autograd,
    phases_named,
    tensors,
)

LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime", "Runtime")


def read(path):
    """The JSON value of a trace file, gzipped any number of times or plain, with or without a byte-order mark."""
    data = Path(path).read_bytes()
    while data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    return json.loads(data.decode("utf-8-sig"))


def classify(trace):
    """All collectives of one trace (a path, or the JSON value), as plain dicts in order of `start`.

    Returns {"rank", "world_size", "one_rank_calls", "barrier_calls", "collectives"}; a collective has every field
    of the product's `Collective` but `why`. Raises ValueError where there is no list of events at all.
    """
    if not isinstance(trace, dict | list):
        trace = read(trace)
    header = trace if isinstance(trace, dict) else {"traceEvents": trace}
    if not isinstance(header.get("traceEvents"), list):
        raise ValueError("no traceEvents: not a Kineto trace")
    rows = [row for row in map(_row, header["traceEvents"]) if row is not None]
    processes = _processes(rows)
    merged = len(processes) > 1
    about = header.get("distributedInfo") or {}
    result = {
        "rank": None if merged else about.get("rank"),
        "world_size": about.get("world_size"),
        "one_rank_calls": 0,
        "barrier_calls": 0,
        "collectives": [],
    }
    for process in processes:
        process.amd = _is_amd(header, processes)
        found = process.collectives()
        result["barrier_calls"] += process.barriers
        result["one_rank_calls"] += process.one_rank_calls()
        result["collectives"] += [{"rank": result["rank"], **collective} for collective in found]
    result["collectives"].sort(key=lambda collective: collective["start"])
    return result


def _row(event):
    """The event with numbers as numbers, or None where it is neither a row with a time nor a thread's name."""
    if not isinstance(event, dict):
        return None
    args = event["args"] if isinstance(event.get("args"), dict) else {}
    name = event.get("name")
    row = {**event, "args": args, "cat": event.get("cat") or "", "name": name if isinstance(name, str) else ""}
    if event.get("ph") == "M":
        return row if row["name"] == "thread_name" else None
    if event.get("ph") != "X":
        return None
    try:
        row["start"], row["duration"] = float(event["ts"]), float(event.get("dur") or 0)
    except (KeyError, TypeError, ValueError):
        return None
    row["end"] = row["start"] + row["duration"]
    return row if math.isfinite(row["end"]) else None


def _is_gpu(row):
    return row["cat"] in ("kernel", "gpu_memcpy", "Kernel", "Memcpy")


def _is_amd(header, processes):
    """True where AMD's runtime or an AMD device made the trace, so that NCCL's names are RCCL's."""
    devices = [str(device.get("name", "")) for device in header.get("deviceProperties") or []]
    hip = any(row["name"].startswith("hip") for process in processes for row in process.launches)
    return hip or any(re.search(r"\bAMD\b|Instinct|Radeon|gfx\d", name) for name in devices)


def _processes(rows):
    """The trace's host processes, each with its own GPU rows.

    A file that one process wrote has one. In a merged file the ids of the ranks collide, so the GPU's rows are given,
    a GPU (pid) at a time, to the host process most of whose launches they match; a tie, as in two copies of the same
    step, goes to the process whose rows stand nearest before them in the file.
    """
    hosts = {}
    for place, row in enumerate(rows):
        row["place"] = place
        if row.get("ph") == "X" and (row["cat"] in LAUNCHES or row["cat"] in CPU_OPS):
            hosts.setdefault(row.get("pid"), _Process()).add(row)
    everything = list(hosts.values()) or [_Process()]
    for row in rows:
        if row.get("ph") == "M" or row["cat"] == "user_annotation":
            owner = hosts.get(row.get("pid"))
            if owner is not None:
                owner.add(row)
    gpus, nobody = {}, _Process()
    for row in rows:
        if _is_gpu(row) and not moves_no_data(row["name"]):
            gpus.setdefault(row.get("pid"), []).append(row)
    for gpu_rows in gpus.values():
        owner = max(everything, key=lambda process: process.claim(gpu_rows))
        if len(hosts) > 1 and owner.claim(gpu_rows)[0] == 0:
            nobody.gpu_rows += gpu_rows
        else:
            owner.gpu_rows += gpu_rows
    return [*everything, nobody] if nobody.gpu_rows else everything


class _Process:
    """One host process of a trace: its threads' rows, its launches, and what ran on its GPUs."""

    def __init__(self):
        self.threads = {}
        self.thread_names = {}
        self.stacks = {}
        self.launches = []
        self.launch_of = {}
        self.ops_of = {}
        self.gpu_rows = []
        self.amd = False
        self.barriers = 0

    def add(self, row):
        if row.get("ph") == "M":
            self.thread_names.setdefault(row.get("tid"), []).append(str(row["args"].get("name", "")))
        elif row["cat"] in LAUNCHES:
            self.launches.append(row)
            if joins(row["args"].get("correlation")) is not None:
                self.launch_of[joins(row["args"]["correlation"])] = row
        else:
            self.threads.setdefault(row.get("tid"), []).append(row)
            if is_described_call(row) and joins(row["args"].get("External id")) is not None:
                self.ops_of.setdefault(joins(row["args"]["External id"]), []).append(row)

    def rows(self):
        return [row for thread in self.threads.values() for row in thread]

    def claim(self, gpu_rows):
        """How well these GPU rows fit this process: matching launches, then nearness in the file."""
        matches, nearness = 0, 0
        for row in gpu_rows:
            launch = self.launch_of.get(joins(row["args"].get("correlation")))
            if launch is not None and launch["args"].get("External id") == row["args"].get("External id"):
                matches += 1
                distance = row["place"] - launch["place"]
                nearness -= distance if distance > 0 else 10**9
        return matches, nearness

    def locate(self, gpu_row):
        """Where the host launched this row: {"time", "tid", "graph"}, or None.

        First by correlation; where that tells nothing, by the call of the same External id, unless that id only
        repeats the correlation, as old traces write it.
        """
        correlation = joins(gpu_row["args"].get("correlation"))
        launch = self.launch_of.get(correlation)
        if launch is not None:
            graph = "GraphLaunch" in launch["name"]
            return {"time": launch["start"], "tid": launch.get("tid"), "graph": graph}
        external = joins(gpu_row["args"].get("External id"))
        ops = self.ops_of.get(external, [])
        if external != correlation and len(ops) == 1:
            return {"time": ops[0]["start"], "tid": ops[0].get("tid"), "graph": False}
        return None

    def stack(self, where):
        """The CPU ops and user annotations around a launch on its thread, outermost first."""
        tid, time = where["tid"], where["time"]
        if tid not in self.stacks:
            self.stacks[tid] = _sweep(self.threads.get(tid, []), self.times(tid))
        return self.stacks[tid][time]

    def times(self, tid):
        """Every time on a thread that a GPU row can be located at."""
        ops = [op for same in self.ops_of.values() for op in same]
        return {row["start"] for row in self.launches + ops if row.get("tid") == tid}

    # ---- what is a collective

    def collectives(self):
        found, claimed = [], set()
        copies = {}
        for row in self.gpu_rows:
            where = self.locate(row)
            stack = self.stack(where) if where else []
            ops = [frame for frame in stack if frame["cat"] in CPU_OPS]
            innermost = ops[-1] if ops else None
            under_record = innermost is not None and innermost["name"] == "record_param_comms"
            if row["cat"] in ("gpu_memcpy", "Memcpy"):
                if under_record and not where["graph"]:
                    copies.setdefault(id(innermost), (innermost, []))[1].append((row, where, stack))
                continue
            if under_record and not where["graph"]:
                claimed.add(id(innermost))
            collective = self.from_kernel(row, where, stack, innermost)
            if collective is not None:
                found.append(collective)
        for key, (record, copied) in copies.items():
            if key not in claimed:
                _, where, stack = min(copied, key=lambda one: one[0]["start"])
                found += self.from_copies(record, where, stack, [row for row, _, _ in copied])
        return found

    def from_kernel(self, row, where, stack, innermost):
        """The Collective of a kernel row, or None where it is none (then a barrier is counted)."""
        # A replayed graph has one launch for all its kernels: what stands around it describes none of them.
        graph = where is not None and where["graph"]
        mechanism, algorithm, multicast = mechanism_of(row["name"], None if graph else innermost, self.amd)
        if mechanism is None:
            return None
        sources = [] if graph else [frame for frame in stack if is_call(frame)]
        records = [frame["args"] for frame in sources if frame["name"] == "record_param_comms"]
        if is_barrier(row, sources):
            self.barriers += 1
            return None
        facts = {**(records[-1] if records else {}), **row["args"]}
        about = about_call(facts)
        if about["group_size"] == 1:
            return None
        return {
            **about,
            # A general kernel's name is a container that may serve several dtypes in one launch.
            "dtype": about["dtype"] or (named_dtype(row["name"]) if is_symmetric(mechanism) else None),
            "step": self.step(where),
            "phase": self.phase(where, stack),
            "kind": kind_of(row, sources),
            "mechanism": mechanism,
            "symmetric": is_symmetric(mechanism),
            "multicast": multicast,
            "algorithm": algorithm,
            "start": row["start"],
            "duration": row["duration"],
            "kernel": row["name"],
            "calls": self.calls(where, stack),
        }

    def from_copies(self, record, where, stack, rows):
        """The copy engine's Collective of one call's memcpy rows: none or one."""
        kind = kind_of_word(record["args"].get("Collective name"))
        about = about_call(record["args"])
        if kind not in COPY_ENGINE_KINDS or (about["group_size"] or 0) <= 1:
            return []
        start, end = min(row["start"] for row in rows), max(row["end"] for row in rows)
        return [
            {
                **about,
                "step": self.step(where),
                "phase": self.phase(where, stack),
                "kind": kind,
                "mechanism": "nccl-copy-engine",
                "symmetric": True,
                "multicast": None,
                "algorithm": None,
                "start": start,
                "duration": round(end - start, 3),
                "kernel": None,
                "calls": 1,
            }
        ]

    def one_rank_calls(self):
        """How many calls went to a group of one rank (waits and barriers apart)."""
        records = [row["args"] for row in self.rows() if row["name"] == "record_param_comms"]
        alone = [args for args in records if number(args.get("Group size")) == 1]
        return sum(str(args.get("Collective name")) not in ("wait", "barrier") for args in alone)

    def calls(self, where, stack):
        """How many calls a kernel served: the tensors recorded on its thread since the last coalesced launch."""
        windows = [frame for frame in stack if frame["name"].startswith("nccl:")]
        coalesced = [frame for frame in windows[-1:] if frame["name"] == "nccl:coalesced"]
        if where is None or where["graph"] or not coalesced:
            return 1
        if self.kernels_of_window[id(coalesced[-1])] > 1:
            return 1  # which of the calls this kernel served can't be told
        before = [row for row in self.threads[where["tid"]] if row["end"] <= coalesced[-1]["start"]]
        since = max((row["end"] for row in before if row["name"] == "nccl:coalesced"), default=-math.inf)
        records = [row for row in before if row["name"] == "record_param_comms" and since <= row["start"]]
        waiting = [row["args"] for row in records if not self.launched_within(row) and is_collective_call(row["args"])]
        return sum(map(tensors, waiting)) or 1

    @functools.cached_property
    def kernels_of_window(self):
        """How many kernels of collectives were launched in each `nccl:coalesced`."""
        counts = collections.Counter()
        for row in self.gpu_rows:
            where = self.locate(row)
            if row["cat"] in ("kernel", "Kernel") and where is not None and not where["graph"]:
                stack = self.stack(where)
                ops = [frame for frame in stack if frame["cat"] in CPU_OPS]
                if mechanism_of(row["name"], ops[-1] if ops else None, self.amd)[0] is not None:
                    counts.update([id(frame) for frame in stack if frame["name"] == "nccl:coalesced"][-1:])
        return counts

    def launched_within(self, record):
        """True where something on the GPU was launched inside this row."""
        correlations = {joins(row["args"].get("correlation")) for row in self.gpu_rows} - {None}
        inside = [
            row
            for row in self.launches
            if row.get("tid") == record.get("tid") and record["start"] <= row["start"] <= record["end"]
        ]
        return any(joins(row["args"].get("correlation")) in correlations for row in inside)

    # ---- when it ran

    @functools.cached_property
    def steps(self):
        """The profiler steps as (number, row)."""
        named = [(re.fullmatch(r"ProfilerStep#(\d+)", row["name"]), row) for row in self.rows()]
        return [(int(match[1]), row) for match, row in named if match]

    @functools.cached_property
    def backward_frames(self):
        return [row for row in self.rows() if is_backward_frame(row)]

    def step(self, where):
        """The number of the profiler step around the launch's time, whatever its thread."""
        around = [number for number, row in self.steps if where and row["start"] <= where["time"] < row["end"]]
        return around[0] if around else None

    def phase(self, where, stack):
        if where is None:
            return "unknown"
        inside = phase_of_autograd(stack)
        if inside:
            return inside
        names = [frame["name"] for frame in stack]
        if "FSDP::root_post_backward_callback" in names or self.is_autograd_thread(where["tid"]):
            return "backward"
        if any(name.startswith("Optimizer.step") for name in names):
            return "optimizer"
        for frame in reversed(stack):
            named = phases_named(frame["name"]) if frame["cat"] == "user_annotation" else set()
            if len(named) == 1:
                return named.pop()
        if where["graph"]:
            return "unknown"
        if self.is_after_backward(where["time"]):
            return "optimizer"
        return "forward" if any(row["cat"] in CPU_OPS for row in self.rows()) else "unknown"

    def is_autograd_thread(self, tid):
        return any("pt_autograd_" in name for name in self.thread_names.get(tid, []))

    def is_after_backward(self, time):
        """True after the last backward frame of the profiler step around `time`."""
        for _, step in self.steps:
            if step["start"] <= time < step["end"]:
                ends = [row["end"] for row in self.backward_frames if step["start"] <= row["start"] < step["end"]]
                return bool(ends) and time >= max(ends)
        return False


def _sweep(rows, times):
    """For each time the rows that hold it, outermost first: one pass over a thread's rows in order."""
    waiting = sorted(rows, key=lambda row: (row["start"], -row["duration"]), reverse=True)
    around, found = [], {}
    for time in sorted(times):
        while waiting and waiting[-1]["start"] <= time:
            around.append(waiting.pop())
        around = [row for row in around if row["end"] >= time]
        found[time] = list(around)
    return found
