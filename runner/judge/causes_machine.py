"""Causes that lie in the machine, NCCL's version and the environment. Pure functions."""

from __future__ import annotations

from ..nccl_log import Communicator
from ..result import Certainty
from .causes_evidence import Call, Evidence, Found, Rule
from .causes_facts import (
    ALGO_FORCES,
    CUDA_P2P_IS_ENOUGH,
    FIRST_SYMMETRIC,
    FUNCTIONS,
    KERNEL_LIST,
    KERNEL_NAMES,
    NETWORK_KERNELS,
    NVLINK_NEEDED,
    kernel_names,
)

_NEEDS_MULTICAST = ("LLMC", "LDMC", "STMC", "MCRing")


def nccl_too_old(call: Call, evidence: Evidence) -> Found | None:
    """There are symmetric kernels from 2.27 on."""
    version = evidence.version
    if version is None or version >= FIRST_SYMMETRIC:
        return None
    return Found(f"{evidence.nccl} has no symmetric kernels", [f"loaded is {evidence.nccl}; 2.27 brought the first"])


def several_domains(call: Call, evidence: Evidence) -> Found | None:
    """The group's ranks do not all reach one another by NVLink."""
    version = evidence.version
    spanning = _spanning(call, evidence)
    if spanning is None or version is None:
        return None
    shown, certainty = spanning
    first = NETWORK_KERNELS.get(call.kind)
    if first is None or version < first:
        later = f"; NCCL {'.'.join(map(str, first))} brought one that works over the network" if first else ""
        return Found(
            f"the group spans more than one NVLink domain, and {evidence.nccl} has no symmetric kernel "
            f"for {call.kind} there{later}",
            [shown],
            certainty,
        )
    missing = evidence.log is not None and any(
        facts.get("globalGinSupport", facts.get("ginSupport", 1)) == 0 for facts in evidence.log.unsupported
    )
    return Found(
        "the group spans more than one NVLink domain, where symmetric kernels need GPU-initiated networking",
        [shown, *(["NCCL's log says that GPU-initiated networking is not supported"] if missing else [])],
        certainty if missing else "possible",
        mend="make GPU-initiated networking available to NCCL, or keep the group inside one NVLink domain",
    )


def _spanning(call: Call, evidence: Evidence) -> tuple[str, Certainty] | None:
    """What shows that the group spans NVLink domains, and how surely; None where nothing does."""
    own = _communicators(call, evidence)
    if own:
        wide = [communicator for communicator in own if communicator.nodes > 1]
        if not wide:
            return None
        shown = f"NCCL's log counts {wide[0].nodes} nodes in a communicator of {wide[0].ranks} ranks"
        return shown, "certain" if len(wide) == len(own) else "possible"
    environment = evidence.environment
    if environment.hosts < 2 or call.group_size is None or call.group_size <= environment.ranks / environment.hosts:
        return None
    # The hosts may still be one domain, by multi-node NVLink; only NCCL's log would say.
    return f"group size {call.group_size} on {environment.hosts} hosts, {environment.ranks} ranks", "likely"


def _communicators(call: Call, evidence: Evidence) -> list[Communicator]:
    """The communicators of NCCL's log that may be the call's: those of its size."""
    if evidence.log is None or call.group_size is None:
        return []
    return [communicator for communicator in evidence.log.communicators if communicator.ranks == call.group_size]


def no_direct_nvlink(call: Call, evidence: Evidence) -> Found | None:
    """From 2.29 on every pair of the group's GPUs must be joined by NVLink."""
    version = evidence.version
    if evidence.environment.nvlink is not False or version is None or version < NVLINK_NEEDED:
        return None
    # What was recorded is of all GPUs in use; a smaller group may lie on some that are joined.
    whole = call.group_size == evidence.environment.ranks
    return Found(
        f"not all GPUs are joined by NVLink, which {evidence.nccl} needs for symmetric kernels",
        ["NVLink between the GPUs in use: not between every pair"],
        "certain" if whole else "likely",
    )


def no_peer_access(call: Call, evidence: Evidence) -> Found | None:
    """GPUs must reach one another's memory."""
    version = evidence.version
    if evidence.log is not None and evidence.log.p2p and version is not None:
        name = "isAllCudaP2p" if version >= CUDA_P2P_IS_ENOUGH else "isAllDirectP2p"
        without = [facts for facts in evidence.log.p2p if facts.get(name) == 0]
        if not without:
            return None
        every = len(without) == len(evidence.log.p2p)
        shown = f"NCCL's log says {name} 0"
        return Found(
            "not all GPUs of the group reach one another's memory (P2P)", [shown], "certain" if every else "likely"
        )
    disabled = evidence.variable("NCCL_P2P_DISABLE")
    if disabled is None or evidence.is_zero("NCCL_P2P_DISABLE") or version is None:
        return None
    if CUDA_P2P_IS_ENOUGH <= version < NVLINK_NEEDED:
        return None  # there CUDA's answer counts alone, which the variable does not change
    return Found(
        "P2P between GPUs is switched off",
        [f"NCCL_P2P_DISABLE={disabled}"],
        # From 2.29 on it matters only in so far as NCCL then no longer sees the NVLink.
        "likely" if version < CUDA_P2P_IS_ENOUGH else "possible",
        mend="unset NCCL_P2P_DISABLE",
    )


