"""Coordination services for conformance suites: simulated, and real with one and three servers.

Real servers are marked as `interop`: they are other programs that tests drive.
"""

from __future__ import annotations

import asyncio
import random
import socket
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import pytest
from kazoo.client import KazooClient

from penstock.runtime.coordination import (
    CoordinationPlace,
    CoordinationService,
    CoordinationSettings,
    CoordinationStore,
    Session,
)
from penstock.runtime.zookeeper import ZooKeeper, ZooKeeperSession
from penstock_simulation.simulated.zookeeper import SimulatedZooKeeper, ZooKeeperSettings
from penstock_simulation.simulated.zookeeper_client import SimulatedCoordination
from support.zookeeper_server import ZooKeeperServers

#: No session of a test ends by a timeout, however busy the machine is.
LONG = CoordinationSettings(session_timeout_s=30.0, request_timeout_s=30.0, open_timeout_s=60.0)
#: Bound of every wait.
WAIT_S = 60.0

BACKENDS = [
    "simulated",
    pytest.param("zookeeper-1", marks=pytest.mark.interop),
    # Three servers on a busy machine miss their own time limits, so they run in nightly runs.
    pytest.param("zookeeper-3", marks=[pytest.mark.interop, pytest.mark.nightly]),
]


@dataclass(frozen=True, slots=True)
class Backend:
    """A service with a root of its own.

    `service`: a service, by settings; `expire` ends a session as if its timeout had passed; `interrupt` breaks its
    connection, which comes back.
    """

    service: Callable[[CoordinationSettings], CoordinationService]
    expire: Callable[[CoordinationStore], Awaitable[None]]
    interrupt: Callable[[CoordinationStore], None]

    async def open(self, settings: CoordinationSettings = LONG) -> CoordinationStore:
        """Open a session."""
        return await self.service(settings).open_session(makes_root=True)


def simulated_backend() -> Backend:
    """Return the service of the simulation, on the running loop."""
    ensemble = SimulatedZooKeeper(random.Random(1), ZooKeeperSettings(election_s_min=0.02, election_s_max=0.1))

    async def expire(store: CoordinationStore) -> None:
        ensemble.expire(store.session_id)

    def interrupt(store: CoordinationStore) -> None:
        connection = ensemble.connection_of[store.session_id]
        for server in ensemble.servers:
            server.drop(connection)
        connection.closed()

    return Backend(
        lambda settings: SimulatedCoordination(ensemble, "host", random.Random(2), settings), expire, interrupt
    )


def real_backend(servers: ZooKeeperServers) -> Backend:
    """Return a service of real servers, with an unused root."""
    place = replace(CoordinationPlace.parse(servers.address), root=f"/tests/{uuid.uuid4().hex}")

    async def expire(store: CoordinationStore) -> None:
        assert isinstance(store, ZooKeeperSession)
        # A second client with a session's number and password can end it.
        identity = store._client.client_id
        await asyncio.to_thread(_end_session, place.servers, identity)

    def interrupt(store: CoordinationStore) -> None:
        assert isinstance(store, ZooKeeperSession)
        store._client._connection._socket.shutdown(socket.SHUT_RDWR)

    return Backend(lambda settings: ZooKeeper(place, settings), expire, interrupt)


def _end_session(servers: str, identity: tuple[int, bytes]) -> None:
    double = KazooClient(hosts=servers, client_id=identity, timeout=30.0)
    double.start(timeout=WAIT_S)
    double.stop()
    double.close()


def make_backend(request: pytest.FixtureRequest, kind: str = "") -> Backend:
    """Return a backend: the one of `BACKENDS` that is named, or that the fixture's parameter is."""
    match kind or request.param:
        case "simulated":
            return simulated_backend()
        case "zookeeper-1":
            return real_backend(request.getfixturevalue("zookeeper_server"))
        case _:
            return real_backend(request.getfixturevalue("zookeeper_quorum"))


async def wait_for_session(store: CoordinationStore, session: Session) -> None:
    """Wait until the session is in a state."""
    async with asyncio.timeout(WAIT_S):
        while store.session is not session:
            assert store.session is not Session.EXPIRED, f"the session ended before it was {session}"
            await store.session_changed(store.session)


async def wait_until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(WAIT_S):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.01)
