"""Runs `symmem-check machine …` in a child of its own, again and again, without paying for the imports each time.

A line of JSON in: arguments and environment. Two lines out: the child's id as it begins, and its status when it has
ended.
Waits are cut short, so that hundreds of runs take minutes: what is waited for comes at once here, or never.
"""

from __future__ import annotations

import json
import os
import sys
import time

from runner.cli import main
from runner.github import client
from runner.machines import lifecycle
from runner.machines.ec2_aws import TRIES, Aws

_sleep = time.sleep


def child(arguments: list[str], environment: dict[str, str], log: str) -> None:
    """The command, as a process of its own; does not return."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.environ.clear()
    os.environ.update(environment)
    status = 99
    try:
        status = main(["machine", *arguments])
    finally:
        sys.stdout.flush()
        os._exit(status)


def keep_clients() -> None:
    """Make boto3's clients once for all children: each costs a third of a second, and none has a connection yet."""
    import boto3

    original, kept = boto3.session.Session.client, {}

    def client(self, service, region_name, config):  # type: ignore[no-untyped-def]
        key = service, region_name, config.retries["total_max_attempts"]
        if key not in kept:
            kept[key] = original(self, service, region_name=region_name, config=config)
        return kept[key]

    boto3.session.Session.client = client  # type: ignore[method-assign]
    for tries in (TRIES, 1):
        Aws()._client("ec2", "us-east-1", tries)


def serve() -> None:
    """Take commands until the input ends."""
    time.sleep = lambda seconds: _sleep(min(seconds, 0.005))
    client.SECONDS_BETWEEN_WRITES = 0.0
    lifecycle.POLL_SECONDS = 0.02
    keep_clients()
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            child(asked["arguments"], asked["environment"], asked["log"])
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
