"""A client for the few calls of GitHub's REST API that are made here: one request at a time, patient, and discreet.

Rules kept: https://docs.github.com/en/rest/using-the-rest-api/best-practices-for-using-the-rest-api and
https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urljoin, urlsplit

import msgspec

from .. import __version__
from ..errors import UserError
from ..report.text import one_line
from .settings import Token

if TYPE_CHECKING:
    import requests

T = TypeVar("T")

API_VERSION = "2022-11-28"
PER_PAGE = 100
MOST_PAGES = 300
LARGEST_ANSWER = 64 * 2**20
"""Bytes of one answer: a hundred comments of 65,536 characters are some twenty million."""
SECONDS_BETWEEN_WRITES = 1.0
SECONDARY_LIMIT_SECONDS = 60.0
_REDIRECTS = (301, 302, 303, 307, 308)
_ATTEMPTS = 4


class ApiError(UserError):
    """A call of GitHub's API failed; `status` is the answer's, 0 where there was none."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class RateLimited(ApiError):
    """GitHub asks to wait for longer than a job should."""


class Uncertain(ApiError):
    """The answer to a write was lost, so that it may or may not have been done."""


class Clock(Protocol):
    """Time as the client sees it: seconds since 1970, and waiting."""

    def now(self) -> float:
        """Seconds since 1970, UTC."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Seconds since 1970, UTC."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class Client:
    """Calls the API at `api_url` (GitHub Enterprise Server's ends in `/api/v3`) for one repository.

    It waits where GitHub asks for it, `patience` seconds in all; `timeout` is in seconds, to connect and between two
    reads. The token goes to `api_url`'s host alone. All methods raise ApiError.
    """

    def __init__(
        self,
        api_url: str,
        token: Token,
        *,
        clock: Clock | None = None,
        patience: float = 300.0,
        timeout: tuple[float, float] = (10.0, 30.0),
    ) -> None:
        from .transport import session_with_retries

        self._api, self._token = api_url.rstrip("/"), token
        self._clock, self._patience, self._timeout = clock or SystemClock(), patience, timeout
        self._written: float | None = None
        self._session = session_with_retries(self._clock, _ATTEMPTS)

    def __repr__(self) -> str:
        return f"Client({self._api!r})"

    def get(self, path: str, kind: type[T], **query: str | int) -> T:
        """GET `path` and decode the answer as `kind`."""
        return self._decoded(self._call("GET", self._url(path), query=query)[0], kind, path)

    def pages(self, path: str, kind: type[T], **query: str | int) -> Iterator[T]:
        """GET all pages of a list, each decoded as `kind`."""
        url: str | None = self._url(path)
        asked: dict[str, str | int] | None = {**query, "per_page": PER_PAGE}
        for _ in range(MOST_PAGES):
            if url is None:
                return
            body, response = self._call("GET", url, query=asked)
            yield self._decoded(body, kind, path)
            following = response.links.get("next", {}).get("url")
            url, asked = urljoin(url, following) if following else None, None  # the link holds the query already
        raise ApiError(f"GitHub: {path} has more than {MOST_PAGES * PER_PAGE} entries; the rest was not read")

    def post(self, path: str, content: dict[str, Any], kind: type[T]) -> T:
        """POST `content`. Raises Uncertain where it may have been done all the same."""
        return self._decoded(self._call("POST", self._url(path), content=content)[0], kind, path)

    def patch(self, path: str, content: dict[str, Any], kind: type[T]) -> T:
        """PATCH `path`."""
        return self._decoded(self._call("PATCH", self._url(path), content=content)[0], kind, path)

    def delete(self, path: str) -> None:
        """DELETE `path`; what is gone already is deleted too."""
        try:
            self._call("DELETE", self._url(path))
        except ApiError as error:
            if error.status != 404:
                raise

    def download(self, path: str, to: Path, limit: int) -> None:
        """Write to a file what `path` redirects to, `limit` bytes at most; the other host does not see the token."""
        with to.open("wb") as file:
            self._call("GET", self._url(path), into=file, limit=limit)

    def _url(self, path: str) -> str:
        return f"{self._api}{path}"

    def _decoded(self, body: bytes, kind: type[T], path: str) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise ApiError(f"GitHub: {path} answered something unexpected ({self._fit(str(error))})") from None

    def _call(
        self,
        method: str,
        url: str,
        *,
        query: dict[str, str | int] | None = None,
        content: dict[str, Any] | None = None,
        **sink: Any,
    ) -> tuple[bytes, requests.Response]:
        """One call, with the waiting that GitHub's rate limits ask for. Returns the answer's body too."""
        waited = 0.0
        while True:
            body, response = self._followed(method, url, query, content, sink)
            if response.status_code < 400:
                return body, response
            path = urlsplit(response.url).path
            message = self._message(body)
            wait = _limit_wait(response, message, self._clock.now())
            if wait is None:
                kind = Uncertain if response.status_code >= 500 and method != "GET" else ApiError
                raise kind(f"GitHub: {method} {path} answered {response.status_code}: {message}", response.status_code)
            wait = max(wait, 2 * waited)  # each time longer, where the same call is refused again
            if waited + wait > self._patience:
                told = f"GitHub's rate limit asks to wait for {wait:.0f} s: {message}"
                raise RateLimited(told, response.status_code)
            waited += wait
            self._clock.sleep(wait)

    def _followed(
        self, method: str, url: str, query: dict[str, str | int] | None, content: Any, sink: dict[str, Any]
    ) -> tuple[bytes, requests.Response]:
        """One request, and where it redirects to. A write follows only what stays at the API."""
        for _ in range(5):
            body, response = self._answer(method, url, query, content, sink)
            target = response.headers.get("Location")
            if response.status_code not in _REDIRECTS or not target:
                return body, response
            target = urljoin(url, target)
            if urlsplit(target).scheme != "https" and urlsplit(self._api).scheme == "https":
                raise ApiError(f"GitHub: {urlsplit(url).path} redirects to an address without TLS; it was not followed")
            if method != "GET" and (response.status_code not in (307, 308) or not self._is_api(target)):
                raise ApiError(f"GitHub: {method} {urlsplit(url).path} was redirected; it was not followed")
            url, query = target, None
        raise ApiError(f"GitHub: {urlsplit(url).path} redirects without end")

    def _answer(
        self, method: str, url: str, query: dict[str, str | int] | None, content: Any, sink: dict[str, Any]
    ) -> tuple[bytes, requests.Response]:
        """One request and its whole body, tried again where the connection broke in the middle of the body."""
        import requests

        if method != "GET":
            self._space_writes()
        attempt = 0
        while True:
            attempt += 1
            try:
                with self._session.request(
                    method, url, params=query, json=content, headers=self._headers(url), auth=_as_it_is,
                    timeout=self._timeout, allow_redirects=False, stream=True,
                ) as response:  # fmt: skip
                    return self._read(response, sink), response
            except requests.RequestException as error:
                broken = isinstance(error, (requests.exceptions.ChunkedEncodingError, requests.ConnectionError))
                if method == "GET" and broken and attempt < _ATTEMPTS:
                    self._clock.sleep(attempt)
                    continue
                host = urlsplit(url).hostname
                # Without the first error: its request holds the token.
                kind = ApiError if method == "GET" else Uncertain
                raise kind(f"GitHub: {method} to {host} failed: {self._fit(_reason(error))}") from None
            finally:
                if method != "GET":
                    self._written = self._clock.now()

    def _read(self, response: requests.Response, sink: dict[str, Any]) -> bytes:
        """The body, or b"" where the file in `sink` takes it."""
        whole = io.BytesIO()
        into, limit = whole, LARGEST_ANSWER
        if "into" in sink and response.status_code == 200:
            into, limit = sink["into"], sink["limit"]
            into.truncate(into.seek(0))  # of a try that broke off
        size = 0
        for chunk in response.iter_content(64 * 1024):
            size += len(chunk)
            if size > limit:
                raise ApiError(f"GitHub: {urlsplit(response.url).path} is larger than {limit // 2**20} MiB; not read")
            into.write(chunk)
        return whole.getvalue()

    def _headers(self, url: str) -> dict[str, str]:
        headers = {"User-Agent": f"symmem-check/{__version__}"}
        if self._is_api(url):
            headers |= {
                "Accept": "application/vnd.github+json",
                "Authorization": f"Bearer {self._token.value}",
                "X-GitHub-Api-Version": API_VERSION,
            }
        return headers

    def _is_api(self, url: str) -> bool:
        return urlsplit(url)[:2] == urlsplit(self._api)[:2]

    def _space_writes(self) -> None:
        if self._written is not None:
            early = self._written + SECONDS_BETWEEN_WRITES - self._clock.now()
            if early > 0:
                self._clock.sleep(early)

    def _message(self, body: bytes) -> str:
        try:
            told = msgspec.json.decode(body, type=_Problem).message
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            told = "no reason given"
        return self._fit(told)

    def _fit(self, text: str) -> str:
        """Text for an error: one line, and never the token, even where a proxy echoes the request."""
        return one_line(text.replace(self._token.value, "***"), 300)


class _Problem(msgspec.Struct):
    message: str


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """No other authorisation: left to itself, requests would put one from ~/.netrc in."""
    return request


def _reason(error: requests.RequestException) -> str:
    """What happened, without the objects' addresses that urllib3 puts around it."""
    inner: Any = error.args[0] if error.args else error
    inner = getattr(inner, "reason", None) or inner
    text = re.sub(r"<[^<>]* object at 0x[0-9a-f]+>:? ?", "", str(inner))
    return f"{type(error).__name__}: {text}"


def _limit_wait(response: requests.Response, message: str, now: float) -> float | None:
    """Seconds to wait before the same request may be made again; None where no rate limit refused it."""
    if response.status_code not in (403, 429):
        return None
    after = response.headers.get("Retry-After", "")
    if after.isascii() and after.isdecimal():
        return max(1.0, float(after[:9]))
    if response.headers.get("X-RateLimit-Remaining") == "0":
        reset = response.headers.get("X-RateLimit-Reset", "")
        if reset.isascii() and reset.isdecimal():
            return max(1.0, float(reset[:12]) - now + 1)
        return SECONDARY_LIMIT_SECONDS
    limited = response.status_code == 429 or "rate limit" in message.lower()
    return SECONDARY_LIMIT_SECONDS if limited else None
