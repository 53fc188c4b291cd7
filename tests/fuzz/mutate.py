"""Valid inputs, and what can become of them: bytes flipped, text cut, keys doubled, types changed, deep nesting.

All choices are drawn from the given `random.Random`, so that a seed stands for an input, and hypothesis can shrink one.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import stat
import struct
import textwrap
import warnings
import zipfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from tests.runner.report.factory import filled_with, first_light
from tests.runner.trace.random_traces import ODD, Maker

PROJECT = Path(__file__).parents[2]
SUITES = PROJECT / "checks" / "suites"
HUGE = ("1e400", "-1e400", "1" * 400, "-0.0", "9" * 19, "0." + "1" * 300, "1e-400", "18446744073709551616")
WORDS = (
    "NaN",
    "Infinity",
    "nan",
    "N/A",
    "None",
    "undefined",
    "true",
    "''",
    "\\ud800",
    "\0",
    "\x1b[31m",
    "::error::x\n",
)
TOKENS = (
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    '"',
    "},{",
    "\\",
    "\n",
    "traceEvents",
    '"traceEvents":[',
    '"ph":"X"',
    *HUGE,
    *WORDS,
)
YAML_TOKENS = (
    "&a ", "*a", "!!python/object/apply:os.system ['touch /tmp/fuzz-was-here']", "!!binary ", "|", ">", "- ",
    "? ", ": ", "# ", "%YAML 9.9\n", "---\n", "...\n", "{a: ", "[", "]", "}", "on", "010", "1:30", "0x10", "1_000",
    ".inf", ".nan", "~", "<<: ", "'", '"', "\t", "2026-01-01", "../../etc", "a" * 300,
    "1 KiB", "-1 MiB", "99999 TiB", "\u2028", *WORDS,
)  # fmt: skip


# ---- valid inputs ----------------------------------------------------------------------------------------------------


@cache
def small_traces() -> tuple[bytes, ...]:
    """Recorded traces that are small enough to be read many times."""
    found = sorted((PROJECT / "tests/data/traces").glob("*/*.json.gz"), key=lambda path: path.stat().st_size)
    return tuple(gzip.decompress(path.read_bytes()) for path in found[:12])


def trace_value(random: Random) -> Any:
    """A trace as a JSON value: recorded, or made at random."""
    if random.randrange(4) == 0:
        return json.loads(random.choice(small_traces()))
    return Maker(random.randrange(2**32)).trace()


@cache
def results() -> tuple[bytes, ...]:
    """Results that a run could have written, one of them with collectives."""
    from runner.trace.collectives import read_collectives

    rows = read_collectives(PROJECT / "tests/data/traces/h200/ce2307_ag_r0.json.gz").collectives
    made = first_light()
    with_rows = [msgspec.structs.replace(one, collectives=rows) for one in made.cases]
    return tuple(
        msgspec.json.encode(one) for one in (made, msgspec.structs.replace(made, cases=with_rows), filled_with("@x |"))
    )


@cache
def suites() -> tuple[str, ...]:
    """The suites that ship, and a small one with every key of the grammar."""
    return (*(path.read_text(encoding="utf-8") for path in sorted(SUITES.glob("*.yaml"))), GRAMMAR)


GRAMMAR = """\
suite: s
ranks: 2
steps: 2
warmup: 1
configurations:
  zero: {env: {NCCL_CTA_POLICY: "2"}, symm-mem-backend: NCCL}
checks:
  c:
    workload: all_reduce
    configuration: zero
    deadline: 60
    only-if: {torch: ">=2.12", nccl: ">=2.28,<3", gpus: ">=2", own-gpu: true, multicast: true}
    matrix:
      pool: [step, none]
      dtype: [bfloat16]
      size: [2 KiB, 8 MiB]
      exclude: [{pool: none, size: [2 KiB]}]
      include: [{pool: static, dtype: float32, size: [1 MiB]}]
    expect: {forward: symmetric, backward: {all_reduce: symmetric}}
    known:
      backward: {issue: "https://github.com/a/b/issues/1", title: t, torch: "<9"}
    exceptions: [{when: {pool: none}, expect: {forward: fallback}, because: b}]
