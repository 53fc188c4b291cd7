"""The few kinds of trace event that the judgement needs, and how text becomes them.

Most of a trace is of no interest here (Python frames, flow arrows, counters). The typed decoder names the
interesting kinds by their `cat` and reads only the fields wanted; everything else becomes an empty struct.
What the typed decoder refuses (odd types, no `cat`, unknown categories) is read again loosely and brought
into the same structs by `from_loose`, so that both ways give the same answer.

Field names and categories: libkineto/src/output_json.cpp of https://github.com/pytorch/kineto.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct, field

Id = int | str
"""A process or thread id: a number, or a word such as "Spans" (Kineto's own rows)."""

_COMPLETE = Literal["X"]
_NO_ARGS = Raw(b"{}")


class CommArgs(Struct, gc=False):
    """What `record_param_comms`, and a kernel it launched, say about the call. Elements, not bytes."""

    collective: str | None = field(name="Collective name", default=None)
    in_elements: int | None = field(name="In msg nelems", default=None)
    out_elements: int | None = field(name="Out msg nelems", default=None)
    dtype: str | None = None
    group_size: int | None = field(name="Group size", default=None)
    group: str | None = field(name="Process Group Description", default=None)
    external: int = field(name="External id", default=-1)
    external_old: int = field(name="external id", default=-1)


class OpArgs(Struct, gc=False):
    """What tells a forward op (`Fwd thread id` 0) from a backward node (1 or more)."""

    sequence: int | None = field(name="Sequence number", default=None)
    forward_thread: int | None = field(name="Fwd thread id", default=None)


class LaunchArgs(Struct, gc=False):
    correlation: int = 0


class GpuArgs(CommArgs, gc=False):
    correlation: int = 0


class Op(Struct, tag_field="cat", tag="cpu_op", gc=False):
    """A CPU op. Times in microseconds as in the trace; `args` stays undecoded text."""

    ph: _COMPLETE
    ts: float
    pid: Id
    tid: Id
    name: str = ""
    dur: float = 0.0
    args: Raw = _NO_ARGS


class Annotation(Op, tag_field="cat", tag="user_annotation", gc=False):
    """A `record_function` window on a CPU thread."""


class Launch(Struct, tag_field="cat", tag="cuda_runtime", gc=False):
    """A call of the CUDA or HIP runtime."""

    ph: _COMPLETE
    ts: float
    pid: Id
    tid: Id
    name: str = ""
    args: LaunchArgs = field(default_factory=LaunchArgs)


class DriverLaunch(Launch, tag_field="cat", tag="cuda_driver", gc=False):
    """A call of the CUDA driver."""


class Kernel(Struct, tag_field="cat", tag="kernel", gc=False):
    """A kernel as the GPU ran it."""

    ph: _COMPLETE
    ts: float
    pid: Id
    tid: Id
    name: str = ""
    dur: float = 0.0
    args: GpuArgs = field(default_factory=GpuArgs)


class Memcpy(Kernel, tag_field="cat", tag="gpu_memcpy", gc=False):
    """A copy as the GPU ran it."""


class ThreadName(Struct, gc=False):
    """A `thread_name` row: what the thread calls itself."""

    pid: Id
    tid: Id
    name: str


class NoTime(Struct, gc=False):
    """A row of a kind that matters, whose time can't be read."""


class _Skipped(Struct, tag_field="cat", tag="python_function", gc=False):
    pass


_SKIPPED_CATEGORIES = (
    "ac2g", "fwdbwd", "gpu_memset", "gpu_user_annotation", "Trace", "overhead", "cuda_sync", "cuda_event",
    "async_gpu", "async_cpu_to_gpu", "forward_backward", "cpu_instant_event", "python_gc", "collective_comm",
    "cuda_profiler_range", "xpu_runtime", "mtia_runtime",
)  # fmt: skip
_SKIPPED = tuple(
    msgspec.defstruct(f"_Skipped_{name}", [], tag_field="cat", tag=name, gc=False) for name in _SKIPPED_CATEGORIES
)

Event = Op | Annotation | Launch | DriverLaunch | Kernel | Memcpy | ThreadName | NoTime

_typed: Any = Op | Annotation | Launch | DriverLaunch | Kernel | Memcpy | _Skipped
for _skipped in _SKIPPED:
    _typed = _typed | _skipped
_DECODER = msgspec.json.Decoder(list[_typed])
_LOOSE_DECODER = msgspec.json.Decoder(list[dict[str, Any]])
_ANYTHING_DECODER = msgspec.json.Decoder(list[Any])


def decode(text: bytes | bytearray | memoryview) -> list[Any]:
    """Turn the text of a JSON list of events into events; rows of no interest come as other structs.

    Raises msgspec.DecodeError (not its subclass ValidationError) where the text is not valid JSON.
    """
    try:
        return _decode(text)
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None


def _decode(text: bytes | bytearray | memoryview) -> list[Any]:
    try:
        return _DECODER.decode(text)
    except msgspec.ValidationError:
        pass
    try:
        return from_loose(_LOOSE_DECODER.decode(text))
    except msgspec.ValidationError:  # a list with a number or null among the events, or a number out of range
        pass
    try:
        return from_loose(_ANYTHING_DECODER.decode(text))
    except msgspec.ValidationError as error:
        raise msgspec.DecodeError(str(error)) from None


def decode_forgiving(text: bytes) -> list[Event]:
    """As `decode`, but takes what Python's own reader takes: NaN, Infinity, raw control characters, bad UTF-8.

    Raises ValueError where even that fails, and RecursionError is turned into one.
    """
    try:
        rows = json.loads(text.decode("utf-8", "replace"), strict=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return from_loose(rows) if isinstance(rows, list) else []


_CATEGORIES: dict[str, type[Op] | type[Launch] | type[Kernel]] = {
    "cpu_op": Op, "user_annotation": Annotation,
    "cuda_runtime": Launch, "cuda_driver": DriverLaunch, "kernel": Kernel, "gpu_memcpy": Memcpy,
    # torch 1.8 to 1.11
    "operator": Op, "runtime": Launch, "memcpy": Memcpy,
    "hip_runtime": Launch,
}  # fmt: skip


def from_loose(rows: Iterable[Any]) -> list[Event]:
    """Bring untyped rows into events; rows of no interest are left out."""
    events: list[Event] = []
    for row in rows:
        if not isinstance(row, dict):
            continue
        phase = row.get("ph")
        if phase == "X":
            event = _complete(row)
            if event is not None:
                events.append(event)
        elif phase == "M" and row.get("name") == "thread_name":
            args = row.get("args")
            name = args.get("name") if isinstance(args, dict) else None
            events.append(ThreadName(_id(row.get("pid")), _id(row.get("tid")), _text(name) or ""))
    return events


def _complete(row: dict[str, Any]) -> Event | None:
    category = row.get("cat")
    kind = _CATEGORIES.get(category.lower()) if isinstance(category, str) else None
    start = number(row.get("ts"))
    if kind is None:
        return None
    if start is None:
        return NoTime()
    name, pid, tid = _text(row.get("name")) or "", _id(row.get("pid")), _id(row.get("tid"))
    args = row.get("args")
    args = args if isinstance(args, dict) else {}
    if issubclass(kind, Launch):
        return kind("X", start, pid, tid, name, LaunchArgs(integer(args.get("correlation")) or 0))
    duration = number(row.get("dur")) or 0.0
    if issubclass(kind, Kernel):
        return kind("X", start, pid, tid, name, duration, _gpu_args(args))
    return kind("X", start, pid, tid, name, duration, _encoded(args))


def _encoded(args: dict[str, Any]) -> Raw:
    try:
        return Raw(json.dumps(args).encode())
    except RecursionError:
        return _NO_ARGS


def _gpu_args(args: dict[str, Any]) -> GpuArgs:
    comm = msgspec.structs.asdict(comm_args_from_loose(args))
    return GpuArgs(**comm, correlation=integer(args.get("correlation")) or 0)


def comm_args(text: Raw) -> CommArgs:
    """Decode a call's description; fields of an unexpected type count as absent."""
    try:
        return _COMM_DECODER.decode(text)
    except msgspec.MsgspecError:
        return comm_args_from_loose(_loose_args(text))


def comm_args_from_loose(args: dict[str, Any]) -> CommArgs:
    return CommArgs(
        collective=_text(args.get("Collective name")),
        in_elements=integer(args.get("In msg nelems")),
        out_elements=integer(args.get("Out msg nelems")),
        dtype=_text(args.get("dtype")),
        group_size=integer(args.get("Group size")),
        group=_text(args.get("Process Group Description")),
        external=_external(args),
    )


def op_args(text: Raw) -> OpArgs:
    """Decode an op's numbers; fields of an unexpected type count as absent."""
    try:
        return _OP_DECODER.decode(text)
    except msgspec.MsgspecError:
        args = _loose_args(text)
        return OpArgs(integer(args.get("Sequence number")), integer(args.get("Fwd thread id")))


def external_id(args: CommArgs) -> int:
    """The op's `External id`, under the name of any version of Kineto; -1 where there is none."""
    return args.external if args.external != -1 else args.external_old


def input_tensors(text: Raw) -> int:
    """How many tensors a call took, by `Input Dims`; 1 where the trace doesn't tell.

    A coalesced call has a list of lists there: [[[262144], [262144]], [], …] are two tensors.
    """
    dims = _loose_args(text).get("Input Dims")
    first = dims[0] if isinstance(dims, list) and dims else None
    if isinstance(first, list) and first and all(isinstance(shape, list) for shape in first):
        return len(first)
    return 1


_COMM_DECODER = msgspec.json.Decoder(CommArgs)
_OP_DECODER = msgspec.json.Decoder(OpArgs)


def _loose_args(text: Raw) -> dict[str, Any]:
    try:
        args = json.loads(bytes(text).decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return {}
    return args if isinstance(args, dict) else {}


def _external(args: dict[str, Any]) -> int:
    value = integer(args.get("External id", args.get("external id")))
    return -1 if value is None else value


def _text(value: Any) -> str | None:
    """A text without lone surrogates, which no output could be written with; None for any other value."""
    if not isinstance(value, str):
        return None
    return value if value.isascii() else value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def number(value: Any) -> float | None:
    """A finite number, also where a producer wrote it as a string ("3.000"); else None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        result = float(value)
    except (ValueError, OverflowError):
        return None
    return result if math.isfinite(result) else None


def integer(value: Any) -> int | None:
    """A whole number, also where it was written as a string or a float; else None."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    result = number(value)
    return int(result) if result is not None and result.is_integer() else None


def _id(value: Any) -> Id:
    """A process or thread id; all ids that are neither number nor text count as one."""
    if isinstance(value, str):
        return value
    result = integer(value)
    return "" if result is None else result
