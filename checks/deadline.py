"""The deadline of a case: a watchdog thread that ends a rank which hangs, or waits for a peer that failed."""

from __future__ import annotations

import contextlib
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
# For telling the peers, which may have no store any more to hear it by.
LEAVE_SECONDS = PATIENCE_SECONDS + 2.0
OWN_THREADS = ("deadline", "peers")


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
    own = {threading.get_ident(), *(ident for ident, name in names.items() if name in OWN_THREADS)}
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] == threading.main_thread().ident)
    dumps = [
        f"Thread {names.get(ident, 'autograd or another native thread')}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in frames
        if ident not in own
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
        self._trouble: tuple[int, dict] | None = None
        self._thread = threading.Thread(target=self._watch, name=OWN_THREADS[0], daemon=True)
        # Apart from the clock: a store whose host has stopped holds up who asks it.
        self._listener = threading.Thread(target=self._listen, name=OWN_THREADS[1], daemon=True)

    def __enter__(self) -> Deadline:
        faulthandler.dump_traceback_later(self.seconds + BACKUP_SECONDS, exit=True)
        self._thread.start()
        self._listener.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._thread.join()
        self._listener.join()
        faulthandler.cancel_dump_traceback_later()

    def _listen(self) -> None:
        while not self._over.wait(POLL_SECONDS):
            try:
                self._trouble = peer_trouble(self.control, self.topic)
            except PeerLost:
                self._trouble = None  # the deadline still ends this rank

    def _watch(self) -> None:
        end = time.monotonic() + self.seconds
        troubled_since = None
        while not self._over.wait(POLL_SECONDS):
            now, trouble = time.monotonic(), self._trouble
            if now > end:
                self._give_up("hung", f"no end within {self.seconds:g} s")
            if trouble is None:
                continue
            troubled_since = troubled_since or now
            if trouble[1]["outcome"] == "raised" or now - troubled_since > PATIENCE_SECONDS:
                self._give_up("raised", waiting_for(*trouble))

    def _give_up(self, outcome: str, message: str) -> None:
        if not self.record.finish(outcome, message, stacks()):
            return
        faulthandler.cancel_dump_traceback_later()
        self._over.set()
        teller = threading.Thread(target=self._tell, args=(outcome, message), daemon=True)
        teller.start()
        teller.join(LEAVE_SECONDS)
        leave()

    def _tell(self, outcome: str, message: str) -> None:
        self._listener.join()  # which uses the same client
        with contextlib.suppress(PeerLost):
            self.control.post(self.topic, outcome=outcome, message=message)
            self.control.linger(self.topic, PATIENCE_SECONDS)
