"""The command line: what is made for one sub-command alone is what the whole would be."""

from __future__ import annotations

import argparse

import pytest

from runner.arguments import parser
from runner.cli import COMMANDS, main


def parts(made: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    [commands] = [action for action in made._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(commands.choices)


@pytest.mark.parametrize("command", COMMANDS)
def test_one_command_alone_is_as_among_all(command):
    whole, alone = parts(parser()), parts(parser(command))
    assert set(whole) == set(COMMANDS)
    assert set(alone) == {command}
    assert alone[command].format_help() == whole[command].format_help()


def test_the_whole_tells_every_command_and_exit_status(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    told = capsys.readouterr().out
    assert all(f"\n    {command} " in told for command in COMMANDS)
    assert [line for line in "01234" if f"{line} " not in told.partition("exit status:")[2]] == []


@pytest.mark.parametrize("given", [[], ["clas"], ["classif", "x"], ["--nothing"]])
def test_what_is_no_command_is_told(given, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(given)
    assert "usage: symmem-check" in capsys.readouterr().err
