"""The machines that are there, for a person: what, for which run, since when, until when, at what estimated cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from .columns import columns, console_for
from .text import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from ..machines.model import Machine

HEADING = ["name", "what", "where", "id", "run", "attempt", "for", "ends itself", "cost"]


def print_machines(machines: list[Machine], now: float, file: TextIO | Console | None = None) -> None:
    """Print a row a machine; `now` is in seconds since 1970. A cost that nobody can tell is a dash."""
    console = console_for(file)
    lines = columns([HEADING, *(_row(machine, now) for machine in machines)])
    lines[0].stylize("bold")
    for line in lines:
        console.print(line, soft_wrap=True)


def _row(machine: Machine, now: float) -> list[str]:
    hours = max(0.0, now - machine.since) / 3600
    left = (machine.deadline - now) / 3600
    cost = "-" if machine.price is None else f"about {hours * machine.price:.2f} USD"
    ends = f"in {left:.1f} h" if left > 0 else f"{-left:.1f} h overdue"
    owner = machine.owner
    told = [owner.name, machine.what, machine.where, machine.id]
    return [*map(one_line, told), str(owner.run_id), str(owner.attempt), f"{hours:.1f} h", ends, cost]
