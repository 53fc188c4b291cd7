"""The action's `mode: start`, `stop` and `reap`: the machine's verbs, with outputs and a summary."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from .action_inputs import Inputs
from .errors import UserError
from .machines.command import machine_settings, reap, start, stop
from .machines.model import Machine, NoCapacity
from .report.annotations import Annotation, command
from .report.text import markdown, one_line


def run_machine(
    inputs: Inputs,
    *,
    tell: Callable[[str], None],
    output: Callable[[dict[str, str]], None],
    summary: Callable[[str], None],
) -> int:
    """Do what the mode says; returns the exit status. Raises SymmemCheckError."""
    asked = argparse.Namespace(repository=None, run=None, attempt=None, key=inputs.machine_key)
    settings = machine_settings(asked)
    if inputs.machine is None:
        raise UserError("machine: is empty; give its YAML, or the path of a file with it")
    if inputs.mode == "stop":
        return stop(inputs.machine, settings, tell)
    if inputs.mode == "reap":
        return reap(inputs.machine, settings, tell)
    try:
        machine, label = start(inputs.machine, settings, tell)
    except NoCapacity as error:
        output({"verdict": "no-capacity"})
        print(command(Annotation("error", "no capacity", str(error))), flush=True)
        summary(f"### symmem-check: no capacity\n\nNothing was checked. {markdown(one_line(str(error), 4000))}\n")
        return error.exit_status
    output({"runner-label": label})
    summary(_started(machine))
    return 0


def _started(machine: Machine) -> str:
    until = time.strftime("%H:%M UTC on %d %B", time.gmtime(machine.deadline))
    price = "" if machine.price is None else f" for {machine.price:.2f} USD an hour"
    what = f"{machine.what} in {machine.where} ({machine.id})"
    told = f"{markdown(one_line(what))}{price}, at the latest until {until}."
    return f"### symmem-check: a machine was started\n\n{told}\n"
