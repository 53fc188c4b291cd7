"""A session of requests that tries again what is safe to try again. Apart, since requests is slow to import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

    from .client import Clock

LONGEST_WAIT = 60.0
"""Seconds between two tries."""


class _Patient(Retry):
    """Retry with a clock that tests can set, and a bound on what a server's Retry-After may ask for."""

    # A connection that was never made has done nothing, so that is retried with every method. A POST whose answer was
    # lost may have been done: its caller must look.
    RETRY_AFTER_STATUS_CODES = frozenset({503})
    clock: Clock

    def new(self, **more: Any) -> _Patient:
        fresh = super().new(**more)
        fresh.clock = self.clock
        return fresh

    def sleep(self, response: BaseHTTPResponse | None = None) -> None:
        asked = self.get_retry_after(response) if response is not None else None
        wait = min(asked or self.get_backoff_time(), LONGEST_WAIT)
        if wait > 0:
            self.clock.sleep(wait)


def session_with_retries(clock: Clock, attempts: int) -> requests.Session:
    """A session that tries `attempts` times: broken connections, time-outs and 5xx, the last two not of a POST."""
    retries = _Patient(
        total=attempts - 1,
        backoff_factor=1,
        allowed_methods=frozenset({"GET", "PATCH", "DELETE"}),
        status_forcelist=frozenset({500, 502, 503, 504}),
        raise_on_status=False,
        redirect=False,
    )
    retries.clock = clock
    session = requests.Session()
    adapter = HTTPAdapter(max_retries=retries)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    return session