def switched_off(call: Call, evidence: Evidence) -> Found | None:
    """Windows, or the memory they are made of, are switched off."""
    names = ["NCCL_WIN_ENABLE", "NCCL_CUMEM_ENABLE"]
    if evidence.version is not None and FIRST_SYMMETRIC <= evidence.version < (2, 28):
        names.append("NCCL_LOCAL_REGISTER")
    off = [name for name in names if evidence.is_zero(name)]
    if off:
        return Found(
            f"symmetric memory is switched off by {' and '.join(f'{name}=0' for name in off)}",
            [f"{name}=0 in the ranks' environment" for name in off],
            mend=f"unset {' and '.join(off)}",
        )
    log = evidence.log
    if log is None or not any(facts.get("cuMemEnable") == 0 for facts in log.unsupported):
        return None
    return Found(
        "NCCL does not use cuMem memory here, and windows are made of nothing else",
        [f"NCCL's log: {log.unsupported_text}"],
        mend="find out why cuMem is off: an old driver, a GPU without virtual memory management, "
        "or a container that keeps NCCL from it",
    )


def algorithm_forced(call: Call, evidence: Evidence) -> Found | None:
    """From 2.31 on a forced algorithm keeps the functions that it names from symmetric kernels."""
    version, forced = evidence.version, evidence.variable("NCCL_ALGO")
    if not forced or version is None or version < ALGO_FORCES or evidence.variable("NCCL_SYM_KERNEL"):
        return None
    function = FUNCTIONS.get(call.kind, "").lower()
    named = [part.partition(":") for part in forced.split(";")]
    holding = [part for part in named if not part[1] or part[0].strip().lower() == function]
    if not function or not holding:
        return None
    # A list that begins with ^ says what not to use; whether that forces too isn't documented.
    excludes = all((algorithms if colon else name).strip().startswith("^") for name, colon, algorithms in holding)
    return Found(
        f"NCCL_ALGO forces the algorithm of {call.kind}, which keeps {evidence.nccl} from symmetric kernels",
        [f"NCCL_ALGO={forced}"],
        "possible" if excludes else "certain",
    )


def unknown_kernel_name(call: Call, evidence: Evidence) -> Found | None:
    """Up to 2.30 a name that NCCL does not know switches all symmetric kernels off."""
    version, name = evidence.version, evidence.variable("NCCL_SYM_KERNEL")
    if not name or name == "^" or version is None or not FIRST_SYMMETRIC <= version < KERNEL_LIST:
        return None
    names = kernel_names(version)
    if name in names:
        return None
    near = next((known for known in sorted(names) if known.lower() == name.lower()), None)
    return Found(
        f"NCCL_SYM_KERNEL names no kernel of {evidence.nccl}, which switches all symmetric kernels off",
        [f"NCCL_SYM_KERNEL={name}"],
        mend=f"write {near}, or unset NCCL_SYM_KERNEL" if near else None,
    )


def kernel_choice(call: Call, evidence: Evidence) -> Found | None:
    """NCCL_SYM_KERNEL leaves no symmetric kernel, or perhaps none, for this call."""
    version, name = evidence.version, evidence.variable("NCCL_SYM_KERNEL")
    function = FUNCTIONS.get(call.kind)
    if not name or name == "^" or function is None or version is None or version < FIRST_SYMMETRIC:
        return None
    certainty: Certainty = "possible"
    if version < KERNEL_LIST and name in KERNEL_NAMES:
        needs_multicast = any(part in name for part in _NEEDS_MULTICAST)
        if not name.startswith(f"{function}_") or (needs_multicast and evidence.environment.multicast is False):
            certainty = "certain"
    return Found(
        f"NCCL_SYM_KERNEL keeps {call.kind} from its symmetric kernels", [f"NCCL_SYM_KERNEL={name}"], certainty
    )


def unsupported(call: Call, evidence: Evidence) -> Found | None:
    """NCCL itself says that a communicator has no symmetric memory."""
    log = evidence.log
    if log is None or not log.unsupported or log.unsupported_text is None:
        return None
    # The line does not name its communicator.
    only = len(log.communicators) <= 1 or len(log.unsupported) >= len(log.communicators)
    return Found(
        "NCCL says that symmetric memory is not supported on its communicator",
        [f"NCCL's log: {log.unsupported_text}"],
        "certain" if only else "likely",
    )


