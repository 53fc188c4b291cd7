"""What single rows and names of a trace tell, for `reference.py`: kinds, mechanisms, phases named, arguments.

Written apart from the product's catalogue of kernel names, and simpler: it knows what the recorded traces hold
and the best-known libraries.
"""

from __future__ import annotations

import re

# Host rows that may enclose a launch. Old traces spell the first category "Operator".
CPU_OPS = ("cpu_op", "Operator")

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
    ("all_reduce", r"all_?reduce|cross_device_reduce"),
    ("all_gather", r"all_?gather"),
    ("all_to_all", r"all_?to_?all"),
    ("broadcast", r"broadcast"),
    ("gather", r"gather"),
    ("scatter", r"scatter"),
    ("reduce", r"reduce"),
    ("send_recv", r"send|recv"),
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
    r"(?:^|\W)(?:(multimem(?:_one_shot)?|one_shot|two_shot)_all_(?:reduce|gather)_kernel|"
    r"reduce_scatter_offset_kernel|all_gather_offset_\w+_kernel)"
)
OTHER_LIBRARIES = (
    (
        "nvshmem",
        re.compile(r"nvshmem_extension|(?:alltoall|broadcast|fcollect|rdxn|reducescatter)_on_stream_kernel"),
    ),
    (
        "library-symmetric",
        re.compile(r"userbuffers|(?:one|two)shotAllreduce(?:Fusion)?Kernel|twoshot_allreduce_kernel"),
    ),
    ("peer-mapped", re.compile(r"cross_device_reduce|allreduce_LL_\dnode|allreduce_fusion_kernel|ShotAllReduceKernel")),
)
# Integers are missing: general kernels run signed ones as unsigned.
NAMED_DTYPE = re.compile(
    r"nccl(?:Symk?)?DevKernel_\w*?_(bf16|f16|f32|f64|f8e4m3|f8e5m2)(?![a-z0-9])"
    r"|_shot_all_reduce_kernel\w*<(?:c10::)?(\w+)|multimem_\w+_kernel<(?:c10::)?(\w+)"
)
NAMED_DTYPES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "BFloat16": "bfloat16",
    "Half": "float16",
    "float": "float32",
}


def number(value):
    """A whole number of the trace's arguments, also one written as text, else None (NaN, 2.5, true, missing)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    try:
        return int(float(value)) if float(value).is_integer() else None
    except (TypeError, ValueError, OverflowError):
        return None


def amount(value):
    """A number of elements or ranks: not negative, and not more than there can be."""
    whole = number(value)
    return whole if whole is not None and 0 <= whole < 2**48 else None


def joins(value):
    """A correlation or External id that can join two rows: a positive number of 64 bits, else None."""
    whole = number(value)
    return whole if whole is not None and 0 < whole < 2**63 else None


def is_backward_frame(row):
    return row["cat"] in CPU_OPS and row["name"].startswith("autograd::engine::evaluate_function")


def is_call(frame):
    return frame["name"] == "record_param_comms" or frame["name"].startswith("nccl:")


def is_described_call(row):
    """True for the CPU ops that launch collectives themselves."""
    return row["cat"] in CPU_OPS and (row["name"] == "record_param_comms" or row["name"].startswith("symm_mem::"))


def phase_of_autograd(stack):
    """The phase of a launch under autograd's engine, backward or recompute, else None."""
    engine = [place for place, frame in enumerate(stack) if is_backward_frame(frame)]
    if not engine:
        return None
    below = [frame["args"] for frame in stack[engine[-1] + 1 :] if frame["cat"] in CPU_OPS]
    # A node of backward knows the thread of its forward op; an op that records a graph itself has 0 there.
    again = any("Sequence number" in args and number(args.get("Fwd thread id")) == 0 for args in below)
    return "recompute" if again else "backward"


def phases_named(name):
    """Which phases the name of a user annotation names."""
    lower = name.lower()
    words = {
        "forward": "forward" in lower or "fwd" in lower or "(F)" in name,
        "backward": "backward" in lower or "bwd" in lower or "(B)" in name or "(W)" in name,
        "optimizer": "optimizer" in lower,
    }
    return {phase for phase, named in words.items() if named}


def kind_of_word(word):
    """The kind that one name tells ("_allgather_base", "nccl:all_reduce", "AllGather"), or None."""
    text = str(word or "").lower()
    for kind, pattern in KINDS:
        if re.search(pattern, text):
            return kind
    return None


