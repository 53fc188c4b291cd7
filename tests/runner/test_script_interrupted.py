"""`symmem-check run --script` that a signal ends, with real ranks under torchrun, on the CPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.result import read_result
from tests.runner.test_launch import REPOSITORY, marked_processes

pytestmark = pytest.mark.slow  # torchrun and two imports of torch each

# It stops for ever before step 3, or trains for ever.
TRAIN = """
    import sys
    import time
    from pathlib import Path

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    number = 0
    while True:
        model(torch.ones(1, 4)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        number += 1
        Path(f"step{number}.rank{dist.get_rank()}").touch()
        while sys.argv[1] == "stop" and number == 2:
            time.sleep(1)
    """
# The whole command, with the CPU in place of the GPU that it would else look for.
ON_THE_CPU = f"""
    import signal
    import sys

    sys.path.insert(0, {str(REPOSITORY)!r})
    import runner.script
    from runner.cli import main
    from runner.launch import Device, PythonFacts

    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background, a shell has it ignored
    runner.script.describe_python = lambda python: PythonFacts(torch="2.13.0", devices=[Device(0, "a CPU", (9, 0))])
    sys.exit(main(sys.argv[1:]))
    """


def interrupt(place: Path, number: signal.Signals, ready: Callable[[], bool], *arguments: str) -> tuple[int, list[str]]:
    """Run the command, send it the signal when it is `ready`; its exit status and what it told, a line each."""
    (place / "train.py").write_text(textwrap.dedent(TRAIN))
    (place / "command.py").write_text(textwrap.dedent(ON_THE_CPU))
    mark = uuid.uuid4().hex
    options = ("--out", "out", "--python", sys.executable, "--script", "train.py", "--page", *arguments)
    process = subprocess.Popen(
        [sys.executable, "command.py", "run", *options], cwd=place, env={**os.environ, "TEST_MARK": mark},
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    until = time.monotonic() + 120
    try:
        while not ready():
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.1)
        process.send_signal(number)
        _, told = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=120)
    assert marked_processes(mark) == []
    return process.returncode, told.splitlines()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_before_anything_is_traced(tmp_path: Path, number: signal.Signals) -> None:
    def ready() -> bool:
        return all((tmp_path / f"step2.rank{rank}").exists() for rank in range(2))

    status, told = interrupt(tmp_path, number, ready, "--", "stop")
    assert status == 128 + number
    assert told[-2:] == [
        f"the script was stopped by {number.name} while it ran",
        f"symmem-check: interrupted by {number.name}; reports of what was traced are in out",
    ]
    result = read_result(tmp_path / "out" / "result.json")
    assert (result.verdict.word, result.verdict.sentence) == (
        "unmeasured",
        f"Nothing could be measured: stopped by {number.name} while it ran.",
    )
    assert [(start.ended, start.message) for start in result.starts] == [
        ("stopped", f"stopped by {number.name} while it ran")
    ]
    assert result.environment.ranks == 2 and result.environment.torch is not None  # the ranks came up, and said so
    for report in ("junit.xml", "summary.md", "page.html"):
        assert f"stopped by {number.name}" in (tmp_path / "out" / report).read_text()


def test_after_its_steps_were_traced(tmp_path: Path) -> None:
    def ready() -> bool:
        records = [tmp_path / "out/run/cases/script" / f"rank{rank}.json" for rank in range(2)]
        return all(record.is_file() and '"done"' in record.read_text() for record in records)

    status, _ = interrupt(tmp_path, signal.SIGTERM, ready, "--keep-going", "--", "go-on")
    assert status == 128 + signal.SIGTERM
    result = read_result(tmp_path / "out" / "result.json")
    assert result.script is not None
    assert result.script.optimizer == "SGD"  # what the ranks left was read, and on a CPU it holds no collective
    assert (result.verdict.word, result.script.trouble) == ("unmeasured", "stopped by SIGTERM while it ran")
    assert (tmp_path / "out/run/cases/script/rank1.trace.json.gz").is_file()
