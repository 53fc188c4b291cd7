"""A plain, slow reading of one Kineto trace, to hold against the product's fast one.

It follows the same rules as `runner/trace`, written apart from it: the whole file through `json`, lists and
dicts, a scan of a thread's rows for every launch. It imports nothing of `runner`, so a fault there cannot hide
itself here. It reads valid traces only; how a damaged file is told or salvaged is the product's own business.
"""

from __future__ import annotations

import functools
import gzip
import json
import math
import re
from pathlib import Path

# Host rows that may enclose a launch. Old traces spell the first category "Operator".
CPU_OPS = ("cpu_op", "Operator")
LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime", "Runtime")

# torch's c10::ScalarType names as a trace spells them (c10/core/ScalarType.h) → torch's dtype names and bytes.
DTYPES = {
    "byte": ("uint8", 1),
    "char": ("int8", 1),
    "short": ("int16", 2),
    "int": ("int32", 4),
    "long": ("int64", 8),
    "half": ("float16", 2),
    "float": ("float32", 4),
    "double": ("float64", 8),
    "complexhalf": ("complex32", 4),
    "complexfloat": ("complex64", 8),
    "complexdouble": ("complex128", 16),
    "bool": ("bool", 1),
    "bfloat16": ("bfloat16", 2),
    "float8_e5m2": ("float8_e5m2", 1),
    "float8_e4m3fn": ("float8_e4m3fn", 1),
    "float8_e5m2fnuz": ("float8_e5m2fnuz", 1),
    "float8_e4m3fnuz": ("float8_e4m3fnuz", 1),
    "float8_e8m0fnu": ("float8_e8m0fnu", 1),
    "uint16": ("uint16", 2),
    "uint32": ("uint32", 4),
    "uint64": ("uint64", 8),
}

# In this order: "reduce_scatter" and "all_reduce" hold "reduce", "all_gather" holds "gather".
KINDS = (
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_reduce", r"all_?reduce"),
    ("all_gather", r"all_?gather"),
    ("all_to_all", r"all_?to_?all"),
    ("broadcast", r"broadcast"),
    ("gather", r"gather"),
    ("scatter", r"scatter"),
    ("reduce", r"reduce"),
    ("send_recv", r"\b(send|recv)"),
)
COPY_ENGINE_KINDS = ("all_gather", "all_to_all", "gather", "scatter")

NCCL_SYMMETRIC = re.compile(
    r"ncclSymk?DevKernel_(?:AllReduce|AllGather|ReduceScatter)_(\w+?)(?:_(?:sum|avg)_(?:f32|f16|bf16|f8e4m3|f8e5m2))?"
    r"(?:_profile)?(?:\(|$)"
)
NCCL_GENERAL = re.compile(r"nccl(?:Dev)?Kernel(?:Debug)?_|mscclKernel_")
NCCL_HOUSEKEEPING = re.compile(r"ncclDevKernelGinReset|diagP2p\w*Kernel|ncclProgressCounterCapture|oneRankReduce")
SYNCHRONISATION = re.compile(r"barrier|signal|(?:^|[^a-z])sync_on_stream", re.IGNORECASE)
TORCH_SYMM_MEM = re.compile(
    r"(?:^|[^a-z_])(?:multimem_(?:one_shot_)?all_reduce|multimem_all_gather|(?:one|two)_shot_all_reduce)_kernel"
    r"|nccl_extension::lsa_(?:put|get)|reduce_scatter_offset_kernel|all_gather_offset_\w+_kernel"
)
NVSHMEM = re.compile(
    r"nvshmem_extension|exchangeSplitAndOffset|(?:alltoall|broadcast|fcollect|rdxn|reducescatter)_on_stream_kernel"
)
LIBRARY_SYMMETRIC = re.compile(r"userbuffers|(?:one|two)shotAllreduce(?:Fusion)?Kernel|twoshot_allreduce_kernel|deep_ep::internode")
PEER_MAPPED = re.compile(
    r"cross_device_reduce|allreduce_prototype_twoshot|allreduce_LL_\dnode|allreduce_fusion_kernel|(?:one|two)ShotAllReduceKernel"
    r"|deep_ep::intranode"
)


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
        process.amd = _is_amd(header, process)
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
    row = {**event, "args": args, "cat": event.get("cat") or "", "name": str(event.get("name", ""))}
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