def kind_of(row, sources):
    """The kind of a kernel: its own argument, then the calls around its launch, then its name."""
    records = [frame["args"].get("Collective name") for frame in sources if frame["name"] == "record_param_comms"]
    marks = [frame["name"] for frame in sources if frame["name"].startswith("nccl:")]
    for word in (row["args"].get("Collective name"), *records[-1:], *marks[-1:]):
        kind = kind_of_word(word)
        if kind is not None:
            return kind
    # Before 2.19 NCCL ran any collective by its SendRecv kernel.
    if "ncclKernel_SendRecv" in row["name"]:
        return "unknown"
    if re.search(r"two_shot_all_reduce_kernel\w*<[^<>]*(?:<[^<>]*>[^<>]*)*,\s*true\s*>", row["name"]):
        return "reduce_scatter"
    name = re.sub(r"\(.*", "", row["name"].replace("(anonymous namespace)", ""))
    return kind_of_word(name) or "unknown"


def is_barrier(row, sources):
    """True for NCCL's barrier, an all-reduce of one element made for its waiting."""
    words = [row["args"].get("Collective name")]
    words += [frame["args"].get("Collective name") for frame in sources if frame["name"] == "record_param_comms"][-1:]
    words += [frame["name"] for frame in sources if frame["name"].startswith("nccl:")][-1:]
    return any("barrier" in str(word) for word in words)


def moves_no_data(name):
    """True for kernels known to be no collective: compute named after one, housekeeping, barriers and signals."""
    plain = re.sub(r"\(.*", "", name.replace("(anonymous namespace)", ""))
    housekeeping = NCCL_HOUSEKEEPING.search(name) or (not NCCL_SYMMETRIC.search(name) and SYNCHRONISATION.search(plain))
    return name.startswith("triton_") or bool(housekeeping)


def mechanism_of(name, innermost, amd):
    """(mechanism, algorithm, multicast) by a kernel's name, mechanism None where it is no collective."""
    library = "rccl" if amd else "nccl"
    plain = re.sub(r"\(.*", "", name.replace("(anonymous namespace)", ""))
    symmetric = NCCL_SYMMETRIC.search(name)
    if symmetric:
        multicast = re.search(r"LLMC|LDMC|STMC|MCRing", symmetric[1]) is not None
        return f"{library}-symmetric", symmetric[1], multicast
    if moves_no_data(name):
        return None, None, None
    if NCCL_GENERAL.search(name):
        return library, None, None
    torch = TORCH_SYMM_MEM.search(plain)
    if torch:
        return "torch-symm-mem", torch[1], torch[1].startswith("multimem") if torch[1] else None
    for mechanism, pattern in OTHER_LIBRARIES:
        if pattern.search(plain):
            return mechanism, None, None
    call = innermost["name"] if innermost is not None else ""
    told = call == "record_param_comms" or call.startswith("symm_mem::")
    return "unknown" if told else None, None, None


def is_symmetric(mechanism):
    if mechanism in ("peer-mapped", "unknown"):
        return None
    return mechanism not in ("nccl", "rccl")


def named_dtype(name):
    """The dtype in the name of a kernel, or None; all-gather, broadcast and send/recv name none."""
    match = NAMED_DTYPE.search(name)
    return NAMED_DTYPES.get(match[match.lastindex]) if match else None


def about_call(args):
    """dtype, bytes, group and group_size by the arguments of a kernel or of `record_param_comms`."""
    spelled = str(args.get("dtype", "")).removeprefix("c10::")
    dtype, size = DTYPES.get(spelled.lower(), (None, None))
    counts = [amount(args.get("In msg nelems")), amount(args.get("Out msg nelems"))]
    known = size is not None and None not in counts
    group = args.get("Process Group Description")
    return {
        "dtype": dtype,
        "bytes": max(counts) * size if known else None,
        "group": group if isinstance(group, str) else None,
        "group_size": amount(args.get("Group size")),
    }


def is_collective_call(args):
    """True for the arguments of a call that several ranks take part in, so neither a wait nor a barrier."""
    word = str(args.get("Collective name", ""))
    return not re.search("wait|barrier|^coalesced$", word) and number(args.get("Group size")) != 1


def tensors(args):
    """How many tensors a coalesced call was given: its first input's shapes, 1 where they weren't recorded.

    Other calls are one, also those that take a list, such as a reduce-scatter of one tensor per rank.
    """
    if "coalesced" not in str(args.get("Collective name")):
        return 1
    dims = args.get("Input Dims")
    shapes = dims[0] if isinstance(dims, list) and dims else []
    many = isinstance(shapes, list) and bool(shapes) and all(isinstance(shape, list) for shape in shapes)
    return len(shapes) if many else 1
