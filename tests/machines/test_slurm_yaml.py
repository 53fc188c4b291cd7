"""The provider's keys, what sbatch is asked, and what Slurm says in words; no cluster is needed."""

from __future__ import annotations

from typing import Any

import pytest

from runner.errors import UserError
from runner.github.settings import Token
from runner.machines.model import Limits, Machine, MachineError, NoCapacity, Order, Owner, RunnerProgram
from runner.machines.remote import CommandFailed
from runner.machines.slurm import Slurm
from runner.machines.slurm_candidates import Candidate
from runner.machines.slurm_reasons import is_for_the_caller, is_hopeless, refusal, waits_for
from runner.machines.spec import Spec, read_spec

OWNER = Owner(server="github.com", repository="octo/train", run_id=7, attempt=1, key="gpu")
HEAD = "provider: slurm\nlimits: {max-hours: 1}\n"
GOOD = HEAD + "folder: /scratch/me/machines\ncandidates:\n- {gpus: 1}\n"


class Scripted:
    """A login node with ready answers by a part of the command: text, or an error to raise; of a list, one a call."""

    where = "login.example"

    def __init__(self, **answers: Any) -> None:
        self.answers, self.asked = answers, []

    def run(self, arguments: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> str:
        self.asked.append((arguments, stdin))
        answer = next((one for name, one in self.answers.items() if name in arguments), "")
        answer = answer.pop(0) if isinstance(answer, list) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    def options(self, program: str) -> list[str]:
        """The arguments of the first call of a program."""
        command = next(arguments for arguments, _ in self.asked if program in arguments)
        return command[command.index(program) + 1 :]


def slurm(shell: Scripted, *candidates: Candidate) -> Slurm:
    limits = Limits(max_hours=1.5, capacity_minutes=4)
    spec = Spec(provider="slurm", program=RunnerProgram(folder="/r"), organization=None, group=1, limits=limits)
    return Slurm(host=shell, folder="/scratch/me/", candidates=[*candidates] or [Candidate(gres="gpu:1")], spec=spec)


def order(**changed: Any) -> Order:
    given: dict[str, Any] = {
        "owner": OWNER, "limits": Limits(max_hours=1.5), "program": RunnerProgram(folder="/r"), "public": False,
        "registration": lambda: Token("jit"), "pause": lambda seconds: None, "tell": lambda line: None,
    }  # fmt: skip
    return Order(**given | changed)


def row(state: str = "RUNNING", reason: str = "None", gres: str = "gres:gpu:h100:2", times: str = "5|6|7") -> str:
    return f"42|{OWNER.name}|{state}|{times}|gpu|1|{gres}|{reason}|symmem-check price=2.5000\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "candidates: [{gpus: 1}]", 'machine: the key "folder" is missing'),
        (HEAD + "folder: /scratch/me", 'machine: the key "candidates" is missing'),
        (GOOD.replace("/scratch/me/machines", "scratch"), "machine, line 3: folder: must be an absolute path"),
        (GOOD.replace("/scratch/me/machines", "/a b"), "machine, line 3: folder: must be an absolute path"),
        (GOOD.replace("- {gpus: 1}", "  []"), "candidates: has no candidate"),
        (GOOD.replace("{gpus: 1}", "{gpu: 1}"), "machine, line 5: candidates[0]: unknown key 'gpu'; did you mean"),
        (GOOD.replace("{gpus: 1}", "{partition: a}"), "machine, line 5: candidates[0]: needs gpus"),
        (GOOD.replace("{gpus: 1}", "{gpus: 1, gres: gpu}"), "candidates[0]: needs gpus, a number a node, or gres"),
        (GOOD.replace("{gpus: 1}", "{gres: 'gpu:1 --wrap=x'}"), "candidates[0].gres: must be GPUs as sbatch's --gres"),
        (GOOD.replace("{gpus: 1}", "{gpus: 0}"), "candidates[0].gpus: must be at least 1"),
        (GOOD.replace("{gpus: 1}", "{gpus: 1, account: 'a;b'}"), "candidates[0].account: must be an account's name"),
        (GOOD.replace("{gpus: 1}", "{gpus: 1, partition: -p}"), "candidates[0].partition: must be a partition"),
        (GOOD.replace("{gpus: 1}", "{gpus: 1, constraint: $(x)}"), "candidates[0].constraint: must be features"),
        (GOOD.replace("{gpus: 1}", "{gpus: 1, memory: 64GB}"), "candidates[0].memory: must be a node's memory"),
        (GOOD.replace("{gpus: 1}", "{gpus: 1, nodes: 0}"), "candidates[0].nodes: must be at least 1"),
        (GOOD.replace("{gpus: 1}", "{gpus: 1, price: free}"), "candidates[0].price: must be a number of US dollars an"),
        (GOOD + "public-repository: yes please", "public-repository: unknown value"),
        (GOOD + "login: {host: a, user: b}", 'login: the key "known-hosts" is missing'),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line_and_key(text: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        read_spec(text)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_all_keys_of_a_candidate_become_options_and_no_secret_is_among_them() -> None:
    shell = Scripted(squeue=row(), sbatch="42;cluster1\n")
    asked = Candidate(gres="gpu:h100:4", partition="a100,h100", account="proj-1", qos="high", constraint="ib|nvl",
                      nodes=2, cpus=18, memory="200G", exclusive=True, price=2.5)  # fmt: skip
    machine = slurm(shell, asked).start(order())
    folder = f"/scratch/me/{OWNER.name}"
    assert shell.options("sbatch") == [
        "--parsable", "--partition=a100,h100", "--account=proj-1", "--qos=high", "--constraint=ib|nvl",
        "--gres=gpu:h100:4", "--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=5", "--mem=200G", "--exclusive",
        f"--job-name={OWNER.name}", "--comment=symmem-check price=2.5000", "--time=92", "--deadline=now+98minutes",
        f"--output={folder}/journal", f"--chdir={folder}", "--no-requeue", "--export=ALL",
    ]  # fmt: skip
    assert (machine.id, machine.where, machine.what, machine.price) == ("42", "gpu", "gpu:h100:4 on 2 nodes", 2.5)
    (secret,) = [arguments for arguments, stdin in shell.asked if stdin == b"jit"]
    assert secret[-1] == f"{folder}/jit" and "jit" not in secret[:-1]


@pytest.mark.parametrize(("gres", "tasks"), [("gpu", 1), ("gpu:3", 3), ("gpu:h100", 1), ("gpu:1g.10gb:2", 2)])
def test_there_is_a_task_for_each_gpu(gres: str, tasks: int) -> None:
    assert f"--ntasks-per-node={tasks}" in Candidate(gres=gres).options
    _, provider = read_spec(GOOD.replace("{gpus: 1}", f"{{gres: {gres}}}"))
    provider.check()


@pytest.mark.parametrize("gres", ["gres:gpu:h100:2", "gres/gpu:h100:2", "gpu:h100:2"])
def test_queues_of_old_and_new_versions_are_read(gres: str) -> None:
    known = slurm(Scripted(squeue=row(gres=gres, times="1000000000|1000000060|1000007260")))
    (machine,) = known.list("github.com", "octo/train")
    assert machine == Machine(
        provider="slurm", id="42", where="gpu", what="gpu:h100:2, running", owner=OWNER, since=1000000060.0,
        deadline=1000007260.0, price=2.5,
    )  # fmt: skip
    # A version that tells times in its own way costs the time, and not the machine.
    unknown = slurm(Scripted(squeue=row(gres=gres, times="2026-11-30T13:00:00|N/A|N/A")))
    assert [one.id for one in unknown.list("github.com", "octo/train")] == ["42"]
    assert unknown.list("github.com", "octo/other") == []
    assert slurm(Scripted(squeue=row("COMPLETED"))).list("github.com", "octo/train") == []


@pytest.mark.parametrize(
    "said", ["slurm_load_jobs error", "42|x", row().replace("42", "x"), row().replace("RUN", "r-")]
)
def test_what_is_no_queue_is_no_empty_queue(said: str) -> None:
    with pytest.raises(MachineError, match=r"login.example: squeue printed what is no job: '"):
        slurm(Scripted(squeue=said)).list("github.com", "octo/train")


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
         UserError, "Batch job submission failed: Invalid account or account/partition combination specified"),
        ("sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
         UserError, "Requested time limit is invalid"),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates "
         "accounting/QOS policy (job submit limit, user's size and/or time limits)",
         NoCapacity, "gpu:1: QOSMaxSubmitJobPerUserLimit; Batch job submission failed: Job violates"),
        ("sbatch: error: QOSMaxGRESPerJob\nsbatch: error: Batch job submission failed: Job violates accounting/QOS "
         "policy", UserError, "QOSMaxGRESPerJob; Batch"),
        ("sbatch: error: Batch job submission failed: Required node not available (down, drained or reserved)",
         NoCapacity, "Required node not available"),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
         MachineError, "Unable to contact slurm controller"),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
         MachineError, "Socket timed out"),
        ("sbatch: error: Please give a project; see \x1b[31mthe handbook", UserError, "give a project; see the h"),
        ("", UserError, "it gave no reason"),
    ],
)  # fmt: skip
def test_a_refusal_is_the_callers_or_the_clusters_or_no_capacity(said: str, kind: type, message: str) -> None:
    failed = CommandFailed("failed", 1, said)
    with pytest.raises(kind) as raised:
        slurm(Scripted(sbatch=failed)).start(order())
    assert type(raised.value) is kind and message in str(raised.value) and "\n" not in str(raised.value)
    assert str(raised.value).startswith("login.example: ")


