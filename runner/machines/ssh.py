"""The provider `ssh`: GPU hosts that somebody owns, each with room for one job at a time.

A host's helper, host.sh, holds its lock, runs the job as a user of its own, and cleans up after it. The user that logs
in may ask that helper, and nothing else, by sudo. So a host outlives a lost connection, a starter that is killed, and
whatever the job leaves behind.
"""

from __future__ import annotations

import re
import time

from ..errors import UserError
from ..yaml_file import Value
from .bootstrap import bootstrap
from .model import Limits, Machine, MachineError, NoCapacity, Order, Owner, PartlyListed, owner_of
from .remote import LOGIN_KEYS, read_login
from .spec import Spec
from .ssh_host import HELPER, Held, Host

KEYS = ("hosts", "public-repository")
ROUND_SECONDS = 15.0
"""Between two looks at hosts that are busy."""
JIT_SECONDS = 60
_HOST_KEYS = ("price", "helper")
_PATH = re.compile(r"(/[A-Za-z0-9._-]+)+")


def provider(entries: dict[str, Value], spec: Spec) -> SshHosts:
    """Read `hosts` and `public-repository`. Raises UserError with line and key."""
    if "hosts" not in entries:
        entries["provider"].error('ssh needs the key "hosts": a list of them, each with host, user and known-hosts')
    hosts: dict[str, Host] = {}
    for value in entries["hosts"].items():
        host = _host(value)
        if host.id in hosts:
            value.error(f"{host.id} stands twice")
        hosts[host.id] = host
    if not hosts:
        entries["hosts"].error("is empty; give at least one host")
    if "public-repository" in entries:
        entries["public-repository"].choice(("allowed",))
    return SshHosts(list(hosts.values()), spec.limits, public="public-repository" in entries)


def _host(value: Value) -> Host:
    entries = value.mapping((*LOGIN_KEYS, *_HOST_KEYS))
    helper = entries["helper"].matching(_PATH, "the path of the helper") if "helper" in entries else HELPER
    price = entries["price"].positive("US dollars an hour") if "price" in entries else None
    return Host(read_login(value, more=_HOST_KEYS), helper, price)


class MayRun(MachineError):
    """A start whose answer was lost and that could not be taken back: no other host may be tried beside it."""


class SshHosts:
    """Hosts in the order in which they are tried. `public` is the first of the two sayings that code which anybody may
    propose can run there; the other is in each host's own host.conf."""

    def __init__(self, hosts: list[Host], limits: Limits, *, public: bool) -> None:
        self._hosts, self._limits, self._public = hosts, limits, public

    def check(self) -> None:
        """See Provider."""
        limit = self._limits.max_price
        for host in self._hosts if limit is not None else ():
            if host.price is None:
                raise UserError(f"{host.where} has no price, so max-price can't be held; give its price in hosts")
            if host.price > (limit or 0.0):
                raise UserError(f"{host.where} costs {host.price:g} USD an hour, above max-price, which is {limit:g}")

    def start(self, order: Order) -> Machine:
        """See Provider. A host that fails is told and passed over while another may be free."""
        if order.public and not self._public:
            raise UserError(
                f"{order.owner.repository} is public, so anybody could run code on hosts that outlive the job; where "
                "that is meant, say public-repository: allowed here, and the same in each host's host.conf"
            )
        began, waited = time.monotonic(), 0.0
        while True:
            machine, busy, failed = self._try_all(order)
            if machine is not None:
                return machine
            reasons = "; ".join([*failed, *busy])
            if not busy:
                raise MachineError(f"no host can take the job: {reasons}")
            if max(time.monotonic() - began, waited) + ROUND_SECONDS > self._limits.capacity_minutes * 60:
                if failed:  # it needs a mend, which would stay hidden behind hosts that are only busy
                    raise MachineError(f"no host can take the job: {reasons}")
                raise NoCapacity(f"no host was free within {self._limits.capacity_minutes} minutes: {reasons}")
            if not waited:
                order.tell(f"waiting for a host: {reasons}")
            order.pause(ROUND_SECONDS)
            waited += ROUND_SECONDS

    def _try_all(self, order: Order) -> tuple[Machine | None, list[str], list[str]]:
        busy: list[str] = []
        failed: list[str] = []
        for host in self._hosts:
            try:
                machine = _start_on(host, order)
            except NoCapacity as error:
                busy.append(str(error))
            except MayRun:
                raise
            except MachineError as error:
                failed.append(str(error))
            else:
                for reason in failed:
                    order.tell(f"passed over: {reason}")
                return machine, busy, failed
        return None, busy, failed

    def stop(self, machine: Machine) -> None:
        """See Provider; returns when the host is clean."""
        self._host_of(machine).stop(machine.owner.name)

    def list(self, server: str, repository: str) -> list[Machine]:
        """See Provider. Raises PartlyListed, after the others were asked, where a host can't be."""
        found: list[Machine] = []
        failed: list[str] = []
        for host in self._hosts:
            try:
                held = host.held()
            except MachineError as error:
                failed.append(str(error))
                continue
            for one in held:
                owner = owner_of(one.name, server, repository)
                if owner is not None:
                    found.append(_machine(host, owner, one))
        if failed:
            raise PartlyListed("not all hosts could be asked: " + "; ".join(failed), found)
        return found

    def journal(self, machine: Machine) -> str:
        """See Provider."""
        return self._host_of(machine).journal(machine.owner.name)

    def _host_of(self, machine: Machine) -> Host:
        for host in self._hosts:
            if host.id == machine.id:
                return host
        raise MachineError(f"{machine.id} is none of the hosts that are given here")


def _start_on(host: Host, order: Order) -> Machine:
    """Start on one host. The runner is registered only for a host that was free a moment ago."""
    name = order.owner.name
    folder = host.free(public=order.public)
    token = order.registration()
    script = bootstrap(order, work=folder, jit_file=f"{folder}/jit", jit_seconds=JIT_SECONDS)
    given = f"{token.value}\n{script}".encode()
    try:
        since, deadline = host.start(name, order.limits.seconds, given, public=order.public)
    except MachineError as error:
        # It may have begun all the same. Another host must not begin with the same registration beside it.
        try:
            host.stop(name)
        except MachineError as second:
            raise MayRun(f"{error}; whether it began can't be told either ({second})") from None
        raise
    return _machine(host, order.owner, Held(name, since, deadline, "running", ""))


def _machine(host: Host, owner: Owner, held: Held) -> Machine:
    what = "GPU host" if held.state == "running" else f"GPU host, {held.state} {held.why}".rstrip()
    return Machine(
        provider="ssh", id=host.id, where=host.where, what=what, owner=owner,
        since=held.since, deadline=held.deadline, price=host.price,
    )  # fmt: skip
