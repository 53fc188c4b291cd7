"""The arguments of `symmem-check machine`."""

from __future__ import annotations

import argparse

DEFAULT_KEY = "gpu"
EPILOG = """\
exit status: 0 done, 2 the call or the YAML is wrong, 3 the machine or its provider failed, 4 no capacity

The token for GitHub is taken from SYMMEM_CHECK_RUNNER_TOKEN. It needs `administration: write` of the repository (or
`self-hosted runners: write` of the organization) and `actions: read`, which the token of a job never has. It does not
reach the machine.
"""


def add_machine(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `machine` with its verbs."""
    machine = commands.add_parser(
        "machine",
        help="start a machine with GPUs for a job on GitHub, and give it back",
        description="Start a machine with GPUs that is an ephemeral runner for one job, end it, list those that are "
        "there, and end what is left of runs that are over.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = machine.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True)
    _add_verb(verbs, "start", "start this run's machine; prints the label to run on", run=True)
    _add_verb(verbs, "stop", "end this run's machines, of this attempt and of those before", run=True)
    listing = _add_verb(verbs, "list", "list the repository's machines: for which run, since when, at what cost")
    listing.add_argument("--format", choices=("table", "json"), default="table", help="default: table")
    reap = _add_verb(verbs, "reap", "end what is left of runs that are over, and what outlived its deadline")
    reap.add_argument("--dry-run", action="store_true", help="only tell what would be ended")


def _add_verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, told: str, *, run: bool = False
) -> argparse.ArgumentParser:
    verb = verbs.add_parser(
        name, help=told, description=told[0].upper() + told[1:] + ".", epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    verb.add_argument(
        "--machine", metavar="FILE|YAML", required=True, help="where the GPUs come from: YAML, or a file with it"
    )
    verb.add_argument("--repository", metavar="OWNER/NAME", help="default: GITHUB_REPOSITORY")
    verb.set_defaults(command="machine", run=None, attempt=None, key=None)
    if run:
        verb.add_argument("--run", metavar="ID", type=_number, help="the workflow's run (default: GITHUB_RUN_ID)")
        last = name == "stop"
        verb.add_argument(
            "--attempt", metavar="N", type=_number,
            help="of the run; default: GITHUB_RUN_ATTEMPT, else " + ("all" if last else "1"),
        )  # fmt: skip
        verb.add_argument(
            "--key", metavar="KEY", type=key,
            help="tells apart the machines of one run; default: " + ("all of them" if last else DEFAULT_KEY),
        )  # fmt: skip
    return verb


def key(text: str) -> str:
    """A machine's key, for argparse."""
    from .model import KEY  # here, since this module is read at every start of the command line

    if not KEY.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no key; give up to 20 small letters, digits and dashes")
    return text


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18 or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of a run or attempt")
    return int(text)
