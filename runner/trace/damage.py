"""What a file lost, in words: a salvaged trace must say so, and must not be judged as if it were whole."""

from __future__ import annotations

import msgspec

NO_CLOSING = "the file ends without its closing brackets"


class Damage(msgspec.Struct):
    """Losses while reading one file. Places are byte offsets in the decompressed text."""

    lost_events: int = 0
    read_events: int = 0
    first_place: int | None = None
    notes: list[str] = []
    events_missing: bool = False
    """Some events are known to be gone (dropped, or the file breaks off inside one)."""
    breaks_off: bool = False
    """The file breaks off between two events: whether any are gone can't be told."""

    @property
    def any(self) -> bool:
        return bool(self.lost_events or self.notes)

    def lose(self, place: int, count: int = 1) -> None:
        self.lost_events += count
        self.events_missing = True
        if self.first_place is None:
            self.first_place = place

    def note(self, sentence: str, *, events_missing: bool = False) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)
        self.events_missing = self.events_missing or events_missing

    def break_off(self) -> None:
        self.note(NO_CLOSING)
        self.breaks_off = True

    def summary(self, line: int | None) -> str | None:
        """One line that says what was lost, or None. `line` is the first loss's line in the text."""
        parts = list(self.notes)
        if self.lost_events:
            events = "1 event" if self.lost_events == 1 else f"{self.lost_events} events"
            where = (
                f", the first at line {line}" if line and self.lost_events > 1 else f" at line {line}" if line else ""
            )
            parts.insert(0, f"{events} could not be read{where}")
        return "; ".join(parts) or None
