"""What a case can't do without (`only-if` in its suite), compared with the facts that this rank has recorded."""

from __future__ import annotations

import operator
import re

COMPARE = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
# What takes multicast away though the GPU can: then the case runs, and shows what comes of it.
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}


def unmet(needs: dict[str, str | bool], plan: dict, environment: dict) -> str | None:
    """Return, in words, the first condition that does not hold here; None where all do.

    Only facts of hardware, versions and the number of ranks count, never what a variable switches off.
    Raises ValueError for a condition that is none.
    """
    for name, wanted in needs.items():
        if name in ("own-gpu", "multicast"):
            lacking = own_gpu(plan) if name == "own-gpu" else multicast(plan, environment)
        else:
            lacking = outside(name, str(wanted), fact(name, plan, environment))
        if lacking is not None:
            return lacking
    return None


def fact(name: str, plan: dict, environment: dict) -> str | None:
    """Return the fact that a bound is for: a version, or a number as text; None where it is not known."""
    on_gpu = plan["device"] == "cuda"
    if name == "torch":
        return environment["torch"]
    if name == "nccl":
        return environment["nccl"]["version"] if environment["nccl"] else None
    if name == "capability":
        return ".".join(map(str, environment["capability"])) if environment["capability"] else None
    if name == "ranks":
        return str(plan["ranks"])
    if name == "gpus":
        return str(-(-plan["ranks"] // plan["ranks_per_gpu"]) if on_gpu else 0)
    raise ValueError(f"there is no condition {name!r}")


def outside(name: str, bound: str, seen: str | None) -> str | None:
    """Say that `seen` is outside of `bound`, such as ">=2.8, <2.12"; None where it is inside."""
    if all(holds(part.strip(), seen) for part in bound.split(",")):
        return None
    return f"needs {name} {spaced(bound)}; " + (f"this is {seen}" if seen is not None else "here none is known")


def holds(part: str, seen: str | None) -> bool:
    """Return whether a version lies within one part of a bound. A nightly counts as the release it leads to."""
    sign, number = re.fullmatch(r"(>=|<=|==|!=|>|<) ?([\d.]+)", part).groups()
    if seen is None:
        return False
    left, right = numbers(seen), numbers(number)
    width = max(len(left), len(right))
    return bool(left) and COMPARE[sign](padded(left, width), padded(right, width))


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: "2.15.0.dev20260301+cu130" is (2, 15, 0)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def padded(parts: tuple[int, ...], width: int) -> tuple[int, ...]:
    """Return a version's numbers with zeros behind: 2.12 and 2.12.0 are the same."""
    return parts + (0,) * (width - len(parts))


def spaced(bound: str) -> str:
    """Write a bound for reading: ">=2.8,<2.12" is ">= 2.8, < 2.12"."""
    return ", ".join(re.sub(r"^([<>=!]+) ?", r"\1 ", part.strip()) for part in bound.split(","))


def own_gpu(plan: dict) -> str | None:
    """Say that the ranks have no GPU each; None where they have."""
    if plan["device"] != "cuda":
        return f"needs a GPU for each rank; this run is on the {plan['device']}"
    if plan["ranks_per_gpu"] > 1:
        return f"needs a GPU for each rank; here {plan['ranks_per_gpu']} ranks share one"
    return None


def multicast(plan: dict, environment: dict) -> str | None:
    """Say that these ranks can't have NVLink multicast; None where they can, or where only a variable forbids it."""
    if plan["device"] != "cuda":
        return f"needs multicast; this run is on the {plan['device']}"
    if plan["ranks_per_gpu"] > 1:
        return "needs multicast, which ranks that share a GPU don't have"
    if any(environment["env"].get(name) == value for name, value in NO_MULTICAST.items()):
        return None
    if environment["multicast"] is None:
        return "needs multicast; whether this GPU has it is unknown"
    return None if environment["multicast"] else "needs multicast, which this GPU does not have"