_SOURCE = "https://github.com/NVIDIA/nccl/blob/v2.30.7-1"
_VARIABLES = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"

TOO_OLD = Rule(
    name="nccl-too-old",
    means="Symmetric kernels came with NCCL 2.27.",
    seen_by="the version of the library really loaded",
    mend="use NCCL 2.27 or newer (PyTorch 2.8 or newer bundles it)",
    source="https://github.com/NVIDIA/nccl/releases/tag/v2.27.3-1",
    look=nccl_too_old,
)
DOMAINS = Rule(
    name="several-nvlink-domains",
    means="The group's GPUs lie in more than one NVLink domain. An all-reduce is never symmetric there; an all-"
    "gather can be from NCCL 2.29.2 on, a reduce-scatter from 2.29.7 on, both by GPU-initiated "
    "networking.",
    seen_by="the number of nodes in NCCL's log; without it, a group larger than one host's ranks",
    mend="keep the group inside one NVLink domain, for example by reducing inside the host first",
    source=f"{_SOURCE}/src/sym_kernels.cc",
    look=several_domains,
)
NVLINK = Rule(
    name="no-direct-nvlink",
    means="From NCCL 2.29 on every two GPUs of the group must be joined by NVLink, directly or by a switch; P2P"
    " over PCIe is no longer enough.",
    seen_by="the NVLink state between the GPUs, and the version",
    mend="run on GPUs that are all joined by NVLink; with PCIe only, NCCL 2.27 or 2.28 is the last",
    source="https://github.com/NVIDIA/nccl/issues/2275",
    look=no_direct_nvlink,
)
PEERS = Rule(
    name="no-peer-access",
    means="GPUs can't read and write one another's memory: MIG, a virtual machine, a container without shared "
    "IPC, or P2P switched off.",
    seen_by="`Check P2P Type` in NCCL's log, or NCCL_P2P_DISABLE",
    mend="let the ranks share IPC (docker run --ipc=host), take the GPUs out of MIG, and enable P2P in the "
    "virtual machine",
    source=f"{_SOURCE}/src/init.cc",
    look=no_peer_access,
)
SWITCHED_OFF = Rule(
    name="switched-off",
    means="Windows are switched off (NCCL_WIN_ENABLE=0), or the memory that they are made of "
    "(NCCL_CUMEM_ENABLE=0; in NCCL 2.27 also NCCL_LOCAL_REGISTER=0).",
    seen_by="the ranks' environment, or what NCCL's log says it took and found",
    mend="unset the variable",
    source=_VARIABLES,
    look=switched_off,
)
ALGORITHM = Rule(
    name="algorithm-forced",
    means="From NCCL 2.31 on NCCL_ALGO takes the functions that it names away from symmetric kernels, unless "
    "NCCL_SYM_KERNEL is set too. Before, it had no effect on them.",
    seen_by="NCCL_ALGO, and the version",
    mend="unset NCCL_ALGO, or leave this function out of it",
    source=_VARIABLES,
    look=algorithm_forced,
)
UNKNOWN_NAME = Rule(
    name="unknown-symmetric-kernel",
    means="Up to NCCL 2.30, NCCL_SYM_KERNEL takes one exact name, such as AllReduce_RSxLD_AGxST. Any other text"
    " silently switches all symmetric kernels off.",
    seen_by="NCCL_SYM_KERNEL against the names of the version",
    mend="correct the name, or unset NCCL_SYM_KERNEL",
    source=f"{_SOURCE}/src/sym_kernels.cc",
    look=unknown_kernel_name,
)
KERNEL_CHOICE = Rule(
    name="symmetric-kernel-chosen",
    means="NCCL_SYM_KERNEL allows some symmetric kernels only, and this call can't use them.",
    seen_by="NCCL_SYM_KERNEL; certain where it names another function's kernel, or one that needs multicast "
    "without multicast",
    mend="unset NCCL_SYM_KERNEL",
    source=f"{_SOURCE}/src/sym_kernels.cc",
    look=kernel_choice,
)
UNSUPPORTED = Rule(
    name="communicator-without-symmetric-memory",
    means="NCCL found that the communicator can't have symmetric memory, for none of the reasons above.",
    seen_by="`Symmetric memory is not supported` in the log of NCCL 2.29 and 2.30, `symmetricSupport 0` from 2.31 on",
    mend="compare the numbers of that line with what the machine should have; `symmem-check doctor` looks at each",
    source=f"{_SOURCE}/src/init.cc",
    look=unsupported,
)
