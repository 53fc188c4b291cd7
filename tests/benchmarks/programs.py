"""The programs that are timed: symmem-check, the least that any reader must do, and other readers of such traces.

The others are run as text in a Python of their own: none of them is a dependency of this project.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

OURS = "symmem-check classify"

_READ = """
import sys
block = memoryview(bytearray(1 << 20))
with open(sys.argv[1], "rb", buffering=0) as file:
    while count := file.readinto(block):
        block.obj.find(b"\\x00", 0, count)
"""
_GUNZIP = """
import sys
from isal import igzip
block = memoryview(bytearray(1 << 20))
with igzip.open(sys.argv[1], "rb") as file:
    while file.readinto(block):
        pass
"""
_OPEN = """
import sys
from isal import igzip
def opened(path):
    return igzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb")
"""
_JSON = (
    _OPEN
    + """
import json
with opened(sys.argv[1]) as file:
    json.load(file)
"""
)
_IJSON = (
    _OPEN
    + """
import ijson
backend = ijson.get_backend("yajl2_c")
with opened(sys.argv[1]) as file:
    found = [row for row in backend.items(file, "traceEvents.item", use_float=True)
             if row.get("cat") == "kernel" and "nccl" in row["name"]]
assert found
"""
)
_HTA = """
import os, sys
from hta.trace_analysis import TraceAnalysis
path = sys.argv[1]
read = TraceAnalysis({0: path}, os.path.dirname(path), include_last_profiler_step=True)
"""
_HTA_GRAPH = (
    _HTA
    + """
from hta.common.trace_call_graph import CallGraph
CallGraph(read.t, ranks=[0])
"""
)
_TRACELENS_NCCL = """
import sys
from TraceLens.NcclAnalyser.nccl_analyser import NcclAnalyser
NcclAnalyser([sys.argv[1]], 1).build_df_long()
"""
_TRACELENS_TREE = """
import sys
from TraceLens.Trace2Tree.trace_to_tree import TraceToTree
from TraceLens.util import DataLoader
events = DataLoader.load_data(sys.argv[1])["traceEvents"]
TraceToTree(events, prune_nongpu_paths=False).build_tree(add_python_func=False)
"""
_VERSIONS = """
from importlib.metadata import PackageNotFoundError, version
for name in ("HolisticTraceAnalysis", "pandas", "ijson", "isal", "orjson"):
    try:
        print(f"{name} {version(name)}", end=", ")
    except PackageNotFoundError:
        pass
"""


class Program(NamedTuple):
    """A command that takes a trace's path as its last argument."""

    name: str
    arguments: list[str]
    environment: dict[str, str]

    def command(self, path: Path) -> list[str]:
        return [*self.arguments, str(path)]


def programs(path: Path, peers: str | None, tracelens: Path | None) -> list[Program]:
    """Those that can read the file; `peers` is the Python of the others, `tracelens` a checkout of it."""
    found = [
        Program(OURS, [sys.executable, "-m", "runner", "classify", "--format", "json"], {}),
        Program("read in blocks, scan for a byte", [sys.executable, "-c", _READ], {}),
    ]
    if path.suffix == ".gz":
        found.append(Program("gunzip by ISA-L alone", [sys.executable, "-c", _GUNZIP], {}))
    found.append(Program("json.load", [sys.executable, "-c", _JSON], {}))
    if peers:
        # HTA's own rounding fails on Kineto's nanoseconds ("Unexpected case"), so it is switched off.
        rounding = {"HTA_DISABLE_NS_ROUNDING": "1"}
        found += [
            Program("ijson (yajl2_c), kernels only", [peers, "-c", _IJSON], {}),
            Program("HTA load", [peers, "-c", _HTA], rounding),
            Program("HTA load and call graph", [peers, "-c", _HTA_GRAPH], rounding),
        ]
    if peers and tracelens:
        where = {"PYTHONPATH": str(tracelens)}
        found += [
            Program("TraceLens NcclAnalyser, kernels only", [peers, "-c", _TRACELENS_NCCL], where),
            Program("TraceLens Trace2Tree", [peers, "-c", _TRACELENS_TREE], where),
        ]
    return found


def versions(peers: str | None) -> str:
    """What the programs are, each with its version."""
    own = subprocess.run([sys.executable, "-m", "runner", "--version"], capture_output=True, text=True, check=True)
    others = subprocess.run([peers or sys.executable, "-c", _VERSIONS], capture_output=True, text=True, check=True)
    return f"{own.stdout.strip()}; {others.stdout.strip(', ')}"
