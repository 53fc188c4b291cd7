"""Watch a start of the ranks by what they record, and write down what they no longer can."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Literal, Protocol

import msgspec

from .errors import UserError
from .plan import DEFAULT_CONFIGURATION, Case, Plan
from .processes import POLL_SECONDS, Failure, how_it_ended
from .runfolder import End, Lost, LostOutcome, RankOutcome, Record, RunFolder, write_json

OVERDUE_SECONDS = 10.0
"""A rank ends itself at its deadline, or a few seconds after; beyond that it is killed."""
QUIET_SECONDS = 30.0
"""Between two cases the ranks only agree; where nothing happens for so long, they no longer can."""
STOP_SECONDS = 5.0
SHARED_POLL_SECONDS = 0.5
UNSTEADY_TRIES = 10
NOT_RUN = "not run: interrupted"
SEVERITY: tuple[RankOutcome, ...] = ("ok", "incapable", "wrong-values", "hung", "raised")


class CaseProgress(msgspec.Struct, frozen=True):
    """A case that has begun, ended or been lost; `index` counts from 0, `seconds` from its begin.

    `outcome` and `message` are those of the rank that fared worst. After `raised`, `hung` and a lost case, the
    cases that are left run in a fresh start of the ranks. `index` follows the order of running, which goes by
    `configuration`.
    """

    case: str
    index: int
    total: int
    state: Literal["started", "done", "lost"]
    outcome: RankOutcome | LostOutcome | None = None
    message: str | None = None
    seconds: float = 0.0
    configuration: str = DEFAULT_CONFIGURATION


class Start(msgspec.Struct, frozen=True):
    """One start of the ranks: its number, the ids of the cases it ended or lost, and how it ended itself."""

    number: int
    cases: list[str]
    end: End


class Ranks(Protocol):
    """The processes of one start of the ranks, on this machine or on several."""

    @property
    def name(self) -> str:
        """What started them, for messages."""

    @property
    def shared(self) -> bool:
        """Whether the run folder is written from other hosts too, by a network file system."""

    def poll(self) -> int | None:
        """Return the exit status of what started them, negative for a signal; None while it runs."""

    def stop(self, patience: float) -> int:
        """End all of them, killed after `patience` seconds; returns the status. None is left when this returns."""

    def first_failure(self) -> Failure | None:
        """Return the rank that was seen to fail first; None if none was."""

    def last_words(self) -> str:
        """Return the last line of what they printed."""


class Stop:
    """The signal that asks the run to end; 0 while none has come."""

    signal = 0


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Hold SIGINT, SIGTERM and SIGHUP back, so that the ranks are ended and recorded first; then let them act."""
    with holding_signals() as stop:
        yield stop
    if stop.signal:
        signal.raise_signal(stop.signal)


