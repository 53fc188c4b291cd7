"""A provider for tests: the machine is a process of this host that runs the real bootstrap script.

It keeps its books in files, so that machines outlive the starter as real ones do.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from runner.errors import UserError
from runner.machines.bootstrap import bootstrap
from runner.machines.model import Machine, MachineError, NoCapacity, Order, Owner


class LocalProvider:
    """Machines in `folder`. `full` is no capacity, `dear` a price above the limit, `broken` names what fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.full = self.dear = False
        self.twice = False
        self.broken: set[str] = set()
        self.calls: list[str] = []

    def check(self) -> None:
        if self.dear:
            raise UserError("it costs too much")

    def start(self, order: Order) -> Machine:
        self.calls.append("start")
        if self.full:
            raise NoCapacity("nothing is free here")
        first = self._launch(order)
        if self.twice:
            self._launch(order)
        if "start" in self.broken:
            raise MachineError("the answer was lost")
        return first

    def stop(self, machine: Machine) -> None:
        self.calls.append("stop")
        if "stop" in self.broken:
            raise MachineError("it can't be stopped")
        book = self.folder / machine.id
        if book.exists():
            pid = json.loads((book / "book.json").read_text())["pid"]
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            _wait_for_end(pid)
            (book / "book.json").unlink()
            (book / "journal").unlink()
            book.rmdir()

    def list(self, server: str, repository: str) -> list[Machine]:
        found = []
        for file in sorted(self.folder.glob("*/book.json")):
            book: dict[str, Any] = json.loads(file.read_text())
            if (book["server"], book["repository"]) == (server, repository):
                found.append(self._machine(file.parent.name, book))
        return found

    def journal(self, machine: Machine) -> str:
        return (self.folder / machine.id / "journal").read_text()

    def _launch(self, order: Order) -> Machine:
        name = f"local-{time.monotonic_ns()}"
        place = self.folder / name
        place.mkdir(parents=True)
        script = bootstrap(order, work=str(self.folder / "work" / name), jit=order.registration())
        with (place / "journal").open("wb") as journal:
            process = subprocess.Popen(
                ["bash", "-s"], stdin=subprocess.PIPE, stdout=journal, stderr=journal, start_new_session=True
            )
            assert process.stdin is not None
            process.stdin.write(script.encode())
            process.stdin.close()
        owner = order.owner
        book = {
            "pid": process.pid, "server": owner.server, "repository": owner.repository, "run_id": owner.run_id,
            "attempt": owner.attempt, "key": owner.key, "since": time.time(),
            "deadline": time.time() + order.limits.seconds,
        }  # fmt: skip
        (place / "book.json").write_text(json.dumps(book))
        return self._machine(name, book)

    def _machine(self, name: str, book: dict[str, Any]) -> Machine:
        owner = Owner(**{key: book[key] for key in ("server", "repository", "run_id", "attempt", "key")})
        return Machine(
            provider="local", id=name, where="here", what="a process", owner=owner, since=book["since"],
            deadline=book["deadline"], price=2.0,
        )  # fmt: skip


def _wait_for_end(pid: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.02)
    raise AssertionError(f"{pid} did not end")
