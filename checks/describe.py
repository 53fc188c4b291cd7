"""What this Python offers: its torch, CUDA and GPUs, told without starting ranks."""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path

from . import nvidia


def describe(*, thorough: bool = False) -> dict:
    """Return torch's version, its CUDA, the visible GPUs and the NCCL it was built with; never raises.

    `error` is None, or one line that says why there is nothing to run on. Importing torch takes seconds, and the
    ranks do it anyhow: unless `thorough`, it is left out where files and the driver tell the same, and then
    `nccl_built` is None.
    """
    facts = None if thorough else without_import()
    return by_import() if facts is None else facts


def without_import() -> dict | None:
    """Return what torch's own version file and the GPU driver tell; None where that might not be what torch sees."""
    try:
        spec = importlib.util.find_spec("torch")
        version = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
        torch, cuda, hip = version["__version__"], version["cuda"], version.get("hip")
    except Exception:  # no torch, or one that is laid out in another way: the import will say
        return None
    facts = {"torch": str(torch), "cuda": cuda, "devices": [], "nccl_built": None, "error": None}
    if cuda is None and hip is None:
        facts["error"] = f"torch {torch} is built without CUDA"
        return facts
    # A driver of an older CUDA than torch's is one that torch can't use.
    driver = nvidia.driver_cuda()
    if cuda is None or driver is None or driver < int(cuda.split(".")[0]):
        return None
    facts["devices"] = nvidia.visible_devices()
    return facts if facts["devices"] else None


def by_import() -> dict:
    """Return what torch itself says."""
    facts = {"torch": None, "cuda": None, "devices": [], "nccl_built": None, "error": None}
    try:
        import torch
    except Exception as error:
        facts["error"] = f"torch can't be imported: {one_line(error)}"
        return facts
    facts["torch"] = torch.__version__
    facts["cuda"] = torch.version.cuda
    try:
        facts["nccl_built"] = nccl_built()
        if torch.cuda.is_available():
            facts["devices"] = [describe_device(index) for index in range(torch.cuda.device_count())]
    except Exception as error:
        facts["error"] = f"torch {torch.__version__} can't use the GPU: {one_line(error)}"
        return facts
    if torch.version.cuda is None:
        facts["error"] = f"torch {torch.__version__} is built without CUDA"
    elif not facts["devices"]:
        facts["error"] = f"torch {torch.__version__} sees no GPU"
    return facts


def describe_device(index: int) -> dict:
    """Return the name, compute capability and UUID of the visible GPU `index`."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    return {
        "index": index,
        "name": properties.name,
        "capability": [properties.major, properties.minor],
        "uuid": None if uuid is None else str(uuid),
    }


def nccl_built() -> str | None:
    """Return the version of NCCL that torch was built with, which need not be the one that is loaded."""
    import torch

    if torch.version.cuda is None or not torch.distributed.is_nccl_available():
        return None
    return ".".join(str(part) for part in torch.cuda.nccl.version()[:3])


def one_line(error: BaseException) -> str:
    """Return the error's type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
