"""How the ranks agree, over the store that started them and never over the backend under test.

A collective that hangs or a process group that broke says nothing more; the store still does. Every wait is
a poll with an end, since a blocking wait in the store can't be left.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore

POLL_SECONDS = 0.01
ANSWER_SECONDS = 60
CONNECT_SECONDS = 600
"""Where rank 0 hosts the store, the others wait for it to come up; whoever starts the ranks gives up earlier."""


class PeerLost(Exception):
    """A rank, or the store itself, did not answer in time."""


class Control:
    """One client of the store. Each thread needs its own: a client serves one call at a time."""

    def __init__(self, rank: int, world_size: int, *, may_host: bool) -> None:
        """Connect to MASTER_ADDR:MASTER_PORT.

        The agent of torchrun usually hosts the store; where it doesn't, as under Slurm, rank 0 does, with the one
        client made with `may_host` (multi-tenant: `init_process_group` hosts there too).
        """
        self.rank, self.world_size = rank, world_size
        agent_hosts = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        store = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=may_host and rank == 0 and not agent_hosts,
            timeout=timedelta(seconds=ANSWER_SECONDS if agent_hosts else CONNECT_SECONDS),
            wait_for_workers=False,
            multi_tenant=True,
        )
        store.set_timeout(timedelta(seconds=ANSWER_SECONDS))
        self.store = PrefixStore("symmem_check", store)

    def post(self, topic: str, **answer: str | None) -> None:
        """Tell all ranks this rank's answer to `topic`; the first answer stands."""
        key = f"{topic}/{self.rank}"
        try:
            if not self.store.check([key]):
                self.store.set(key, json.dumps(answer))
        except RuntimeError as error:
            raise PeerLost(f"the store of the ranks is gone ({error})") from error

    def answers(self, topic: str) -> dict[int, dict]:
        """Return the answers to `topic` that are there by now, by rank."""
        keys = {rank: f"{topic}/{rank}" for rank in range(self.world_size)}
        try:
            return {rank: json.loads(self.store.get(key)) for rank, key in keys.items() if self.store.check([key])}
        except RuntimeError as error:
            raise PeerLost(f"the store of the ranks is gone ({error})") from error

    def gather(self, topic: str, seconds: float, until: Callable[[dict], bool] | None = None) -> dict[int, dict]:
        """Return all ranks' answers to `topic`, or those that make `until` true.

        Raises PeerLost, which names the ranks that did not answer within `seconds`.
        """
        end = time.monotonic() + seconds
        while True:
            answers = self.answers(topic)
            if len(answers) == self.world_size or (until and until(answers)):
                return answers
            if time.monotonic() > end:
                silent = [str(rank) for rank in range(self.world_size) if rank not in answers]
                raise PeerLost(f"no answer from rank {', '.join(silent)} within {seconds:.0f} s")
            time.sleep(POLL_SECONDS)

    def linger(self, topic: str, seconds: float) -> None:
        """Let the peers answer to `topic` before this process goes, and on rank 0 perhaps the store with it.

        Their deadlines are the same as this rank's, or nearly; without it they would meet a broken connection first.
        """
        with contextlib.suppress(PeerLost):
            self.gather(topic, seconds)

    def barrier(self, topic: str, seconds: float) -> None:
        """Wait until every rank has come to `topic`; raises PeerLost after `seconds`."""
        self.post(topic)
        self.gather(topic, seconds)
