"""Real runs: torchrun, two processes, gloo. Cases that go wrong must cost themselves and nothing else."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import uuid
from pathlib import Path

import pytest

from runner.errors import UserError
from runner.launch import checks_folder, describe_python, ranks_environment, run_plan, torchrun_command
from runner.plan import Case, Plan
from runner.runfolder import RunFolder
from runner.watch import CaseProgress, Start

REPOSITORY = Path(__file__).resolve().parents[2]
WORKLOADS = REPOSITORY / "tests" / "checks" / "workloads_for_tests.py"


def bad_case(name: str, deadline: float = 60.0) -> Case:
    return Case(id=name, folder=f"cases/{name}", workload=f"{WORKLOADS}:{name}", axes={"size": 64}, deadline=deadline)


def probe(pool: str, *, dtype: str = "bfloat16", op: str = "sum") -> Case:
    axes: dict[str, str | int] = {"pool": pool, "dtype": dtype, "op": op, "size": 4096}
    name = f"all_reduce/{pool}/{dtype}/{op}"
    return Case(id=name, folder=f"cases/{name}", workload="all_reduce", axes=axes, deadline=60.0)


def cpu_plan(*cases: Case, root: Path | None = None) -> Plan:
    return Plan(ranks=2, device="cpu", backend="gloo", cases=list(cases), root=str(root) if root else None)


class Run:
    """A finished run: its folder, its starts and what was told while it ran.

    Its processes carry a mark of the test's own, so that those of other tests at the same time do not count.
    """

    def __init__(self, folder: Path, plan: Plan, **options) -> None:
        self.plan, self.folder = plan, RunFolder(folder)
        self.told: list[CaseProgress] = []
        self.mark = uuid.uuid4().hex
        environment = {**options.pop("environment", os.environ), "TEST_MARK": self.mark}
        self.starts: list[Start] = run_plan(
            plan,
            folder,
            python=options.pop("python", sys.executable),
            environment=environment,
            progress=self.told.append,
            **options,
        )

    def outcomes(self, name: str) -> list[str | None]:
        records = self.folder.records(self.case(name))
        return [records[rank].outcome for rank in sorted(records)]

    def messages(self, name: str) -> list[str | None]:
        records = self.folder.records(self.case(name))
        return [records[rank].message for rank in sorted(records)]

    def case(self, name: str) -> Case:
        return next(case for case in self.plan.cases if case.id == name)

    def last_told(self, name: str) -> CaseProgress:
        return [told for told in self.told if told.case == name][-1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run with good cases before, between and after bad ones."""
    cases = [
        probe("none"),
        probe("none", dtype="float32", op="max"),
        probe("step"),
        bad_case("good"),
        bad_case("wrong_values"),
        bad_case("not_a_number"),
        bad_case("raises"),
        bad_case("dies"),
        bad_case("hangs", deadline=2.0),
        probe("static"),
        probe("no-such-pool"),
    ]
    return Run(tmp_path_factory.mktemp("run") / "run", cpu_plan(*cases))