def _is_amd(header, process):
    """True where AMD's runtime or an AMD device made the trace, so that NCCL's names are RCCL's."""
    devices = [str(device.get("name", "")) for device in header.get("deviceProperties") or []]
    hip = any(row["name"].startswith("hip") for row in process.launches)
    return hip or any(re.search(r"\bAMD\b|Instinct|Radeon|gfx\d", name) for name in devices)


def _number(value):
    """A whole number of the trace's arguments, else None (NaN, text, missing)."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _joins(value):
    """A correlation or External id that can join two rows: a positive number, else None."""
    number = _number(value)
    return number if number is not None and number > 0 else None


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
            hosts.setdefault(row["pid"], _Process()).add(row)
    everything = list(hosts.values()) or [_Process()]
    for row in rows:
        if row.get("ph") == "M" or row["cat"] == "user_annotation":
            owner = hosts.get(row.get("pid")) or (everything[0] if len(everything) == 1 else None)
            if owner is not None:
                owner.add(row)
    gpus = {}
    for row in rows:
        if _is_gpu(row):
            gpus.setdefault(row.get("pid"), []).append(row)
    for gpu_rows in gpus.values():
        owner = max(everything, key=lambda process: process.claim(gpu_rows)) if len(everything) > 1 else everything[0]
        owner.gpu_rows += gpu_rows
    return everything


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
            if _joins(row["args"].get("correlation")) is not None:
                self.launch_of[_joins(row["args"]["correlation"])] = row
        else:
            self.threads.setdefault(row.get("tid"), []).append(row)
            if row["cat"] in CPU_OPS and _joins(row["args"].get("External id")) is not None:
                self.ops_of.setdefault(_joins(row["args"]["External id"]), []).append(row)

    def rows(self):
        return [row for thread in self.threads.values() for row in thread]

    def claim(self, gpu_rows):
        """How well these GPU rows fit this process: matching launches, then nearness in the file."""
        matches, nearness = 0, 0
        for row in gpu_rows:
            launch = self.launch_of.get(_joins(row["args"].get("correlation")))
            if launch is not None and launch["args"].get("External id") == row["args"].get("External id"):
                matches += 1
                distance = row["place"] - launch["place"]
                nearness -= distance if distance > 0 else 10**9
        return matches, nearness

    def locate(self, gpu_row):
        """Where the host launched this row: {"time", "tid", "graph", "direct"}, or None.

        First by correlation; where that tells nothing, by the CPU op of the same External id, unless that id only
        repeats the correlation, as old traces write it.
        """
        correlation = _joins(gpu_row["args"].get("correlation"))
        launch = self.launch_of.get(correlation)
        if launch is not None:
            graph = "GraphLaunch" in launch["name"]
            return {"time": launch["start"], "tid": launch.get("tid"), "graph": graph}
        external = _joins(gpu_row["args"].get("External id"))
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
                    copies.setdefault(id(innermost), (innermost, where, stack, []))[3].append(row)
                continue
            if under_record:
                claimed.add(id(innermost))
            collective = self.from_kernel(row, where, stack, innermost)
            if collective is not None:
                found.append(collective)
        for key, (record, where, stack, rows) in copies.items():
            if key not in claimed:
                found += self.from_copies(record, where, stack, rows)
        return found

    def from_kernel(self, row, where, stack, innermost):
        """The Collective of a kernel row, or None where it is none (then a barrier is counted)."""
        mechanism, algorithm, multicast = _mechanism(row["name"], innermost, self.amd)
        if mechanism is None:
            return None
        graph = where is not None and where["graph"]
        # A replayed graph has one launch for all its kernels: what stands around it describes none of them.
        sources = [] if graph else [frame for frame in stack if _is_call(frame)]
        records = [frame["args"] for frame in sources if frame["name"] == "record_param_comms"]
        if _is_barrier(row, sources):
            self.barriers += 1
            return None
        facts = {**(records[-1] if records else {}), **row["args"]}
        about = _about(facts)
        if about["group_size"] == 1:
            return None
        return {
            **about,
            "step": self.step(where),
            "phase": self.phase(where, stack),
            "kind": _kind(row, sources),
            "mechanism": mechanism,
            "symmetric": _symmetric(mechanism),
            "multicast": multicast,
            "algorithm": algorithm,
            "start": row["start"],
            "duration": row["duration"],
            "kernel": row["name"],
            "calls": self.calls(where, stack),
        }

    def from_copies(self, record, where, stack, rows):
        """The copy engine's Collective of one call's memcpy rows: none or one."""
        kind = _kind_of_word(record["args"].get("Collective name"))
        about = _about(record["args"])
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
        alone = [args for args in records if _number(args.get("Group size")) == 1]
        return sum(str(args.get("Collective name")) not in ("wait", "barrier") for args in alone)

    def calls(self, where, stack):
        """How many calls a kernel served: the tensors recorded on its thread since the last coalesced launch."""
        coalesced = [frame for frame in stack if frame["name"] == "nccl:coalesced"]
        if where is None or where["graph"] or not coalesced:
            return 1
        thread = self.threads[where["tid"]]
        earlier = [row["end"] for row in thread if row["name"] == "nccl:coalesced" and row["end"] <= coalesced[-1]["start"]]
        since = max(earlier, default=-math.inf)
        records = [
            row
            for row in thread
            if row["name"] == "record_param_comms" and since <= row["start"] and row["end"] <= coalesced[-1]["start"]
        ]
        waiting = [row["args"] for row in records if not self.launched_within(row) and _is_collective_call(row["args"])]
        return sum(map(_tensors, waiting)) or 1

    def launched_within(self, record):
        """True where something on the GPU was launched inside this row."""
        correlations = {_joins(row["args"].get("correlation")) for row in self.gpu_rows} - {None}
        inside = [
            row
            for row in self.launches
            if row.get("tid") == record.get("tid") and record["start"] <= row["start"] <= record["end"]
        ]
        return any(_joins(row["args"].get("correlation")) in correlations for row in inside)

    # ---- when it ran

    @functools.cached_property
    def steps(self):
        """The profiler steps as (number, row)."""
        named = [(re.fullmatch(r"ProfilerStep#(\d+)", row["name"]), row) for row in self.rows()]
        return [(int(match[1]), row) for match, row in named if match]

    @functools.cached_property
    def backward_frames(self):
        return [row for row in self.rows() if _is_backward_frame(row)]

    def step(self, where):
        """The number of the profiler step around the launch's time, whatever its thread."""
        around = [number for number, row in self.steps if where and row["start"] <= where["time"] < row["end"]]
        return around[0] if around else None

    def phase(self, where, stack):
        if where is None:
            return "unknown"
        inside = _phase_of_autograd(stack)
        if inside:
            return inside
        names = [frame["name"] for frame in stack]
        if "FSDP::root_post_backward_callback" in names or self.is_autograd_thread(where["tid"]):
            return "backward"
        if any(name.startswith("Optimizer.step") for name in names):
            return "optimizer"
        for frame in reversed(stack):
            named = _phases_named(frame["name"]) if frame["cat"] == "user_annotation" else set()
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


