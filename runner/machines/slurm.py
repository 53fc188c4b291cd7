"""An HPC cluster as the runner: a batch job of Slurm that runs GitHub's runner for one job.

The job is submitted without the runner's configuration. That is asked for once the job runs, and handed over in a file
that only the cluster's user may read, so GitHub is not asked to wait with the queue, and no secret is in the script,
which Slurm keeps and shows.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from ..errors import UserError
from ..report.text import one_line
from ..yaml_file import Value
from .bootstrap import bootstrap
from .model import Machine, MachineError, NoCapacity, Order, Owner, owner_of
from .remote import LocalShell, Shell, read_login
from .slurm_candidates import Candidate, read_candidates
from .slurm_folder import Folder
from .slurm_jobs import Busy, Job, Jobs
from .slurm_reasons import ENDED, TAKEN, is_for_the_caller, is_hopeless, waits_for
from .spec import Spec

KEYS = ("login", "folder", "candidates", "public-repository")
JIT_SECONDS = 300
"""How long a job waits for the runner's configuration. NFS may show a new file only after a minute."""
SLACK_MINUTES = 2
"""The time limit is so much later than the deadline at which the job ends itself, and cleans up."""
END_SECONDS = 180.0
"""How long a cancelled job may take to be gone. Slurm kills what ignores SIGTERM after KillWait, 30 s as a rule."""
MISSED_LOOKS = 5
"""So many failed looks into the queue in a row end a wait: a busy controller misses one now and then."""
LEFT_OVER = "folder"
"""The id of a machine of which only its folder is left."""
_POLLS = (1.0, 2.0, 5.0)
_FOLDER = re.compile(r"/[A-Za-z0-9._/+-]{0,198}[A-Za-z0-9._+-]")
_PRICE = re.compile(r"symmem-check price=([0-9]{1,9}(?:\.[0-9]{1,9})?)")


def provider(entries: dict[str, Value], spec: Spec) -> Slurm:
    """Read the keys of KEYS. Raises UserError with line and key."""
    if "public-repository" in entries:
        entries["public-repository"].choice(("allowed",))
    for name in ("folder", "candidates"):
        if name not in entries:
            raise UserError(f'{entries["provider"].path}: the key "{name}" is missing; a cluster needs it')
    return Slurm(
        host=read_login(entries["login"]) if "login" in entries else LocalShell(),
        folder=entries["folder"].matching(_FOLDER, "an absolute path on the cluster's shared file system"),
        candidates=read_candidates(entries["candidates"]),
        spec=spec,
        public_allowed="public-repository" in entries,
    )


