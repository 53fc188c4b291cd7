"""The deadline of a case: a watchdog thread that ends a rank which hangs, or waits for a peer that failed."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
import traceback

from .control import Control, PeerLost
from .record import Record

POLL_SECONDS = 0.2
# A peer that has just met what this rank is about to meet deserves that much patience before this rank is
# said to wait for it.
PATIENCE_SECONDS = 5.0
# Beyond the deadline, for a rank whose interpreter lock is held and which thus has no watchdog.
BACKUP_SECONDS = 5.0


def leave(status: int = 0) -> None:
    """End this process at once. A tear-down after a failure could hang, and all is written by now.

    The status is 0 after any failure that was recorded, so that torchrun lets the peers write theirs.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def stacks() -> str:
    """Return the Python stack of every thread, the main thread last, where the eye falls first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] == threading.main_thread().ident)
    dumps = [
        f"Thread {names.get(ident, 'autograd or another native thread')}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in frames
        if ident != own
    ]
    return "\n".join(dumps)


def peer_trouble(control: Control, topic: str) -> tuple[int, dict] | None:
    """Return the rank, and its answer, that this rank waits for in vain: one that raised or is incapable."""
    for rank, answer in control.answers(topic).items():
        if rank != control.rank and answer["outcome"] in ("raised", "incapable"):
            return rank, answer
    return None


def waiting_for(rank: int, answer: dict) -> str:
    """Say, in one line, that this rank waited for `rank`, which had given up."""
    return f"rank {rank} {'raised' if answer['outcome'] == 'raised' else 'is incapable'}; this rank was waiting"


class Deadline:
    """Ends the process if the case in the `with` block takes longer than `seconds`, or a peer has failed.

    The process leaves with its record written: outcome `hung` with every thread's stack, or `raised`.
    """

    def __init__(self, record: Record, control: Control, topic: str, seconds: float) -> None:
        self.record, self.control, self.topic, self.seconds = record, control, topic, seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="deadline", daemon=True)

    def __enter__(self) -> Deadline:
        faulthandler.dump_traceback_later(self.seconds + BACKUP_SECONDS, exit=True)
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        end = time.monotonic() + self.seconds
        troubled_since = None
        while not self._over.wait(POLL_SECONDS):
            now = time.monotonic()
            if now > end:
                self._give_up("hung", f"no end within {self.seconds:g} s")
            try:
                trouble = peer_trouble(self.control, self.topic)
            except PeerLost:
                trouble = None  # the deadline still ends this rank
            if trouble is None:
                continue
            troubled_since = troubled_since or now
            if trouble[1]["outcome"] == "raised" or now - troubled_since > PATIENCE_SECONDS:
                self._give_up("raised", waiting_for(*trouble))

    def _give_up(self, outcome: str, message: str) -> None:
        if not self.record.finish(outcome, message, stacks()):
            return
        try:
            self.control.post(self.topic, outcome=outcome, message=message)
        finally:
            leave()