# ---- one row, one name


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


def _is_backward_frame(row):
    return row["cat"] in CPU_OPS and row["name"].startswith("autograd::engine::evaluate_function")


def _is_call(frame):
    return frame["name"] == "record_param_comms" or frame["name"].startswith("nccl:")


def _phase_of_autograd(stack):
    """"backward" or "recompute" under autograd's engine, else None."""
    engine = [place for place, frame in enumerate(stack) if _is_backward_frame(frame)]
    if not engine:
        return None
    below = [frame["args"] for frame in stack[engine[-1] + 1 :] if frame["cat"] in CPU_OPS]
    # A node of backward knows the thread of its forward op; an op that records a graph itself has 0 there.
    again = any("Sequence number" in args and _number(args.get("Fwd thread id")) == 0 for args in below)
    return "recompute" if again else "backward"


def _phases_named(name):
    """Which phases the name of a user annotation names."""
    lower = name.lower()
    words = {
        "forward": "forward" in lower or "fwd" in lower or "(F)" in name,
        "backward": "backward" in lower or "bwd" in lower or "(B)" in name or "(W)" in name,
        "optimizer": "optimizer" in lower,
    }
    return {phase for phase, named in words.items() if named}


def _kind_of_word(word):
    """The kind that one name tells ("_allgather_base", "nccl:all_reduce", "AllGather"), or None."""
    text = str(word or "").lower()
    for kind, pattern in KINDS:
        if re.search(pattern, text):
            return kind
    return None


