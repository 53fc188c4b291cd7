"""What the tests of reading in several processes share."""

from __future__ import annotations

import threading

import pytest


@pytest.fixture
def forked(monkeypatch):
    """Processes that have what a test has changed, whatever threads the tests before have left in this one."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)