@contextmanager
def holding_signals() -> Iterator[Stop]:
    """Only note SIGINT, SIGTERM and SIGHUP; what to do about one is the caller's, also afterwards."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, frame: FrameType | None) -> None:
        stop.signal = number

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Watch:
    """Follows the cases of a plan over all starts of the ranks. No case is ever begun twice."""

    def __init__(self, plan: Plan, folder: RunFolder, progress: Callable[[CaseProgress], None]) -> None:
        self._plan, self._folder, self._progress = plan, folder, progress
        self._cases = plan.in_order_of_running()
        self._index = {case.id: index for index, case in enumerate(self._cases)}
        self._began: dict[str, float] = {}
        self._ended: set[str] = set()
        self._last_change = time.monotonic()

    def left(self) -> list[Case]:
        """Return the cases that have neither ended nor been lost, in the order of running."""
        return [case for case in self._cases if case.id not in self._ended]

    def follow(self, part: Plan, processes: Ranks, stop: Stop, start_deadline: float) -> End:
        """Watch one start until it ends, ending it where it is overdue or `stop` asks; returns how it ended."""
        began = time.monotonic()
        while True:
            status = processes.poll()  # before looking, so that the last look sees all there is
            self._look_all(part, processes)
            if stop.signal:
                return self._stopped(part, processes, signal.Signals(stop.signal).name)
            if status is not None:
                processes.stop(patience=0)
                return self._conclude(part, processes, status)
            if time.monotonic() - began > start_deadline and (absent := self._absent(part)):
                message = f"{ranks(absent)} did not come up within {start_deadline:g} s"
                return self._give_up(part, processes, absent, message)
            if overdue := self._overdue(part):
                message = f"no end within {overdue.deadline:g} s, nor {OVERDUE_SECONDS:g} s later"
                return self._give_up(part, processes, self._unfinished(overdue), message)
            if self._quiet(part):
                return self._give_up(part, processes, [], f"nothing happened for {QUIET_SECONDS:g} s after a case")
            time.sleep(SHARED_POLL_SECONDS if processes.shared else POLL_SECONDS)

    def _look_all(self, part: Plan, processes: Ranks) -> None:
        """Take in all that is recorded by now, also where a network file system is late to tell of a case's end."""
        seen = -1
        while seen != len(self._ended):
            seen = len(self._ended)
            if processes.shared:
                self._look_steadily(part)
            else:
                self._look(part)

    def _look_steadily(self, part: Plan) -> None:
        """Look, again where a file is between two states: a network file system may show a new one in its old size."""
        for _ in range(UNSTEADY_TRIES):
            self._see_anew(part)
            try:
                return self._look(part)
            except UserError:
                time.sleep(SHARED_POLL_SECONDS)
        return self._look(part)

    def _see_anew(self, part: Plan) -> None:
        """Have a network file system show what other hosts wrote: a host that changes a folder reads it again.

        Else it may show a folder as it was up to a minute ago: https://man7.org/linux/man-pages/man5/nfs.5.html
        """
        next_case = [case for case in part.cases if case.id not in self._ended][:1]
        for name in (f"starts/{part.start}", *(case.folder for case in next_case)):
            probe = self._folder.path / name / ".look"
            probe.parent.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink(missing_ok=True)

    def _look(self, part: Plan) -> None:
        """Take in what the ranks have recorded since the last look. They take the cases in order."""
        for case in part.cases:
            if case.id in self._ended:
                continue
            records = self._folder.records(case)
            if not records:
                return
            if case.id not in self._began:
                self._began[case.id] = time.monotonic()
                self._tell(case, "started")
            if self._unfinished(case):
                return
            worst = max(records.values(), key=severity)
            self._ended.add(case.id)
            # On several hosts a case is seen late; what the ranks measured tells better.
            lasted = max(record.seconds.get("total", 0.0) for record in records.values())
            self._tell(case, "done", worst.outcome, worst.message, lasted)

    def _tell(
        self,
        case: Case,
        state: Literal["started", "done", "lost"],
        outcome: RankOutcome | LostOutcome | None = None,
        message: str | None = None,
        lasted: float = 0.0,
    ) -> None:
        self._last_change = time.monotonic()
        seconds = max(lasted, self._last_change - self._began.get(case.id, self._last_change))
        place, total = self._index[case.id], len(self._cases)
        self._progress(CaseProgress(case.id, place, total, state, outcome, message, seconds, case.configuration))

    def _absent(self, part: Plan) -> list[int]:
        """Return the ranks that did not come; where all came and could not join one another, those that didn't."""
        present = self._folder.environments(part.start)
        gone = [rank for rank in range(part.ranks) if rank not in present]
        return gone or [rank for rank, environment in present.items() if not environment.joined]

    def _unfinished(self, case: Case) -> list[int]:
        records = self._folder.records(case)
        return [rank for rank in range(self._plan.ranks) if rank not in records or records[rank].state != "done"]

    def _overdue(self, part: Plan) -> Case | None:
        now = time.monotonic()
        for case in self._begun(part):
            if now - self._began[case.id] > case.deadline + OVERDUE_SECONDS:
                return case
        return None

    def _quiet(self, part: Plan) -> bool:
        after_a_case = self._ended_any(part) and not self._begun(part)
        return after_a_case and time.monotonic() - self._last_change > QUIET_SECONDS

    def _ended_any(self, part: Plan) -> bool:
        return any(case.id in self._ended for case in part.cases)

    def _begun(self, part: Plan) -> list[Case]:
        """Return the cases of this start that a rank has begun and not all ranks have ended."""
        return [case for case in part.cases if case.id in self._began and case.id not in self._ended]

    def _stopped(self, part: Plan, processes: Ranks, name: str) -> End:
        status = processes.stop(STOP_SECONDS)
        for case in part.cases:
            # Also where a rank has recorded an end by now: that may be of being stopped.
            if case.id not in self._ended and self._folder.records(case):
                self._ended.add(case.id)
                self._write_lost(case, part.start, "stopped", None, f"stopped by {name} while it ran")
        return End(exit_status=status, ended="stopped", message=f"stopped by {name}")

    def _give_up(self, part: Plan, processes: Ranks, culprits: list[int], message: str) -> End:
        status = processes.stop(STOP_SECONDS)
        self._look_all(part, processes)
        self._lose(part, "hung", culprits[0] if len(culprits) == 1 else None, message)
        return End(exit_status=status, ended="hung", message=message)

    def _conclude(self, part: Plan, processes: Ranks, status: int) -> End:
        """Say how a start ended whose processes are gone, and write down the case that went with them."""
        failure = processes.first_failure()
        rank, message = self._why(part, processes, status, failure)
        hung = [case for case in self._begun(part) if time.monotonic() - self._began[case.id] > case.deadline]
        unfinished = bool(self._begun(part)) or not self._ended_any(part)
        if unfinished:
            if hung:
                message = f"no end within {hung[0].deadline:g} s; the stacks are in starts/{part.start}/log.txt"
            self._lose(part, "hung" if hung else "died", rank, message)
        if hung:
            return End(exit_status=status, ended="hung", message=message)
        if unfinished or status != 0:
            return End(exit_status=status, ended="died", message=message)
        left = sum(case.id not in self._ended for case in part.cases)
        if not left:
            return End(exit_status=status, ended="finished")
        total = sum(case.configuration == part.cases[0].configuration for case in self._cases)
        message = f"{left} of {total} cases left for a fresh start of the ranks"
        return End(exit_status=status, ended="restart", message=message)

    def _why(self, part: Plan, processes: Ranks, status: int, failure: Failure | None) -> tuple[int | None, str]:
        """Return the rank that a start ended for, where one is known, and one line that says how it ended."""
        if status < 0:
            return None, f"{processes.name} {how_it_ended(status)}: {processes.last_words()}"
        for rank, environment in self._folder.environments(part.start).items():
            if environment.error is not None:
                return rank, f"rank {rank} did not come up: {environment.error}"
        if failure is not None:
            return failure.rank, f"rank {failure.rank} {how_it_ended(failure.status)}{failure.where}"
        return None, f"{processes.name} {how_it_ended(status)}: {processes.last_words()}"

    def _lose(self, part: Plan, outcome: LostOutcome, rank: int | None, message: str) -> None:
        """Write off the case that had begun; all of this start where none had: a new one would fare the same."""
        for case in self._begun(part) or ([] if self._ended_any(part) else part.cases):
            self._ended.add(case.id)
            self._write_lost(case, part.start, outcome, rank, message)
            self._tell(case, "lost", outcome, message)

    def write_off_left(self) -> None:
        """Write down the cases that are left when the run is stopped."""
        for case in self.left():
            self._write_lost(case, None, "stopped", None, NOT_RUN)

    def _write_lost(self, case: Case, start: int | None, outcome: LostOutcome, rank: int | None, message: str) -> None:
        lost = Lost(case=case.id, start=start, outcome=outcome, rank=rank, message=message)
        write_json(lost, self._folder.path / case.folder / "lost.json")


def severity(record: Record) -> tuple[int, bool]:
    """Order records by how bad they are; of two ranks that raised, the one that did not just wait is worse."""
    outcome = SEVERITY.index(record.outcome) if record.outcome else -1
    return outcome, "this rank was waiting" not in (record.message or "")


def ranks(numbers: list[int]) -> str:
    """Name some ranks: "rank 1" or "ranks 0, 2"."""
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