@pytest.mark.slow
class TestOneRunWithBadCases:
    def test_every_case_is_told_once_and_in_order(self, run: Run) -> None:
        ends = [told for told in run.told if told.state != "started"]
        assert [told.case for told in ends] == [case.id for case in run.plan.cases]
        assert [told.index for told in ends] == list(range(len(run.plan.cases)))
        assert [told.state for told in ends].count("lost") == 1

    def test_the_ranks_are_started_again_only_after_a_case_that_broke_the_group(self, run: Run) -> None:
        assert [start.cases[-1] for start in run.starts] == [
            "raises",
            "dies",
            "hangs",
            "all_reduce/no-such-pool/bfloat16/sum",
        ]
        assert [start.end.ended for start in run.starts] == ["restart", "died", "restart", "finished"]
        assert run.starts[0].end.message == "4 of 11 cases left for a fresh start of the ranks"
        assert [run.folder.end(number) for number in run.folder.starts()] == [start.end for start in run.starts]

    @pytest.mark.parametrize("name", ["all_reduce/none/bfloat16/sum", "all_reduce/none/float32/max"])
    def test_the_probe_is_right_in_both_phases(self, run: Run, name: str) -> None:
        for rank, record in run.folder.records(run.case(name)).items():
            assert (record.rank, record.state, record.outcome) == (rank, "done", "ok")
            elements = 4096 // (2 if "bfloat16" in name else 4)
            assert record.values is not None
            assert (record.values.checked, record.values.wrong, record.values.max_error) == (2 * elements, 0, 0.0)
            assert [buffer.phase for buffer in record.buffers] == ["forward", "backward"]
            assert {(buffer.kind, buffer.bytes, buffer.in_pool) for buffer in record.buffers} == {
                ("all_reduce", 4096, False)
            }
        assert run.outcomes(name) == ["ok", "ok"]

    def test_each_rank_has_a_trace_of_the_kept_steps_with_both_phases(self, run: Run) -> None:
        case = run.case("all_reduce/none/bfloat16/sum")
        for rank, record in run.folder.records(case).items():
            path = run.folder.trace(case, record)
            assert path is not None and path.name == f"rank{rank}.trace.json.gz"
            events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
            names = [event["name"] for event in events if event.get("cat") in ("cpu_op", "user_annotation")]
            assert len({name for name in names if name.startswith("ProfilerStep#")}) == run.plan.steps
            assert names.count("c10d::allreduce_") == 2 * run.plan.steps
            assert "autograd::engine::evaluate_function: AllReduceBackward" in names

    def test_a_pool_on_the_cpu_is_incapable_and_costs_no_start(self, run: Run) -> None:
        for pool in ("step", "static"):
            assert run.outcomes(f"all_reduce/{pool}/bfloat16/sum") == ["incapable", "incapable"]
            assert run.messages(f"all_reduce/{pool}/bfloat16/sum")[0] == (
                f"the pool set-up '{pool}' needs a GPU, and this run is on the cpu"
            )

    def test_wrong_values_are_counted_and_cost_no_start(self, run: Run) -> None:
        assert run.outcomes("wrong_values") == ["ok", "wrong-values"]
        assert run.messages("wrong_values")[1] == "1 of 64 values are wrong, by up to 3"
        assert run.last_told("wrong_values").outcome == "wrong-values"
        assert run.outcomes("not_a_number") == ["wrong-values", "wrong-values"]

    def test_the_peer_of_a_rank_that_raised_does_not_wait_for_its_own_deadline(self, run: Run) -> None:
        assert run.outcomes("raises") == ["raised", "raised"]
        assert run.messages("raises") == [
            "rank 1 raised; this rank was waiting",
            'ZeroDivisionError: a "quoted" message',
        ]
        records = run.folder.records(run.case("raises"))
        assert "workloads_for_tests.py" in (records[1].detail or "")
        assert "all_reduce" in (records[0].detail or "")  # the stack of the rank that waited
        assert records[0].seconds["total"] < 50  # its own deadline is at 60 s
        assert run.last_told("raises").message == 'ZeroDivisionError: a "quoted" message'

    def test_a_killed_rank_is_named_with_its_signal(self, run: Run) -> None:
        lost = run.folder.lost(run.case("dies"))
        assert lost is not None
        assert (lost.outcome, lost.rank, lost.start) == ("died", 1, 1)
        assert lost.message == "rank 1 was killed by SIGKILL"
        assert run.folder.records(run.case("dies"))[1].state == "started"

    def test_a_hang_ends_at_its_deadline_with_the_stack_of_every_rank(self, run: Run) -> None:
        assert run.outcomes("hangs") == ["hung", "hung"]
        records = run.folder.records(run.case("hangs"))
        assert "time.sleep" in (records[0].detail or "")
        assert "all_reduce" in (records[1].detail or "")
        assert 2.0 <= records[0].seconds["total"] < 60  # and not the hours that it would sleep

    def test_a_mistyped_axis_is_told(self, run: Run) -> None:
        assert "there is no pool set-up 'no-such-pool': it is one of none, forward, step" in (
            run.last_told("all_reduce/no-such-pool/bfloat16/sum").message or ""
        )

    def test_each_start_has_the_environment_of_every_rank(self, run: Run) -> None:
        import importlib.metadata

        for number in run.folder.starts():
            environments = run.folder.environments(number)
            assert sorted(environments) == [0, 1]
            for environment in environments.values():
                assert environment.torch.split("+")[0] == importlib.metadata.version("torch").split("+")[0]
                assert environment.error is None
                assert environment.nccl is None  # nothing of it is used on the CPU

    def test_no_process_is_left(self, run: Run) -> None:
        assert marked_processes(run.mark) == []

    def test_the_folder_is_not_used_twice(self, run: Run) -> None:
        with pytest.raises(UserError, match="there is a run in it already"):
            run_plan(run.plan, run.folder.path, python=sys.executable)