def test_a_login_node_without_slurm_is_told() -> None:
    failed = CommandFailed("failed", 127, "env: 'squeue': No such file or directory")
    with pytest.raises(UserError, match=r"login.example: there is no squeue on the PATH of a command run there"):
        slurm(Scripted(squeue=failed)).list("github.com", "octo/train")


def test_a_controller_that_misses_some_looks_ends_no_wait_and_one_that_is_gone_does() -> None:
    missed = CommandFailed("failed", 1, "squeue: error: Socket timed out on send/recv operation")
    looks = [missed] * 4 + [row("PENDING", "Priority")] + [missed] * 4 + [row()]
    waits: list[float] = []
    machine = slurm(Scripted(squeue=looks, sbatch="42\n")).start(order(pause=waits.append))
    assert (machine.id, looks, waits) == ("42", [], [1, 2, *[5] * 8])
    with pytest.raises(MachineError, match=r"login.example: squeue failed: squeue: error: Socket timed out"):
        slurm(Scripted(squeue=[missed] * 5, sbatch="42\n")).start(order())


def test_a_job_that_made_room_for_another_is_no_capacity_and_one_whose_node_failed_is_a_failure() -> None:
    with pytest.raises(NoCapacity, match="PREEMPTED: it had to make room for another job"):
        slurm(Scripted(squeue=row("PREEMPTED"), sbatch="42\n")).start(order())
    with pytest.raises(MachineError, match=r"job 42 did not come to run: NODE_FAIL: its node failed \(None\)"):
        slurm(Scripted(squeue=row("NODE_FAIL"), sbatch="42\n")).start(order())
    with pytest.raises(MachineError, match="job 42 is gone from Slurm's queue"):
        slurm(Scripted(sbatch="42\n")).start(order())
    with pytest.raises(MachineError, match="sbatch told no job's id, but 'Submitted'"):
        slurm(Scripted(sbatch="Submitted\n")).start(order())


