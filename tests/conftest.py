"""What every test has: the project's top folder, and the marks `gpu` and `needs_program`."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from .slurm_cluster import cluster, slurm  # noqa: F401

# A busy machine is slow for a moment, which is no fault of the example that was tried then.
settings.register_profile("busy", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@pytest.fixture(scope="session")
def project() -> Path:
    """The top folder of the checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def plain_terminal() -> Iterator[None]:
    """The same terminal for every test: the caller's may be dumb, narrow, or one without colours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm-256color")
        for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "LINES"):
            patch.delenv(name, raising=False)
        yield


def pytest_configure() -> None:
    """Let programs that are started here be interrupted, even where this one was started to ignore that (nohup, &)."""
    handlers = {
        signal.SIGINT: signal.default_int_handler, signal.SIGHUP: lambda *_: None, signal.SIGQUIT: lambda *_: None,
    }  # fmt: skip
    for number, handler in handlers.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: a worker that takes one of them last would keep all others waiting."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this machine can't do; in continuous integration a missing program is a failure."""
    for mark in item.iter_markers("needs_program"):
        name = mark.args[0]
        if shutil.which(name) is None:
            missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
            missing(f"the program {name} is missing; install it")
    if item.get_closest_marker("gpu") and not _has_gpu():
        pytest.skip("needs an NVIDIA GPU and a CUDA build of torch")


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell what the tests that inject faults counted."""
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, told in report.user_properties:
            if name == "faults" and report.when == "call":
                terminalreporter.write_line(f"faults injected: {told}")
