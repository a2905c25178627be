"""What every `Coordinator` has to do: the suite runs over each implementation.

A backend is a way to make one, and to end a membership without its controller's doing, as a lost session does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest

from penstock.controller.errors import MembershipLostError
from penstock.controller.ownership.coordinator import Coordinator
from penstock.controller.ownership.in_process_coordinator import InProcessCoordinator
from penstock.controller.ownership.zookeeper_coordinator import ZooKeeperCoordinator
from penstock.model.errors import ControllerUnavailableError, InvalidArgumentError
from penstock.runtime.coordination import CoordinationStore, Session
from penstock_simulation.simulated.coordination import CoordinationServer, CoordinationSettings, Sessions
from penstock_simulation.simulated.coordination_client import SimulatedCoordinator
from support.coordination_backends import LONG, make_backend, wait_for_session

#: Changes must be reported within this many seconds.
TOLD_S = 10.0


@dataclass(frozen=True, slots=True)
class Backend:
    """A coordinator, and a function that makes it take a member for dead."""

    coordinator: Coordinator
    expire: Callable[[str], Awaitable[None]]


@asynccontextmanager
async def in_process(_: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    """Make the one of standalone and of tests."""
    coordinator = InProcessCoordinator()

    async def expire(name: str) -> None:
        coordinator.expire(name)

    yield Backend(coordinator, expire)


@asynccontextmanager
async def simulated(_: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    """Make the simulated coordinator, here over real sockets. No session times out unless a test expires it."""
    settings = CoordinationSettings(session_timeout_s=600.0, request_timeout_s=TOLD_S)
    server = CoordinationServer(Sessions(), settings)
    port = await server.start("127.0.0.1", 0)

    async def expire(name: str) -> None:
        server.expire(name)

    try:
        yield Backend(SimulatedCoordinator("127.0.0.1", port, settings), expire)
    finally:
        server.stop()


def zookeeper(kind: str) -> Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[Backend]]:
    """Return a maker of the one over ZooKeeper: simulated, or real with one or three servers."""

    @asynccontextmanager
    async def make(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
        servers = make_backend(request, kind)
        keeper = await servers.open()
        stores: dict[str, CoordinationStore] = {}

        class Service:
            """Notes the session of each name: the next one that is opened is that of the next join."""

            place = "tests"

            async def open_session(self, *, makes_root: bool = False) -> CoordinationStore:
                store = await servers.open(LONG)
                stores[str(store.session_id)] = store
                return store

        async def expire(name: str) -> None:
            owner = (await keeper.get(f"/controllers/{name}")).owner
            await servers.expire(stores[str(owner)])
            # Before it knows, its requests fail in another way: no server is reached.
            await wait_for_session(stores[str(owner)], Session.EXPIRED)

        yield Backend(ZooKeeperCoordinator(Service()), expire)
        await asyncio.gather(keeper.close(), *(store.close() for store in stores.values()))

    return make


@pytest.fixture(
    params=[
        pytest.param(in_process, id="in_process"),
        pytest.param(simulated, id="simulated"),
        pytest.param(zookeeper("simulated"), id="simulated-zookeeper"),
        pytest.param(zookeeper("zookeeper-1"), id="zookeeper-1", marks=pytest.mark.interop),
        pytest.param(zookeeper("zookeeper-3"), id="zookeeper-3", marks=[pytest.mark.interop, pytest.mark.nightly]),
    ]
)
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    """Each implementation in turn."""
    async with request.param(request) as made:
        assert isinstance(made, Backend)
        yield made


async def test_who_joins_is_seen_by_all_and_by_itself(backend: Backend) -> None:
    """S-214: from the moment that `join` has returned."""
    first = await backend.coordinator.join("a")
    assert first.name == "a"
    assert not first.is_over
    assert (await first.members()).names == {"a"}
    second = await backend.coordinator.join("b")
    assert (await first.members()).names == (await second.members()).names == {"a", "b"}


async def test_who_leaves_is_gone_for_all(backend: Backend) -> None:
    """S-214: the member that left is notified as well. Leaving twice is allowed."""
    first, second = await backend.coordinator.join("a"), await backend.coordinator.join("b")
    await second.leave()
    assert second.is_over
    assert (await first.members()).names == {"a"}
    with pytest.raises(MembershipLostError, match="b"):
        await second.members()
    with pytest.raises(MembershipLostError):
        await second.changed(-1)
    await second.leave()
    assert (await first.members()).names == {"a"}


async def test_who_is_not_heard_of_is_gone_and_may_decide_nothing(backend: Backend) -> None:
    """S-222: the others see it go; it gets no answer that it could act on, and may join again by another name."""
    first, second = await backend.coordinator.join("a"), await backend.coordinator.join("b")
    await backend.expire("b")
    assert (await first.members()).names == {"a"}
    with pytest.raises(MembershipLostError):
        await second.members()
    assert second.is_over
    again = await backend.coordinator.join("c")
    assert (await first.members()).names == (await again.members()).names == {"a", "c"}
    assert second.is_over
    await second.leave()
    assert (await first.members()).names == {"a", "c"}


async def test_a_name_is_not_given_twice(backend: Backend) -> None:
    """The first one stays a member."""
    first = await backend.coordinator.join("a")
    with pytest.raises(InvalidArgumentError, match="a"):
        await backend.coordinator.join("a")
    assert (await first.members()).names == {"a"}


async def test_a_change_wakes_its_waiters(backend: Backend) -> None:
    """A join and a leave, each seen by a waiter; versions ascend, and are the same for all callers."""
    first = await backend.coordinator.join("a")
    before = await first.members()
    waiting = asyncio.ensure_future(first.changed(before.version))
    await asyncio.sleep(0)
    assert not waiting.done()
    second = await backend.coordinator.join("b")
    joined = await asyncio.wait_for(waiting, TOLD_S)
    assert joined.names == {"a", "b"}
    assert joined.version > before.version >= 0
    assert await second.members() == joined
    waiting = asyncio.ensure_future(first.changed(joined.version))
    await asyncio.sleep(0)
    await second.leave()
    left = await asyncio.wait_for(waiting, TOLD_S)
    assert left.names == {"a"}
    assert left.version > joined.version


async def test_who_missed_changes_hears_at_once(backend: Backend) -> None:
    """Several changes are reported as one: a member that joined and left between two polls may go unnoticed."""
    first = await backend.coordinator.join("a")
    before = await first.members()
    await (await backend.coordinator.join("b")).leave()
    await backend.coordinator.join("c")
    assert (await asyncio.wait_for(first.changed(before.version), TOLD_S)).names == {"a", "c"}
    assert (await asyncio.wait_for(first.changed(-1), TOLD_S)).names == {"a", "c"}


async def test_a_waiting_member_is_notified_of_its_own_end(backend: Backend) -> None:
    """Otherwise a controller whose session ended would wait without end. Its connection may be lost first."""
    membership = await backend.coordinator.join("a")
    version = (await membership.members()).version

    async def wait() -> None:
        while True:
            try:
                await membership.changed(version)
            except MembershipLostError:
                raise
            except ControllerUnavailableError:
                await asyncio.sleep(0.05)

    waiting = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    await backend.expire("a")
    with pytest.raises(MembershipLostError):
        await asyncio.wait_for(waiting, TOLD_S)


async def test_a_wait_that_is_cancelled_leaves_the_membership_as_it_was(backend: Backend) -> None:
    """Waiting can be given up, and begun again."""
    membership = await backend.coordinator.join("a")
    version = (await membership.members()).version
    waiting = asyncio.ensure_future(membership.changed(version))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    again = asyncio.ensure_future(membership.changed(version))
    await backend.coordinator.join("b")
    assert (await asyncio.wait_for(again, TOLD_S)).names == {"a", "b"}


async def test_many_join_and_go_at_once(backend: Backend) -> None:
    """No member is lost, and none remains after it left."""
    joined = await asyncio.gather(*(backend.coordinator.join(str(number)) for number in range(20)))
    assert (await joined[0].members()).names == {str(number) for number in range(20)}
    await asyncio.gather(*(membership.leave() for membership in joined[10:]))
    assert (await joined[0].members()).names == {str(number) for number in range(10)}