def test_a_job_that_does_not_end_is_left_with_its_folder_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.machines.slurm.END_SECONDS", 0.0)
    shell = Scripted(squeue=row("COMPLETING"))
    (machine,) = slurm(shell).list("github.com", "octo/train")
    with pytest.raises(
        MachineError, match="job 42 is still COMPLETING, 0 s after it was cancelled; have the cluster's"
    ):
        slurm(shell).stop(machine)
    assert not any("rm -rf" in part for arguments, _ in shell.asked for part in arguments)


@pytest.mark.parametrize(
    ("reason", "words", "caller", "hopeless"),
    [
        ("Resources", "all such GPUs are taken (Resources)", False, False),
        ("Priority", "other jobs come first (Priority)", False, False),
        ("QOSMaxGRESPerUser", "a limit of the qos is reached (QOSMaxGRESPerUser)", False, False),
        ("QOSMaxJobsPerUserLimit", "a limit of the qos is reached (QOSMaxJobsPerUserLimit)", False, False),
        ("QOSMaxWallDurationPerJobLimit", "it asks for more than the qos allows a job (QOSMaxWall", True, False),
        ("AssocMaxGRESPerJob", "it asks for more than the account allows a job (AssocMaxGRESPerJob)", True, False),
        ("QOSMinGRES", "it asks for less than the qos demands (QOSMinGRES)", True, False),
        ("AssocGrpGRES", "a limit of the account is reached (AssocGrpGRES)", False, False),
        ("AssocGrpGRESMinutes", "the budget of the account is used up (AssocGrpGRESMinutes)", False, True),
        ("PartitionDown", "the partition is down (PartitionDown)", False, True),
        ("PartitionTimeLimit", "the partition allows no job so long; lower max-hours (Part", True, False),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "the nodes that could do are down, drained or", False, False),
        ("SomethingNew", "SomethingNew", False, False),
    ],
)  # fmt: skip
def test_why_a_job_waits_is_told_in_words(reason: str, words: str, caller: bool, hopeless: bool) -> None:
    assert waits_for(reason).startswith(words)
    assert (is_for_the_caller(reason), is_hopeless(reason)) == (caller, hopeless)


def test_a_refusal_of_several_lines_is_one() -> None:
    assert refusal("sbatch: error: a\n\nsbatch: fatal: b\n") == ("caller", "a; b")