@pytest.mark.slow
def test_ranks_that_cannot_even_watch_themselves(tmp_path: Path) -> None:
    cases = [
        bad_case("exits"),
        bad_case("checks_nothing"),
        bad_case("holds_the_lock", deadline=2.0),
        bad_case("stops_itself", deadline=2.0),
        bad_case("kills_torchrun"),
        bad_case("good"),
    ]
    run = Run(tmp_path / "run", cpu_plan(*cases))
    assert run.messages("exits") == ["SystemExit: 0", "rank 0 raised; this rank was waiting"]
    assert run.messages("checks_nothing") == ["the workload checked no value"] * 2
    for name in ("holds_the_lock", "stops_itself"):
        lost = run.folder.lost(run.case(name))
        assert lost is not None and (lost.outcome, lost.rank) == ("hung", 0)
        assert run.folder.records(run.case(name))[1].outcome == "hung"
    lost = run.folder.lost(run.case("kills_torchrun"))
    assert lost is not None and (lost.outcome, lost.rank) == ("died", None)
    assert lost.message.startswith("torchrun was killed by SIGKILL")
    assert run.last_told("kills_torchrun").seconds < 50  # long before its deadline
    assert run.outcomes("good") == ["ok", "ok"]
    assert marked_processes(run.mark) == []


def fake_python(path: Path, *lines: str) -> str:
    """Write an executable that does `lines` and then becomes the real Python."""
    path.write_text("\n".join(["#!/bin/sh", *lines, f'exec {sys.executable} "$@"\n']))
    path.chmod(0o755)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "options", "outcome", "message"),
    [
        ('[ "$LOCAL_RANK" = 1 ] && exec sleep 1000', {"start_deadline": 8.0}, "hung", "did not come up within 8 s"),
        ('[ "$LOCAL_RANK" = 1 ] && exit 7', {}, "died", "rank 1 ended with status 7"),
        (f'exec {sys.executable} -I -S "$@"', {}, "died", "No module named"),
        ("kill -9 $$", {}, "died", "torchrun was killed by SIGKILL: it printed nothing"),
    ],
)
def test_ranks_that_never_come_up_are_given_up_once(
    tmp_path: Path, line: str, options: dict, outcome: str, message: str
) -> None:
    python = fake_python(tmp_path / "python", line)
    run = Run(tmp_path / "run", cpu_plan(bad_case("good"), bad_case("raises")), python=python, **options)
    assert len(run.starts) == 1
    assert (run.starts[0].end.ended, [told.state for told in run.told]) == (outcome, ["lost", "lost"])
    for case in run.plan.cases:
        lost = run.folder.lost(case)
        assert lost is not None and lost.outcome == outcome and message in lost.message
    assert marked_processes(run.mark) == []


REPOSITORY_FILES = {
    "checks/__init__.py": "OWN = 'checks'",
    "runner/__init__.py": "OWN = 'runner'",
    "tests/__init__.py": "OWN = 'tests'",
    "session.py": "raise RuntimeError('the repository has a session.py too')",
    "record.py": "raise RuntimeError('the repository has a record.py too')",
    "own/workload.py": """
        import sys, torch, checks, runner, tests

        def own(case, pool, *, size):
            assert (checks.OWN, runner.OWN, tests.OWN) == ('checks', 'runner', 'tests')
            assert not any(path.endswith('/checks') for path in sys.path), sys.path
            case.run(lambda: torch.distributed.barrier())
            case.check(torch.ones(size), torch.ones(size, dtype=torch.float64), tolerance=0.0)
        """,
}