"""


# ---- JSON ------------------------------------------------------------------------------------------------------------


@cache
def machines() -> tuple[str, ...]:
    """The YAML of a machine in the documentation of each provider."""
    pages = sorted((PROJECT / "docs" / "machines").glob("*.md"))
    blocks = [re.search(r"^```yaml\nmachine: \|\n(.*?)^```", page.read_text("utf-8"), re.M | re.S) for page in pages]
    return tuple(textwrap.dedent(block[1]) for block in blocks if block)


def places(value: Any, found: list[tuple[Any, Any]] | None = None) -> list[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    found = [] if found is None else found
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        found.append((value, key))
        places(value[key], found)
    return found


def change_value(value: Any, random: Random) -> Any:
    """The value with some of its parts of another type, gone, doubled or nested deeply; still JSON."""
    value = json.loads(json.dumps(value))  # a part that stands twice must not be one
    all_places = places(value)
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        if not all_places:
            return random.choice(ODD)
        container, key = random.choice(all_places)
        if key not in (container if isinstance(container, dict) else range(len(container))):
            continue
        match random.randrange(6):
            case 0:
                del container[key]
            case 1:
                other, at = random.choice(all_places)
                still_there = at in other if isinstance(other, dict) else at < len(other)
                # A copy, or a value could come to hold itself.
                container[key] = json.loads(json.dumps(other[at])) if still_there else None
            case 2:
                deep: Any = random.choice(ODD)
                for _ in range(random.choice((3, 3, 200))):
                    deep = [deep] if random.randrange(2) else {"a": deep}
                container[key] = deep
            case 3 if isinstance(container, dict):
                container[random.choice((*WORDS, "ts", "args", "ph", "schema"))] = container.pop(key)
            case 4 if isinstance(container, list):
                container.insert(random.randrange(len(container) + 1), container[key])
            case _:
                container[key] = random.choice((*ODD, 2**63, -(2**63), 1e308, 5e-324, "x" * 3000, *WORDS))
    return value


def layout(value: Any, random: Random) -> str:
    """The value as JSON text in one of many layouts: the same content."""
    options: dict[str, Any] = {
        "indent": random.choice((1, "\t")) if random.randrange(8) == 0 else None,
        "separators": random.choice((None, (",", ":"), (" , ", " : "))),
        "sort_keys": random.randrange(4) == 0,
        "ensure_ascii": random.randrange(2) == 0,
    }
    return json.dumps(value, **options)


# ---- text and bytes --------------------------------------------------------------------------------------------------


def change_text(text: str, random: Random, tokens: tuple[str, ...]) -> str:
    """Text with pieces cut out, doubled, swapped and put in."""
    for _ in range(random.choice((1, 1, 2, 4, 12))):
        start = random.randrange(len(text) + 1)
        end = min(len(text), start + random.choice((0, 1, 2, 10, 100, len(text))))
        match random.randrange(6):
            case 0:
                text = text[:start] + text[end:]
            case 1:
                text = text[:end] + text[start:]
            case 2:
                deep = random.choice(("[", "{", '{"a":', '[{"":', "- ", "{a: ")) * random.choice((10, 100, 3000))
                text = text[:start] + deep + text[end:]
            case 3:
                lines = text.splitlines(keepends=True) or [""]
                line = random.randrange(len(lines))
                lines[line] = random.choice((" ", "  ", "\t", "")) + random.choice(lines).lstrip(" ")
                text = "".join(lines)
            case _:
                text = text[:start] + random.choice(tokens) + text[end:]
    return text


def change_bytes(data: bytes, random: Random) -> bytes:
    """Bytes flipped, cut, doubled and put in."""
    changed = bytearray(data)
    for _ in range(random.choice((0, 1, 1, 2, 4, 16))):
        start = random.randrange(len(changed) + 1)
        end = min(len(changed), start + random.choice((1, 1, 2, 8, 64)))
        match random.randrange(5):
            case 0:
                del changed[start:]
            case 1:
                changed[start:end] = bytes(random.choices(range(256), k=end - start))
            case 2:
                changed[start:start] = changed[start:end] * random.choice((1, 2, 50))
            case 3:
                del changed[start:end]
            case _ if start < len(changed):
                changed[start] ^= 1 << random.randrange(8)
            case _:
                changed += b"\0" * random.randrange(600)
    return bytes(changed)


# ---- one input for each door -----------------------------------------------------------------------------------------


def valid_trace(random: Random) -> bytes:
    """A trace that means what it meant, in another order and layout, with much in it that means nothing."""
    # Of two processes in one file it is a matter of taste which launched a GPU row whose ids are damaged.
    while len(processes_of(value := trace_value(random))) > 1:
        pass
    events = events_of(value)
    foreign = random.choice((0, 0, 1, 5))
    for row in random.sample(events, min(len(events), foreign)):
        if isinstance(row, dict):
            row[random.choice(("", "id", "cname", "é", "traceEvents", "}, {"))] = nested(random)
    for _ in range(foreign):
        events.insert(random.randrange(len(events) + 1), {"ph": random.choice(("i", "C", "s")), "name": nested(random)})
    if random.randrange(2):
        random.shuffle(events)
    if isinstance(value, dict) and foreign:
        value |= {random.choice(("a", "schemaVersion", "ключ")): nested(random)}
    data = layout(in_any_order(value, random), random).encode("utf-8", "surrogatepass")
    packed = random.randrange(8)
    return gzip.compress(data, 1) if packed == 0 else b"\xef\xbb\xbf" + data if packed == 1 else data


def events_of(trace: Any) -> list[Any]:
    """The events of a trace, which may be a bare list of them."""
    found: list[Any] = trace["traceEvents"] if isinstance(trace, dict) else trace
    return found


def processes_of(trace: Any) -> set[Any]:
    """The host processes whose rows are in a trace."""
    rows = [row for row in events_of(trace) if isinstance(row, dict)]
    return {row["pid"] for row in rows if row.get("cat") in ("cpu_op", "cuda_runtime", "cuda_driver")}


def nested(random: Random) -> Any:
    """Some value, in some number of lists and objects."""
    value: Any = random.choice(ODD)
    for _ in range(random.choice((0, 1, 3, 60))):
        value = [value, {}] if random.randrange(2) else {"traceEvents": value, "}, {": "]"}
    return value


def in_any_order(value: Any, random: Random) -> Any:
    """The value with the keys of every object in some order."""
    if isinstance(value, dict):
        return {key: in_any_order(value[key], random) for key in random.sample(list(value), len(value))}
    return [in_any_order(one, random) for one in value] if isinstance(value, list) else value


def broken_trace(random: Random) -> bytes:
    """A file that may be anything, and comes from a trace."""
    value = trace_value(random)
    text = layout(change_value(value, random) if random.randrange(3) == 0 else value, random)
    if random.randrange(3):
        text = change_text(text, random, TOKENS)
    data = text.encode("utf-8", "replace")
    packed = random.randrange(6)
    if packed == 0:
        return change_bytes(gzip.compress(data, 1), random)
    if packed == 1:
        return gzip.compress(change_bytes(data, random), 1) + random.choice(
            (b"", b"\0" * 9, b"x", gzip.compress(b"]}"))
        )
    return change_bytes(data, random)


def any_trace(random: Random) -> bytes:
    """A trace's file, whole or broken, plain or packed."""
    if random.randrange(2):
        return broken_trace(random)
    data = valid_trace(random)
    return data if data.startswith(b"\x1f\x8b") or random.randrange(3) else gzip.compress(data, 1)