class Slurm:
    """Jobs in the queue of a cluster, submitted where `host` runs commands; see Provider."""

    def __init__(
        self, *, host: Shell, folder: str, candidates: list[Candidate], spec: Spec, public_allowed: bool = False
    ) -> None:
        self._host, self._candidates, self._limits = host, candidates, spec.limits
        self._jobs, self._folder = Jobs(host), Folder(host, folder)
        self._public_allowed = public_allowed

    def check(self) -> None:
        """Refuse where `max-price` leaves no candidate."""
        if not self._affordable():
            limit = self._limits.max_price
            told = "; ".join(f"{one}: {_price(one.price)}" for one in self._candidates)
            raise UserError(f"machine: no candidate is within max-price, {limit:g} USD an hour: {told}")

    def start(self, order: Order) -> Machine:
        """Submit the candidates one after another, each given an equal share of the minutes that are left; return once
        a job runs and has the runner's configuration."""
        if order.public and not self._public_allowed:
            raise UserError(
                "the repository is public, so anybody may propose code that would run as the cluster's user; "
                "say `public-repository: allowed` if that is meant"
            )
        name = order.owner.name
        self._folder.make(name)
        end = time.monotonic() + self._limits.capacity_minutes * 60
        candidates = self._affordable()
        busy: list[str] = []
        for number, candidate in enumerate(candidates):
            share = max(0.0, end - time.monotonic()) / (len(candidates) - number)
            try:
                return self._run(candidate, order, share)
            except Busy as error:
                busy.append(f"{candidate}: {error}")
                order.tell(busy[-1])
        raise NoCapacity(f"{self._host.where}: no GPUs are free: {'; '.join(busy)}")

    def stop(self, machine: Machine) -> None:
        """Cancel a job, wait until it is gone, and remove its folder."""
        name = machine.owner.name
        live = [job.id for job in self._jobs.find(name) if not job.is_over]
        if machine.id in live:
            self._end(machine.id, name, time.sleep)
        # Another job of that name, as a call that was made twice leaves it, has the folder too.
        if not any(job.id != machine.id and not job.is_over for job in self._jobs.find(name)):
            self._folder.remove(name)

    def list(self, server: str, repository: str) -> list[Machine]:
        """The jobs that are not over, by the beginning of their names, and the folders of those that are."""
        # The folders first: a job that is submitted in between is then seen with its folder, not as a folder alone.
        folders = self._folder.names()
        found: list[Machine] = []
        for job in self._jobs.find():
            owner = owner_of(job.name, server, repository)
            if owner is not None and not job.is_over:
                folders.pop(job.name, None)
                found.append(self._machine(job, owner))
        for name, changed in folders.items():
            owner = owner_of(name, server, repository)
            if owner is not None:
                found.append(self._left_over(owner, changed))
        return found

    def journal(self, machine: Machine) -> str:
        """What Slurm says of the job, and the end of what it printed."""
        said = [
            f"Slurm has job {job.id} as {_state(job)}"
            for job in self._jobs.find(machine.owner.name)
            if job.id == machine.id
        ]
        return "\n".join([*said, self._folder.tail(machine.owner.name, "journal")]).strip()

    def _run(self, candidate: Candidate, order: Order, seconds: float) -> Machine:
        """Submit a candidate, wait for it, and give it the configuration. Raises Busy once it is cancelled again."""
        name = order.owner.name
        folder = self._folder.of(name)
        script = bootstrap(order, work=folder, jit_file=f"{folder}/jit", jit_seconds=JIT_SECONDS)
        job_id = self._jobs.submit([*candidate.options, *self._options(name, candidate)], script)
        order.tell(f"job {job_id} is submitted for {candidate}")
        try:
            job = self._wait(job_id, order, seconds)
        except Busy:
            self._end(job_id, name, order.pause)
            raise
        self._folder.put(name, "jit", order.registration())
        started = job.started or time.time()
        return Machine(
            provider="slurm", id=job_id, where=job.partition, what=candidate.what, owner=order.owner, since=started,
            deadline=job.ends or started + self._time_minutes() * 60, price=candidate.price,
        )  # fmt: skip

    def _options(self, name: str, candidate: Candidate) -> Sequence[str]:
        folder = self._folder.of(name)
        price = "-" if candidate.price is None else f"{candidate.price:.4f}"
        return [
            f"--job-name={name}", f"--comment=symmem-check price={price}", f"--time={self._time_minutes()}",
            # Should nobody be there to cancel it, Slurm itself drops a job that did not begin in time.
            f"--deadline=now+{self._latest_minutes()}minutes",
            f"--output={folder}/journal", f"--chdir={folder}", "--no-requeue", "--export=ALL",
        ]  # fmt: skip

    def _wait(self, job_id: str, order: Order, seconds: float) -> Job:
        """The job once it runs. Raises Busy where it doesn't in time, UserError where it never will."""
        end = time.monotonic() + seconds
        missed = looks = 0
        job: Job | None = None
        while True:
            order.pause(_POLLS[min(looks, len(_POLLS) - 1)])
            looks += 1
            try:
                job = next((one for one in self._jobs.find(order.owner.name) if one.id == job_id), None)
            except MachineError:
                missed += 1
                if missed == MISSED_LOOKS:
                    raise
                continue
            missed = 0
            if job is None:
                raise MachineError(f"{self._host.where}: job {job_id} is gone from Slurm's queue; was it cancelled?")
            if job.state == "RUNNING":
                return job
            self._refuse_hopeless(job)
            if time.monotonic() >= end:
                raise Busy(f"{_state(job)} after {seconds / 60:.1f} minutes")

    def _refuse_hopeless(self, job: Job) -> None:
        where = f"{self._host.where}: job {job.id}"
        if job.state in TAKEN:
            raise Busy(_state(job))
        if job.is_over:
            last = one_line(self._folder.tail(job.name, "journal")[-300:])
            raise MachineError(f"{where} did not come to run: {_state(job)}{'; it printed: ' + last if last else ''}")
        if job.state == "PENDING" and is_for_the_caller(job.reason):
            raise UserError(f"{where} can't ever run: {waits_for(job.reason)}")
        if job.state == "PENDING" and is_hopeless(job.reason):
            raise Busy(_state(job))

    def _end(self, job_id: str, name: str, pause: Callable[[float], None]) -> None:
        """Cancel a job and wait until it is gone, for END_SECONDS at most."""
        self._jobs.cancel(job_id)
        end = time.monotonic() + END_SECONDS
        while left := [job for job in self._jobs.find(name) if job.id == job_id and not job.is_over]:
            if time.monotonic() >= end:
                raise MachineError(
                    f"{self._host.where}: job {job_id} is still {_state(left[0])}, {END_SECONDS:g} s after it was "
                    f"cancelled; have the cluster's administrator look at its node (scontrol show job {job_id})"
                )
            pause(1.0)

    def _machine(self, job: Job, owner: Owner) -> Machine:
        """A job of the queue. One that doesn't run yet costs nothing yet."""
        price = _PRICE.search(job.comment) if job.state != "PENDING" else None
        since = (job.started if price is not None else None) or job.submitted or time.time()
        return Machine(
            provider="slurm", id=job.id, where=job.partition, what=_what(job), owner=owner, since=since,
            deadline=job.ends or since + self._latest_minutes() * 60,
            price=float(price[1]) if price is not None else None,
        )  # fmt: skip

    def _left_over(self, owner: Owner, changed: float) -> Machine:
        return Machine(
            provider="slurm", id=LEFT_OVER, where=self._folder.of(owner.name), what="what a job left", owner=owner,
            since=changed, deadline=changed + self._latest_minutes() * 60,
        )  # fmt: skip

    def _affordable(self) -> Sequence[Candidate]:
        limit = self._limits.max_price
        return [one for one in self._candidates if limit is None or (one.price is not None and one.price <= limit)]

    def _time_minutes(self) -> int:
        return -(-self._limits.seconds // 60) + SLACK_MINUTES

    def _latest_minutes(self) -> int:
        """Minutes from the submission until the job is over, whenever it began to run."""
        return -(-int(self._limits.capacity_minutes * 60) // 60) + self._time_minutes() + SLACK_MINUTES


def _what(job: Job) -> str:
    nodes = "" if job.nodes == "1" else f" on {job.nodes} nodes"
    return f"{job.gres or 'a job'}{nodes}, {job.state.lower()}"


def _state(job: Job) -> str:
    if job.is_over:
        return f"{job.state}: {ENDED[job.state]} ({one_line(job.reason, 200)})"
    return f"{job.state}: {waits_for(one_line(job.reason, 200))}" if job.state == "PENDING" else job.state


def _price(price: float | None) -> str:
    return f"{price:g} USD" if price is not None else "its price is not known; give price"
