"""The pool set-ups, by where each of them uses its pool. Whether NCCL then does as hoped needs a GPU."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
import torch

from checks.memory import Incapable, Memory
from checks.pools import SET_UPS, Pool, set_up


class NotedMemory(Memory):
    """A memory that needs no GPU: it notes which threads have the pool in use, and its registrations."""

    def __init__(self, *, later: bool = True) -> None:
        super().__init__(torch.device("cpu"))
        self.later = later
        self.users: list[int] = []
        self.log: list[str] = []

    def open(self, name: str) -> None:
        self.log.append("open")

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        assert threading.get_ident() not in self.users, "the same pool is entered twice, which raises on a GPU"
        self.users.append(threading.get_ident())
        yield
        self.users.remove(threading.get_ident())

    def in_use(self) -> bool:
        return threading.get_ident() in self.users

    def register(self, *, symmetric: bool) -> None:
        self.log.append("symmetric" if symmetric else "plain")

    def deregister(self) -> None:
        self.log.append("deregister")

    @property
    def registers_later_segments(self) -> bool:
        return self.later

    def segments(self) -> list[tuple[int, int]]:
        return [(4096, 8192)]


class Noted(torch.Tensor):
    """A tensor whose copies say whether the pool was in use when they were made."""

    memory: NotedMemory
    seen: list[bool]

    def clone(self, **options):
        self.seen.append(self.memory.in_use())
        return torch.ones(4)


def buffers_in_pool(pool: Pool, memory: NotedMemory) -> dict[str, bool]:
    """Make a forward and a backward buffer as a workload does, backward on a second thread as on a GPU.

    Where the set-up turns autograd's threads off, backward is made on this one.
    """
    seen: list[bool] = []
    tensor = torch.ones(4).as_subclass(Noted)
    tensor.memory, tensor.seen = memory, seen

    def backward() -> None:
        pool.buffer(tensor, "backward")

    with pool.around_step():
        with pool.around_forward():
            pool.buffer(tensor, "forward")
        with pool.around_backward():
            if torch._C._is_multithreading_enabled():
                worker = threading.Thread(target=backward)
                worker.start()
                worker.join()
            else:
                backward()
    assert len(seen) == 2 and not memory.users
    return dict(zip(("forward", "backward"), seen, strict=True))


@pytest.mark.parametrize(
    ("name", "forward", "backward", "registration"),
    [
        ("none", False, False, "none"),
        ("forward", True, False, "symmetric"),
        ("step", True, False, "symmetric"),
        ("single-thread", True, True, "symmetric"),
        ("backward", True, True, "symmetric"),
        ("static", True, True, "symmetric"),
        ("unregistered", True, True, "none"),
        ("registered-not-symmetric", True, True, "plain"),
    ],
)
def test_a_set_up_puts_its_buffers_where_it_says(name: str, forward: bool, backward: bool, registration: str) -> None:
    memory = NotedMemory()
    pool = set_up(name, memory)
    assert pool.name == name
    assert buffers_in_pool(pool, memory) == {"forward": forward, "backward": backward}
    pool.register()
    assert pool.describe()["registered"] == registration
    pool.deregister()
    pool.deregister()
    opened = [] if name == "none" else ["open"]
    registered = [] if registration == "none" else [registration, "deregister"]
    assert memory.log == opened + registered
    assert pool.describe()["registered"] == "none"
    assert torch._C._is_multithreading_enabled()


def test_no_set_up_goes_untested() -> None:
    tested = test_a_set_up_puts_its_buffers_where_it_says.pytestmark[0].args[1]
    assert [row[0] for row in tested] == list(SET_UPS)


def test_a_static_set_up_reduces_in_the_buffers_it_has_kept() -> None:
    pool = set_up("static", NotedMemory())
    first = pool.buffer(torch.arange(4.0), "forward")
    other = pool.buffer(torch.zeros(4), "backward")
    second = pool.buffer(torch.arange(4.0) + 1, "forward")
    assert first.data_ptr() == second.data_ptr() != other.data_ptr()
    assert second.tolist() == [1, 2, 3, 4]


def test_other_set_ups_reduce_in_a_fresh_contiguous_copy() -> None:
    tensor = torch.ones(1).expand(4)  # as the gradient of a sum comes
    buffer = set_up("backward", NotedMemory()).buffer(tensor, "backward")
    assert buffer.is_contiguous() and buffer.data_ptr() != tensor.data_ptr()


def test_an_address_is_looked_up_in_the_pools_segments() -> None:
    pool = set_up("step", NotedMemory())
    assert [pool.holds(address) for address in (4095, 4096, 8191, 8192)] == [False, True, True, False]
    assert not set_up("none", NotedMemory()).holds(4096)


def test_pools_need_a_gpu_and_a_known_name() -> None:
    memory = Memory(torch.device("cpu"))
    assert set_up("none", memory).describe() == {
        "set_up": "none",
        "allocator": None,
        "segments": 0,
        "registered": "none",
    }
    with pytest.raises(Incapable, match="'static' needs a GPU"):
        set_up("static", memory)
    with pytest.raises(ValueError, match="'Static': it is one of none, forward"):
        set_up("Static", memory)


def test_a_pool_is_registered_once_and_before_it_holds_anything() -> None:
    memory = NotedMemory()
    pool = set_up("static", memory)
    pool.register()
    pool.register()
    pool.register_allocated()
    assert memory.log == ["open", "symmetric"]


def test_a_backend_that_takes_no_later_segments_is_given_them_after_the_first_step() -> None:
    memory = NotedMemory(later=False)
    pool = set_up("static", memory)
    pool.register()
    pool.register_allocated()
    assert memory.log == ["open", "symmetric", "deregister", "symmetric"]