def suite(random: Random) -> bytes:
    """A suite file, mostly broken."""
    # The full one takes a tenth of a second.
    text = random.choice(suites()) if random.randrange(10) == 0 else GRAMMAR
    if random.randrange(4) == 0:
        text = change_text(GRAMMAR, random, tuple(suites()[0].splitlines(keepends=True)))
    text = change_text(text, random, YAML_TOKENS)
    data = text.encode("utf-8", "replace")
    return change_bytes(data, random) if random.randrange(4) == 0 else data


def machine(random: Random) -> bytes:
    """A machine's YAML, mostly broken."""
    text = random.choice(machines())
    others = tuple(line for other in machines() for line in other.splitlines(keepends=True))
    for _ in range(random.randrange(1, 4)):
        text = change_text(text, random, others)
    data = text.encode("utf-8", "surrogatepass")
    return change_bytes(data, random) if random.randrange(4) == 0 else data


def result(random: Random) -> bytes:
    """A result.json, mostly broken."""
    text = layout(change_value(json.loads(random.choice(results())), random), random)
    if random.randrange(3) == 0:
        text = change_text(text, random, TOKENS)
    data = text.encode("utf-8", "replace")
    return change_bytes(data, random) if random.randrange(4) == 0 else data


def artifact(random: Random) -> bytes:
    """An artifact's zip: odd names, links, bombs, doubled members, lies about sizes, broken bytes."""
    target = io.BytesIO()
    warnings.simplefilter("ignore", UserWarning)  # of names that stand twice
    with zipfile.ZipFile(target, "w") as archive:
        for _ in range(random.choice((0, 1, 1, 1, 2, 5))):
            member = zipfile.ZipInfo(random.choice(NAMES))
            member.compress_type = random.choice((zipfile.ZIP_STORED, *[zipfile.ZIP_DEFLATED] * 8, zipfile.ZIP_LZMA))
            member.external_attr = random.choice((0, stat.S_IFLNK, stat.S_IFREG, stat.S_IFIFO, stat.S_IFDIR)) << 16
            bomb = random.randrange(20) == 0
            archive.writestr(member, b"[" * random.choice((3_000_000, 100)) if bomb else random.choice(results()))
    data = bytearray(target.getvalue())
    if random.randrange(3) == 0:  # a size or an offset that is a lie
        at = random.randrange(max(1, len(data) - 4))
        data[at : at + 4] = struct.pack("<I", random.choice((0, 1, 2**31, 2**32 - 1)))
    return change_bytes(bytes(data), random) if random.randrange(2) else bytes(data)


NAMES = (
    "result.json", "result.json", "symmem/result.json", "../result.json", "/tmp/fuzz-was-here/result.json",
    "a/../result.json", "a\\result.json", "C:\\result.json", "result.json/", "résult/result.json",
    "x" * 5000 + "/result.json", "run/plan.json", "::error::/result.json",
)  # fmt: skip
