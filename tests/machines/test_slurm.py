"""Machines that are jobs of a real Slurm: started, found, watched and given back."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from runner.errors import UserError
from runner.github.settings import Token
from runner.machines.model import MachineError, NoCapacity
from runner.machines.slurm import LEFT_OVER
from runner.machines.slurm_candidates import Candidate

from ..github.fake import REPOSITORY
from ..slurm_cluster import Cluster
from .fake import ADMIN, FakeWithRunners
from .slurm import NAME, SERVER, AsSsh, Bench, make_bench, owner, wait_until

pytestmark = pytest.mark.needs_program("sbatch")
SECRET = "jitSecretThatNoLogMayShow"


@pytest.fixture
def bench(cluster: Cluster, github: FakeWithRunners, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return make_bench(cluster, github, tmp_path / "machines", monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("shell", [None, AsSsh()], ids=["local", "ssh"])
def test_a_machine_is_a_job_with_gpus_for_one_job_and_its_secrets_are_nowhere(
    shell: AsSsh | None, bench: Bench, github: FakeWithRunners, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    github.job = (
        f"env -0 >{seen}.env; cat /proc/$SLURM_TASK_PID/environ >{seen}.script; "
        f"srun sh -c 'echo $SLURM_PROCID' >{seen}.ranks; "
        f"touch {seen}; until [ -e {tmp_path}/go ]; do sleep 0.1; done"
    )
    provider = bench.provider(Candidate(gres="gpu:h100:2", nodes=2, cpus=4, price=3.5), shell=shell)
    machine = bench.with_provider(provider).start(owner()).machine
    wait_until(seen.exists)
    assert (machine.what, machine.where, machine.price) == ("gpu:h100:2 on 2 nodes", "gpu", 3.5)
    (listed,) = bench.listed()
    assert (listed.id, listed.owner, listed.price, listed.what) == (
        machine.id, owner(), 3.5, "gpu:h100:2 on 2 nodes, running",
    )  # fmt: skip
    assert abs(listed.since - time.time()) < 600 and listed.deadline - listed.since == 62 * 60
    inside = dict(line.split("=", 1) for line in Path(f"{seen}.env").read_text().split("\0") if line)
    assert inside["CUDA_VISIBLE_DEVICES"] == "0,1" and inside["SLURM_JOB_ID"] == machine.id
    assert sorted(Path(f"{seen}.ranks").read_text().split()) == ["0", "1", "2", "3"]
    folder = bench.folder / NAME
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and not (folder / "jit").exists()
    job, script = ["scontrol", "show", "job", machine.id], ["scontrol", "write", "batch_script", machine.id, "-"]
    shown = bench.cluster.run([*job, "--details"]) + bench.cluster.run(script) + "\n".join(bench.told)
    for text in (shown, provider.journal(machine), Path(f"{seen}.script").read_text()):
        assert github.configuration(NAME) not in text and SECRET not in text and ADMIN not in text
    assert ADMIN not in Path(f"{seen}.env").read_text()
    (tmp_path / "go").touch()
    wait_until(lambda: [one.id for one in bench.listed()] == [LEFT_OVER])
    assert github.played == [(NAME, 0)]
    assert "COMPLETED" in provider.journal(machine) and "the runner ended with status 0" in provider.journal(machine)
    bench.with_provider(provider).stop(owner())
    assert bench.is_clean()


def test_no_capacity_is_told_with_slurms_reason_and_leaves_nothing(bench: Bench, github: FakeWithRunners) -> None:
    blocker = bench.block()
    asked = [Candidate(gres="gpu:1", partition="closed"), Candidate(gres="gpu:h100:1", constraint="nvlink")]
    provider = bench.provider(*asked, capacity_minutes=0.05)
    with pytest.raises(NoCapacity) as raised:
        bench.with_provider(provider).start(owner())
    assert raised.value.exit_status == 4
    message = str(raised.value)
    assert message.startswith("this host: no GPUs are free: gpu:1 in partition closed: PENDING: the partition is down")
    assert "gpu:h100:1 in constraint nvlink: PENDING: all such GPUs are taken (Resources)" in message
    assert [job.split()[0] for job in bench.cluster.jobs()] == [blocker] and bench.is_clean()
    assert not any(one.path.endswith("/generate-jitconfig") for one in github.asked)


def test_the_next_candidate_is_tried_where_the_first_has_nothing_free(bench: Bench) -> None:
    text = bench.yaml("{gpus: 1, partition: drained}", "{gpus: 2, partition: closed}", "{gres: gpu:h100:1}")
    machine = bench.of(text).start(owner()).machine
    assert machine.what == "gpu:h100:1" and machine.price is None
    assert "Required partition not available" in bench.told[0] and "PartitionDown" in "".join(bench.told)
    bench.of(text).stop(owner())
    assert bench.is_clean()


@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        ("{gpus: 9}", "sbatch refused the job: Batch job submission failed: Requested node configuration is not avail"),
        ("{gpus: 1, partition: nowhere}", "invalid partition specified: nowhere"),
        ("{gpus: 1, constraint: b200}", "Invalid feature specification"),
        ("{gpus: 1, memory: 99G}", "Memory specification can not be satisfied"),
        ("{gpus: 1, partition: short}", "can't ever run: the partition allows no job so long; lower max-hours"),
        ("{gpus: 1, nodes: 3}", "can't ever run: the partition allows no job with so many nodes"),
    ],
)
def test_what_no_cluster_could_give_is_the_callers_to_change(candidate: str, message: str, bench: Bench) -> None:
    with pytest.raises(UserError) as raised:
        bench.of(bench.yaml(candidate, "{gpus: 1}")).start(owner())
    assert message in str(raised.value) and "\n" not in str(raised.value) and raised.value.exit_status == 2
    assert bench.is_clean()


def test_an_administrators_cancel_ends_the_wait(bench: Bench) -> None:
    bench.block()

    def cancel() -> None:
        wait_until(lambda: any(NAME in job for job in bench.cluster.jobs()))
        bench.cluster.run(["scancel", f"--name={NAME}"])

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(MachineError, match="did not come to run: CANCELLED: it was cancelled, by its user or an admin"):
        bench.of(bench.yaml("{gpus: 1}")).start(owner())
    thread.join()
    assert bench.is_clean()


@pytest.mark.slow
def test_stop_ends_a_job_that_ignores_sigterm_and_may_be_called_again(bench: Bench, github: FakeWithRunners) -> None:
    github.job = "trap '' TERM; mkdir -m 500 locked; while :; do sleep 1; done"
    lifecycle = bench.of(bench.yaml("{gpus: 1}"))
    before = set(bench.cluster.processes())
    machine = lifecycle.start(owner()).machine
    github.wait_for("busy")
    assert set(bench.cluster.processes()) - before
    github.runners[0]["busy"] = False  # GitHub knows within minutes; it is not what is tested here
    (ended,) = lifecycle.stop(owner()).ended
    assert ended == f"{NAME}: gpu:1, running in gpu ({machine.id})"
    assert bench.is_clean() and lifecycle.stop(owner()).ended == []
    bench.provider().stop(machine)
    wait_until(lambda: set(bench.cluster.processes()) <= before)


def test_the_journal_says_why_no_runner_came(bench: Bench, tmp_path: Path) -> None:
    provider = bench.provider()
    machine = provider.start(bench.order(runner=tmp_path / "nowhere"))
    bench.cluster.wait_until("FAILED", machine.id)
    state, *_, said, last = provider.journal(machine).splitlines()
    assert state == f"Slurm has job {machine.id} as FAILED: it failed (NonZeroExitCode)"
    assert said.endswith(f"there is no runner program in {tmp_path}/nowhere") and last.endswith(f"{NAME}: ended")
    bench.with_provider(provider).stop(owner())
    assert bench.is_clean() and provider.journal(machine).splitlines() == [state]


def test_a_job_that_nobody_registers_a_runner_for_ends_itself(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def registration() -> Token:
        raise MachineError("GitHub is down")

    monkeypatch.setattr("runner.machines.slurm.JIT_SECONDS", 2)
    provider = bench.provider()
    with pytest.raises(MachineError, match="GitHub is down"):
        provider.start(bench.order(registration))
    (machine,) = bench.listed()
    bench.cluster.wait_until("FAILED", machine.id)
    assert "no runner was registered for this machine within 2 s" in provider.journal(machine)
    bench.with_provider(provider).stop(owner())
    assert bench.is_clean()


@pytest.mark.slow
def test_the_time_limit_of_slurm_is_told(bench: Bench) -> None:
    lifecycle = bench.of(bench.yaml("{gpus: 1}"))
    machine = lifecycle.start(owner()).machine
    bench.cluster.run(["scontrol", "update", f"JobId={machine.id}", "EndTime=now"])
    bench.cluster.wait_until("TIMEOUT", machine.id, 240)
    assert "TIMEOUT: its time limit was over" in bench.provider().journal(machine)
    wait_until(lambda: [one.id for one in bench.listed()] == [LEFT_OVER])
    lifecycle.stop(owner())
    assert bench.is_clean()


def test_stop_of_a_twin_leaves_the_other_its_folder(bench: Bench) -> None:
    lifecycle = bench.of(bench.yaml("{gpus: 1}"))
    machine = lifecycle.start(owner()).machine
    bench.cluster.run(["sbatch", f"--job-name={NAME}", "--output=/dev/null"], stdin="#!/bin/sh\nexec sleep 1000\n")
    (twin,) = [one for one in bench.listed() if one.id != machine.id]
    bench.provider().stop(twin)
    assert [one.id for one in bench.listed()] == [machine.id] and (bench.folder / NAME / "journal").exists()
    lifecycle.stop(owner())
    assert bench.is_clean()


def test_list_shows_jobs_and_left_folders_of_this_repository_alone(bench: Bench) -> None:
    bench.block()
    bench.folder.mkdir(mode=0o700)
    for name in (owner(run=7).name, "symmem-00000000-7-1-gpu", "notes"):
        (bench.folder / name).mkdir()
    bench.cluster.run(["sbatch", f"--job-name={NAME}", "--gres=gpu:1", "--comment=symmem-check price=2.5000"],
                      stdin="#!/bin/sh\n")  # fmt: skip
    job, left = bench.listed()
    assert (job.owner, job.what, job.price) == (owner(), "gpu:1, pending", None)
    assert (left.id, left.owner, left.where) == (LEFT_OVER, owner(run=7), str(bench.folder / owner(run=7).name))
    lifecycle = bench.of(bench.yaml("{gpus: 1}"))
    bench.github.over.add((7, 1))
    (ended,) = lifecycle.reap(SERVER, REPOSITORY).ended
    assert ended.startswith(f"{owner(run=7).name}: what a job left in ")
    assert sorted(one.name for one in bench.folder.iterdir()) == ["notes", "symmem-00000000-7-1-gpu"]


def test_a_folder_that_others_may_write_to_is_refused(bench: Bench) -> None:
    bench.folder.mkdir()
    bench.folder.chmod(0o777)
    with pytest.raises(UserError, match=f"folder {bench.folder}: others own it or may write to it"):
        bench.of(bench.yaml("{gpus: 1}")).start(owner())
    assert bench.is_clean()


def test_a_public_repository_is_refused_unless_allowed(bench: Bench, github: FakeWithRunners) -> None:
    github.private = False
    with pytest.raises(UserError, match="the repository is public"):
        bench.of(bench.yaml("{gpus: 1}")).start(owner())
    text = bench.yaml("{gpus: 1}", more="public-repository: allowed")
    bench.of(text).start(owner())
    bench.of(text).stop(owner())
    assert bench.is_clean()


def test_a_price_above_the_limit_or_unknown_is_refused_before_anything_starts(
    bench: Bench, github: FakeWithRunners
) -> None:
    limits = "max-hours: 1, max-price: 5"
    with pytest.raises(UserError, match=r"within max-price, 5 USD an hour: gpu:1: its price is not known; give price; "
                                        r"gpu:2: 7 USD"):  # fmt: skip
        bench.of(bench.yaml("{gpus: 1}", "{gpus: 2, price: 7}", limits=limits)).start(owner())
    assert github.asked == [] and bench.cluster.jobs() == []
    text = bench.yaml("{gpus: 2, price: 7}", "{gpus: 1, price: 4.5}", limits=limits)
    assert bench.of(text).start(owner()).machine.price == 4.5
    assert bench.listed()[0].price == 4.5
    bench.of(text).stop(owner())
    assert bench.is_clean()


def test_a_cancelled_job_on_github_gives_back_what_waits_in_the_queue(bench: Bench, job: dict[str, str]) -> None:
    bench.block()
    started = subprocess.Popen(
        [sys.executable, "-m", "runner", "machine", "start", "--machine", bench.yaml("{gpus: 1}")],
        env=os.environ | job, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    wait_until(lambda: any(NAME in line for line in bench.cluster.jobs()))
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=120)
    assert started.returncode == 130 and "interrupted by signal 2" in said and ADMIN not in said
    assert bench.is_clean()