@pytest.mark.slow
def test_two_runs_at_once_in_a_repository_with_modules_of_our_names(tmp_path: Path) -> None:
    for name, text in REPOSITORY_FILES.items():
        path = tmp_path / "repository" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    case = Case(id="own", folder="cases/own", workload="own/workload.py:own", axes={"size": 3}, deadline=60.0)
    plan = cpu_plan(case, root=tmp_path / "repository")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "repository")}
    libm = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libm.so" in line)
    runs: list[Run] = []
    threads = [
        threading.Thread(
            target=lambda number=number: runs.append(
                Run(tmp_path / f"run{number}", plan, environment=environment, preload=Path(libm))
            )
        )
        for number in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 2
    for run in runs:
        assert (run.outcomes("own"), run.messages("own")) == (["ok", "ok"], [None, None])
        assert {environment.env["LD_PRELOAD"] for environment in run.folder.environments(0).values()} == {libm}


def marked_processes(mark: str) -> list[int]:
    """Return the ids of the living processes of the run with that mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"TEST_MARK={mark}".encode() in variables:
            found.append(int(folder.name))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_parent_leaves_no_process_and_a_record(tmp_path: Path, number: signal.Signals) -> None:
    script = f"""
        import signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background, a shell has it ignored
        sys.path.insert(0, {str(REPOSITORY)!r})
        from pathlib import Path
        from tests.runner.test_launch import bad_case, cpu_plan
        from runner.launch import run_plan
        run_plan(cpu_plan(bad_case("hangs", deadline=300.0)), Path({str(tmp_path / "run")!r}), python=sys.executable,
                 progress=lambda told: print(told.state, flush=True))
        """
    mark = uuid.uuid4().hex
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "TEST_MARK": mark},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    with parent.stdout:
        assert parent.stdout.readline() == "started\n"
        assert len(marked_processes(mark)) == 4  # the parent, torchrun and two ranks
        parent.send_signal(number)
        assert parent.wait(timeout=120) == -number  # the case would go on for 300 s
        assert parent.stdout.read() == ""
    assert marked_processes(mark) == []
    end = RunFolder(tmp_path / "run").end(0)
    assert end is not None and (end.ended, end.message) == ("stopped", f"stopped by {number.name}")


def test_shared_gpus_get_what_nccl_needs_and_the_caller_wins() -> None:
    plan = Plan(ranks=2, ranks_per_gpu=2, cases=[])
    assert ranks_environment(plan, {"NCCL_NVLS_ENABLE": "2", "HOME": "/h"}) == {
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "NCCL_NVLS_ENABLE": "2",
        "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "OMP_NUM_THREADS": "1",
        "HOME": "/h",
    }
    assert "NCCL_NVLS_ENABLE" not in ranks_environment(Plan(ranks=2, cases=[]), {})


def test_a_library_is_preloaded_into_the_ranks_only_and_before_others() -> None:
    plan = Plan(ranks=4, cases=[])
    command = torchrun_command(plan, Path("p"), Path("r"), "py", Path("/lib/libnccl.so.2"), {"LD_PRELOAD": "/other.so"})
    assert command[:6] == ["py", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", "--no-python"]
    preload = f"LD_PRELOAD={Path('/lib/libnccl.so.2').resolve()}:/other.so"
    assert command[6:] == ["env", preload, "py", str(checks_folder() / "__main__.py"), "--plan", "p", "--into", "r"]
    assert torchrun_command(plan, Path("p"), Path("r"), "py", None, {"LD_PRELOAD": "/other.so"})[6:8] == ["env", "py"]


def test_a_python_is_described() -> None:
    facts = describe_python(sys.executable)
    assert facts.torch is not None and facts.torch.startswith("2.")
    if not facts.devices:
        assert facts.error is not None and facts.error.startswith(f"torch {facts.torch} ")


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (
            [f'exec {sys.executable} -I -S "$@"'],
            "torch can't be imported: ModuleNotFoundError: No module named 'torch'",
        ),
        (["echo oops >&2; exit 3"], "ended with status 3: oops"),
        (["kill -SEGV $$"], "was killed by SIGSEGV: no output"),
        (["echo '{\"torch\": 5}'; exit 0"], "ended with status 0: no output"),
    ],
)
def test_a_python_that_cannot_answer_says_why(tmp_path: Path, lines: list[str], error: str) -> None:
    facts = describe_python(fake_python(tmp_path / "python", *lines))
    assert facts.torch is None and facts.error is not None and facts.error.endswith(error)


def test_a_python_that_is_not_there_is_the_callers_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can't be run"):
        describe_python(str(tmp_path / "no-python"))
