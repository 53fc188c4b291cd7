"""The network between a starter and all that it calls: it counts the calls, and fails at one of them as it is told."""

from __future__ import annotations

import http.client
import os
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import urlsplit

What = Literal["drop", "kill", "cancel"]
When = Literal["before", "after"]


class Network:
    """A way to each of `servers`, by name. At call number `at` it does `what`, before or after the call is made.

    `drop` closes the connection without an answer. `kill` ends the starter by SIGKILL, and `cancel` asks it to end by
    SIGINT, after which its calls go on as ever. `ready` is set when the starter's id is known.
    """

    def __init__(self, **servers: str) -> None:
        self.calls: list[str] = []
        self.at, self.what, self.when = 0, "drop", "before"
        self.starter, self.ready = 0, threading.Event()
        self._lock = threading.Lock()
        self._servers = {name: self._serve(url) for name, url in servers.items()}

    def url(self, name: str) -> str:
        """Where a server is reached over this network."""
        return f"http://127.0.0.1:{self._servers[name].server_port}"

    def fail(self, at: int, what: What, when: When) -> None:
        """Count anew, and fail at that call; 0 is none."""
        self.calls, self.at, self.what, self.when = [], at, what, when
        self.ready.clear()

    def close(self) -> None:
        """Stop listening."""
        for server in self._servers.values():
            server.shutdown()
            server.server_close()

    def _serve(self, url: str) -> ThreadingHTTPServer:
        parts = urlsplit(url)
        handler = type("Handler", (_Handler,), {"network": self, "upstream": (parts.hostname, parts.port)})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    def count(self, call: str) -> int:
        """Note a call; its number."""
        with self._lock:
            self.calls.append(call)
            return len(self.calls)

    def act(self) -> bool:
        """Do what was told to the starter; whether the connection is to be closed."""
        if self.what == "drop":
            return True
        assert self.ready.wait(30)
        os.kill(self.starter, signal.SIGKILL if self.what == "kill" else signal.SIGINT)
        if self.what == "kill":
            time.sleep(0.02)  # it is gone before its connection is
        return self.what == "kill"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    network: Network
    upstream: tuple[str, int]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        network = self.network
        fails = network.count(f"{self.command} {self.path}") == network.at
        if fails and network.when == "before" and network.act():
            self.close_connection = True
            return
        connection = http.client.HTTPConnection(*self.upstream, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("connection", "host")}
        connection.request(self.command, self.path, body, headers | {"Host": self.headers["Host"]})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if fails and network.when == "after" and network.act():
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = forward
