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


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            ["run", "--script", "train.py", "--config", "small.yaml"],
            "symmem-check run: error: unrecognized arguments: --config small.yaml; the arguments of --script stand at "
            "the end, after --",
        ),
        (["run", "train.py"], "symmem-check run: error: unrecognized arguments: train.py"),
        (["classify", "--frmat", "json", "x.json"], "symmem-check classify: error: unrecognized arguments: --frmat"),
        (["run", "--suite", "."], "symmem-check: --suite '.': is a folder; give a suite file in it"),
        (["run", "--script", "."], "symmem-check: .: is a folder; give the training script's path with --script"),
        (
            ["machine", "list", "--machine", "m.yaml"],
            "symmem-check: GITHUB_REPOSITORY is not set; set it to OWNER/NAME",
        ),
    ],
)
def test_a_mistake_is_told_with_the_usage_of_its_own_command(given, told, capsys, monkeypatch):
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    try:
        status = main(given)
    except SystemExit as end:
        status = end.code
    last = capsys.readouterr().err.splitlines()[-1]
    assert (status, last[: len(told)]) == (2, told)
