"""What may be asked of a cluster: the candidates of the YAML, and each as options of sbatch."""

from __future__ import annotations

import re

import msgspec

from ..yaml_file import Value

CANDIDATE_KEYS = (
    "partition", "account", "qos", "constraint", "gpus", "gres", "nodes", "cpus", "memory", "exclusive", "price",
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}")
_PARTITION = re.compile(rf"{_NAME.pattern}(?:,{_NAME.pattern}){{0,9}}")
_CONSTRAINT = re.compile(r"[A-Za-z0-9_.,:&|*!()\[\]-]{1,200}")
_MEMORY = re.compile(r"[1-9][0-9]{0,7}[KMGT]?")
_TEXTS = {
    "partition": (_PARTITION, "a partition, or several with commas"),
    "account": (_NAME, "an account's name"),
    "qos": (_NAME, "a quality of service's name"),
    "constraint": (_CONSTRAINT, "features of nodes, such as h100 or h100|h200"),
    "memory": (_MEMORY, "a node's memory as sbatch's --mem takes it, such as 64G"),
}
# A type has a letter, as in h100 and 1g.10gb; a number alone is the count.
_GRES = re.compile(r"gpu(?::(?=[^:]*[A-Za-z])[A-Za-z0-9_.-]{1,64})?(?::([1-9][0-9]{0,2}))?")


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One way to ask for GPUs. `gres`, `cpus` and `memory` (sbatch's `--mem`) are each node's; what is empty or 0 is
    left to the cluster. `price` is US dollars an hour for all of it."""

    gres: str
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    nodes: int = 1
    cpus: int = 0
    memory: str = ""
    exclusive: bool = False
    price: float | None = None

    def __str__(self) -> str:
        asked = {"partition": self.partition, "account": self.account, "qos": self.qos, "constraint": self.constraint}
        where = ", ".join(f"{name} {value}" for name, value in asked.items() if value)
        return f"{self.what}{' in ' + where if where else ''}"

    @property
    def what(self) -> str:
        """The GPUs, such as `gpu:h100:2 on 2 nodes`."""
        return self.gres if self.nodes == 1 else f"{self.gres} on {self.nodes} nodes"

    @property
    def options(self) -> list[str]:
        """For sbatch, with one task a GPU: so many ranks an srun within the job starts by itself."""
        found = _GRES.fullmatch(self.gres)
        tasks = int(found[1] or 1) if found is not None else 1
        options = {
            "partition": self.partition, "account": self.account, "qos": self.qos, "constraint": self.constraint,
            "gres": self.gres, "nodes": str(self.nodes), "ntasks-per-node": str(tasks),
            "cpus-per-task": str(-(-self.cpus // tasks)) if self.cpus else "", "mem": self.memory,
        }  # fmt: skip
        return [f"--{name}={value}" for name, value in options.items() if value] + ["--exclusive"] * self.exclusive


def read_candidates(value: Value) -> list[Candidate]:
    """The list under `candidates`, in the order in which they are tried."""
    candidates = [_candidate(item) for item in value.items()]
    if not candidates:
        value.error("has no candidate; give one at least, such as {gpus: 1}")
    return candidates


def _candidate(value: Value) -> Candidate:
    entries = value.mapping(CANDIDATE_KEYS)
    if ("gpus" in entries) == ("gres" in entries):
        value.error("needs gpus, a number a node, or gres, such as gpu:h100:2; one of the two")
    gres = (
        f"gpu:{entries['gpus'].whole_number(1, 999)}"
        if "gpus" in entries
        else entries["gres"].matching(_GRES, "GPUs as sbatch's --gres takes them, such as gpu:2 or gpu:h100:2")
    )
    texts = {name: entries[name].matching(*_TEXTS[name]) for name in _TEXTS if name in entries}
    return Candidate(
        gres=gres,
        nodes=entries["nodes"].whole_number(1, 9999) if "nodes" in entries else 1,
        cpus=entries["cpus"].whole_number(1, 9999) if "cpus" in entries else 0,
        exclusive=entries["exclusive"].boolean() if "exclusive" in entries else False,
        price=entries["price"].positive("US dollars an hour") if "price" in entries else None,
        **texts,
    )