def _kind(row, sources):
    """The kind of a kernel: its own argument, then the calls around its launch, then its name."""
    records = [frame["args"].get("Collective name") for frame in sources if frame["name"] == "record_param_comms"]
    marks = [frame["name"] for frame in sources if frame["name"].startswith("nccl:")]
    for word in (row["args"].get("Collective name"), *records[-1:], *marks[-1:]):
        kind = _kind_of_word(word)
        if kind is not None:
            return kind
    # NCCL runs all-to-all, gather and scatter by the SendRecv kernel (before 2.19 anything): that name tells nothing.
    if re.search(r"SendRecv|Generic", row["name"]):
        return "unknown"
    if re.search(r"two_shot_all_reduce_kernel\w*<[^<>]*(?:<[^<>]*>[^<>]*)*,\s*true\s*>", row["name"]):
        return "reduce_scatter"
    name = re.sub(r"\(.*", "", row["name"].replace("(anonymous namespace)", ""))
    return _kind_of_word(name) or "unknown"


def _is_barrier(row, sources):
    """True for NCCL's barrier, an all-reduce of one element made for its waiting."""
    words = [row["args"].get("Collective name")]
    words += [frame["args"].get("Collective name") for frame in sources if frame["name"] == "record_param_comms"][-1:]
    words += [frame["name"] for frame in sources if frame["name"].startswith("nccl:")][-1:]
    return any("barrier" in str(word) for word in words)


def _mechanism(name, innermost, amd):
    """(mechanism, algorithm, multicast) by a kernel's name, mechanism None where it is no collective."""
    library = "rccl" if amd else "nccl"
    symmetric = NCCL_SYMMETRIC.search(name)
    if symmetric:
        multicast = re.search(r"LLMC|LDMC|STMC|MCRing", symmetric[1]) is not None
        return f"{library}-symmetric", symmetric[1], multicast
    if NCCL_HOUSEKEEPING.search(name):
        return None, None, None
    if NCCL_GENERAL.search(name):
        return library, None, None
    if name.startswith("triton_"):
        return None, None, None
    if SYNCHRONISATION.search(re.sub(r"\(.*", "", name.replace("(anonymous namespace)", ""))):
        return None, None, None
    for mechanism, pattern in (
        ("torch-symm-mem", TORCH_SYMM_MEM),
        ("nvshmem", NVSHMEM),
        ("library-symmetric", LIBRARY_SYMMETRIC),
        ("peer-mapped", PEER_MAPPED),
    ):
        if pattern.search(name):
            return mechanism, None, "multimem" in name if mechanism == "torch-symm-mem" else None
    call = innermost["name"] if innermost is not None else ""
    if call == "record_param_comms" or call.startswith("symm_mem::"):
        return "unknown", None, None
    return None, None, None


def _symmetric(mechanism):
    if mechanism in ("peer-mapped", "unknown"):
        return None
    return mechanism not in ("nccl", "rccl")


def _about(args):
    """dtype, bytes, group and group_size by the arguments of a kernel or of `record_param_comms`."""
    spelled = str(args.get("dtype", "")).removeprefix("c10::")
    dtype, size = DTYPES.get(spelled.lower(), (None, None))
    counts = [_number(args.get("In msg nelems")), _number(args.get("Out msg nelems"))]
    known = size is not None and None not in counts
    return {
        "dtype": dtype,
        "bytes": max(counts) * size if known else None,
        "group": args.get("Process Group Description"),
        "group_size": _number(args.get("Group size")),
    }


def _is_collective_call(args):
    """True for the arguments of a call that several ranks take part in, so neither a wait nor a barrier."""
    word = str(args.get("Collective name", ""))
    return not re.search("wait|barrier|^coalesced$", word) and _number(args.get("Group size")) != 1


def _tensors(args):
    """How many tensors a `record_param_comms` was given: its first input's shapes, 1 where they weren't recorded."""
    shapes = (args.get("Input Dims") or [[]])[0]
    many = isinstance(shapes, list) and bool(shapes) and all(isinstance(shape, list) for shape in shapes)
    return len(shapes) if many else 1
