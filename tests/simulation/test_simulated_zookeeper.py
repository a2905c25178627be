"""The simulated ZooKeeper has the weaknesses of the real one, each shown by what a client sees of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from penstock.model.errors.coordination import (
    CoordinationOutcomeUnknownError,
    CoordinationUnavailableError,
    NodeVersionError,
    NoSuchNodeError,
    SessionExpiredError,
)
from penstock.runtime.coordination import CoordinationSettings, Session, may_have_ended
from penstock_simulation.simulated.simulation import Simulation
from penstock_simulation.simulated.zookeeper import Server, SimulatedZooKeeper, ZooKeeperSettings
from penstock_simulation.simulated.zookeeper_client import SimulatedCoordination, SimulatedSession

SETTINGS = CoordinationSettings(session_timeout_s=8.0, request_timeout_s=3.0)


class World:
    """An ensemble and clients on hosts of their own names."""

    def __init__(self, seed: int, settings: ZooKeeperSettings | None = None) -> None:
        self.zookeeper = SimulatedZooKeeper(random.Random(seed), settings)
        self._rng = random.Random(seed + 1)

    async def open(self, host: str) -> SimulatedSession:
        """Open a session from a host."""
        return await SimulatedCoordination(self.zookeeper, host, self._rng, SETTINGS).open_session()

    def server_of(self, session: SimulatedSession) -> Server:
        """Return the server that a session is connected to."""
        (found,) = (
            server
            for server in self.zookeeper.servers
            if self.zookeeper.connection_of[session.session_id] in server.connections
        )
        return found

    async def open_at_follower(self, host: str) -> SimulatedSession:
        """Open a session that is connected to a server that does not lead."""
        while True:
            session = await self.open(host)
            if self.server_of(session) is not self.zookeeper.leader:
                return session
            await session.close()


def run(scenario: Callable[[World], Awaitable[None]], seed: int = 1, settings: ZooKeeperSettings | None = None) -> str:
    """Run a scenario in virtual time; return the digest of its trace."""
    with Simulation(seed) as simulation:

        async def whole() -> None:
            await scenario(World(seed, settings))

        simulation.run(whole)
        return simulation.trace.digest


def now_s() -> float:
    """Return the virtual time."""
    return asyncio.get_running_loop().time()


async def until(session: SimulatedSession, state: Session) -> float:
    """Wait until a session is in a state; return the time that it took."""
    began_s = now_s()
    async with asyncio.timeout(600.0):
        while session.session is not state:
            assert session.session is not Session.EXPIRED, f"the session ended before it was {state}"
            await session.session_changed(session.session)
    return now_s() - began_s


def test_a_lagging_follower_answers_with_old_data() -> None:
    """Its client reads the past until the follower catches up; a change on what was read is refused."""

    async def scenario(world: World) -> None:
        writer, reader = await world.open("a"), await world.open_at_follower("b")
        await writer.create("/x", b"old")
        await asyncio.sleep(1.0)
        world.zookeeper.hold(world.server_of(reader).number)
        await writer.set("/x", b"new")
        await asyncio.sleep(1.0)
        seen = await reader.get("/x")
        assert seen.content == b"old"
        with pytest.raises(NodeVersionError):
            await reader.set("/x", b"third", seen.version)
        world.zookeeper.release(world.server_of(reader).number)
        assert (await reader.get("/x")).content == b"new"

    run(scenario)


def test_a_client_does_not_go_back_in_time() -> None:
    """A server that is behind what a client has seen refuses it."""

    async def scenario(world: World) -> None:
        zookeeper = world.zookeeper
        client = await world.open("a")
        held = next(server for server in zookeeper.servers if server not in (zookeeper.leader, world.server_of(client)))
        zookeeper.hold(held.number)
        await client.create("/x")
        await client.get("/x")
        others = [server.number for server in zookeeper.servers if server is not held]
        zookeeper.cut("a", others)
        client.dropped(zookeeper.connection_of[client.session_id])  # type: ignore[arg-type]
        await asyncio.sleep(3.0)  # It tries all servers.
        assert client.session is Session.SUSPENDED
        zookeeper.release(held.number)
        await until(client, Session.CONNECTED)
        assert world.server_of(client) is held
        await client.get("/x")

    run(scenario)


def test_a_lost_answer_leaves_a_change_made() -> None:
    """Without an answer the client cannot tell; a read of a server that does not lag can."""

    async def scenario(world: World) -> None:
        client = await world.open("a")
        await client.create("/x", b"old")
        world.zookeeper.lose_replies("a")
        with pytest.raises(CoordinationOutcomeUnknownError):
            await client.set("/x", b"new", 0)
        await until(client, Session.CONNECTED)
        await asyncio.sleep(1.0)  # The server that it is connected to now may lag.
        assert (await client.get("/x")).content == b"new"
        with pytest.raises(NodeVersionError):
            await client.set("/x", b"new", 0)

    run(scenario)


def test_a_partitioned_client_does_not_detect_it_at_once() -> None:
    """It is CONNECTED until it notices the silence, meanwhile its requests get no answer; then nothing is sent."""

    async def scenario(world: World) -> None:
        client = await world.open("a")
        await client.create("/x")
        world.zookeeper.cut("a")
        began_s = now_s()
        assert client.session is Session.CONNECTED
        with pytest.raises(CoordinationOutcomeUnknownError):
            await client.set("/x", b"new")
        with pytest.raises(CoordinationUnavailableError):
            await client.get("/x")
        await until(client, Session.SUSPENDED)
        assert 5.0 <= now_s() - began_s <= 9.0
        with pytest.raises(CoordinationUnavailableError):
            await client.set("/x", b"new")

    run(scenario)


@pytest.mark.parametrize("to_server", [True, False])
def test_a_link_that_fails_in_one_direction_is_enough(to_server: bool) -> None:
    """Changes on a link without a way back are made."""

    async def scenario(world: World) -> None:
        client, other = await world.open("a"), await world.open("b")
        await client.create("/x")
        await asyncio.sleep(1.0)
        world.zookeeper.cut("a", to_server=to_server, from_server=not to_server)
        with pytest.raises(CoordinationOutcomeUnknownError):
            await client.set("/x", b"new")
        assert (await other.get("/x")).content == (b"" if to_server else b"new")
        await until(client, Session.SUSPENDED)
        world.zookeeper.mend("a")
        await until(client, Session.CONNECTED)

    run(scenario)


def test_a_client_learns_of_the_end_of_its_session_only_from_a_server() -> None:
    """Its ephemeral nodes are deleted after the timeout; it is SUSPENDED for as long as it is cut off."""

    async def scenario(world: World) -> None:
        client, other = await world.open("a"), await world.open("b")
        await client.create("/mine", is_ephemeral=True)
        await asyncio.sleep(1.0)
        seen = await other.get("/mine")
        world.zookeeper.cut("a")
        began_s = now_s()
        await other.changed("/mine", seen)
        assert 5.0 <= now_s() - began_s <= 9.0
        await asyncio.sleep(100.0)
        assert client.session is Session.SUSPENDED
        assert may_have_ended(client, now_s())
        assert not may_have_ended(other, now_s())
        world.zookeeper.mend("a")
        await until(client, Session.EXPIRED)
        with pytest.raises(SessionExpiredError):
            await client.get("/mine")

    run(scenario)


def test_an_expired_session_may_still_be_answered_by_a_follower_that_lags() -> None:
    """Reads return what was before; a change goes to the leader, which refuses it."""

    async def scenario(world: World) -> None:
        client = await world.open_at_follower("a")
        await client.create("/mine", is_ephemeral=True)
        world.zookeeper.hold(world.server_of(client).number)
        world.zookeeper.expire(client.session_id)
        await asyncio.sleep(1.0)
        assert client.session is Session.CONNECTED
        assert (await client.get("/mine")).owner == client.session_id
        with pytest.raises(SessionExpiredError):
            await client.set("/mine", b"x")
        assert client.session is Session.EXPIRED  # type: ignore[comparison-overlap]

    run(scenario)


def test_sessions_outlive_their_leader_and_an_outage_of_all() -> None:
    """They are timed by the leader: without one none ends, and a new one gives each its whole timeout again."""

    async def scenario(world: World) -> None:
        zookeeper = world.zookeeper
        client = await world.open("a")
        await client.create("/mine", is_ephemeral=True)
        assert zookeeper.leader is not None
        first = zookeeper.leader.number
        zookeeper.stop(first)
        await until(client, Session.SUSPENDED)
        with pytest.raises(CoordinationUnavailableError):
            await client.get("/mine")
        assert await until(client, Session.CONNECTED) < 5.0
        assert (await client.get("/mine")).owner == client.session_id
        zookeeper.stop(next(server.number for server in zookeeper.servers if server.is_up))
        await until(client, Session.SUSPENDED)
        await asyncio.sleep(100.0)
        for server in zookeeper.servers:
            zookeeper.start(server.number)
        await until(client, Session.CONNECTED)
        assert (await client.get("/mine")).owner == client.session_id
        assert await client.set("/mine", b"x") == 1

    run(scenario)


def test_all_sessions_can_end_at_once() -> None:
    """As after an outage in which the leader counted on."""

    async def scenario(world: World) -> None:
        clients = [await world.open(host) for host in "abc"]
        for number, client in enumerate(clients):
            await client.create(f"/{number}", is_ephemeral=True)
        world.zookeeper.expire_all()
        for client in clients:
            await until(client, Session.EXPIRED)
        again = await world.open("d")
        with pytest.raises(NoSuchNodeError):
            await again.get("/0")

    run(scenario)


def test_a_late_change_over_an_earlier_connection_is_refused() -> None:
    """As ZooKeeper does: the session has moved to another server since."""

    async def scenario(world: World) -> None:
        client = await world.open("a")
        await client.create("/x")
        earlier = world.zookeeper.connection_of[client.session_id]
        client.dropped(earlier)  # type: ignore[arg-type]
        await until(client, Session.CONNECTED)
        assert world.zookeeper.connection_of[client.session_id] is not earlier
        await client.set("/x", b"new")
        assert (await client.get("/x")).version == 1

    run(scenario)


def test_the_same_seed_gives_the_same_history() -> None:
    """Everything comes from the loop's clock and the generator."""
    histories: list[list[object]] = []

    async def scenario(world: World) -> None:
        history: list[object] = []
        histories.append(history)
        clients = [await world.open(host) for host in "abc"]
        await clients[0].create("/x")

        async def work(client: SimulatedSession) -> None:
            for number in range(40):
                try:
                    history.append((now_s(), await client.set("/x", b"%d" % number)))
                except (CoordinationUnavailableError, CoordinationOutcomeUnknownError) as error:
                    history.append((now_s(), type(error).__name__))
                    await asyncio.sleep(0.1)

        await asyncio.gather(*(work(client) for client in clients))
        assert any(isinstance(what, str) for _, what in history)  # type: ignore[has-type, misc]

    settings = ZooKeeperSettings(lost_reply_rate=0.1)
    first, second = run(scenario, 5, settings), run(scenario, 5, settings)
    assert histories[0] == histories[1]
    assert first == second
