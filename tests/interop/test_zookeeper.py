"""Sessions with real ZooKeeper servers that are held, killed, or not there."""

from __future__ import annotations

import asyncio
import datetime
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.model.errors.coordination import (
    CoordinationOutcomeUnknownError,
    CoordinationRefusedError,
    CoordinationUnavailableError,
)
from penstock.runtime.coordination import (
    CoordinationAccess,
    CoordinationPlace,
    CoordinationSettings,
    CreateNode,
    Session,
)
from penstock.runtime.zookeeper import ZooKeeper
from penstock.security.certificates import make_certificates
from support.coordination_backends import LONG, WAIT_S, wait_for_session, wait_until
from support.zookeeper_server import ZooKeeperServers, ZooKeeperUnavailableError

pytestmark = pytest.mark.interop


@pytest.fixture
def own_servers(tmp_path: Path) -> Iterator[ZooKeeperServers]:
    """Three servers that this test may kill."""
    try:
        servers = ZooKeeperServers(tmp_path, 3).start()
    except ZooKeeperUnavailableError as error:
        pytest.skip(str(error))
    yield servers
    servers.stop()


async def test_sessions_are_encrypted_and_check_the_certificate(tmp_path: Path) -> None:
    """An account makes nodes for itself alone. A certificate of another authority, or of another host, is refused."""
    pytest.importorskip("cryptography", reason="needs the extra [security]")
    now = datetime.datetime.now(datetime.UTC)
    made, other = make_certificates(["127.0.0.1"], now), make_certificates(["127.0.0.1"], now)
    own, authority, wrong = tmp_path / "own.pem", tmp_path / "ca.pem", tmp_path / "other.pem"
    own.write_bytes(made.private_key + made.certificate)
    authority.write_bytes(made.authority)
    wrong.write_bytes(other.authority)
    try:
        servers = ZooKeeperServers(tmp_path, 1, pem=(own, authority)).start()
    except ZooKeeperUnavailableError as error:
        pytest.skip(str(error))
    short = replace(LONG, open_timeout_s=3.0)
    try:
        place = CoordinationPlace.parse(f"127.0.0.1:{servers.secure_ports[0]}/c")
        access = CoordinationAccess("ann", "secret", has_tls=True, authority=str(authority))
        store = await ZooKeeper(place, LONG, access).open_session(makes_root=True)
        await store.create("/mine", b"x")
        await store.multi([CreateNode("/other", b"y")])
        anonymous = CoordinationAccess(has_tls=True, authority=str(authority))
        stranger = await ZooKeeper(place, LONG, anonymous).open_session()
        for path in ("/mine", "/other"):
            with pytest.raises(CoordinationRefusedError, match=r"cluster\.zookeeper_user"):
                await stranger.get(path)
            with pytest.raises(CoordinationRefusedError):
                await stranger.set(path, b"")
        await stranger.close()
        assert (await store.get("/mine")).content == b"x"
        await store.close()
        for refused in (
            ZooKeeper(place, short, CoordinationAccess(has_tls=True, authority=str(wrong))),
            ZooKeeper(replace(place, hosts=(("localhost", place.hosts[0][1]),)), short, anonymous),
            ZooKeeper(place, short),
        ):
            with pytest.raises(CoordinationUnavailableError):
                await refused.open_session()
    finally:
        servers.stop()


async def test_a_session_outlives_the_leader(own_servers: ZooKeeperServers) -> None:
    """It keeps its number and its nodes, and changes are made again after the election."""
    store = await ZooKeeper(CoordinationPlace.parse(own_servers.address), LONG).open_session()
    await store.create("/mine", is_ephemeral=True)
    session_id = store.session_id
    leader = await asyncio.to_thread(lambda: own_servers.leader)
    assert leader is not None
    own_servers.kill(leader)
    version = 0
    async with asyncio.timeout(WAIT_S):
        while version == 0:
            try:
                version = await store.set("/mine", b"x")
            except (CoordinationUnavailableError, CoordinationOutcomeUnknownError):
                await asyncio.sleep(0.05)
    node = await store.get("/mine")
    assert (node.content, node.owner, store.session_id) == (b"x", session_id, session_id)
    await store.close()


async def test_a_server_that_is_held_is_noticed(own_servers: ZooKeeperServers) -> None:
    """Requests get no answer, the session is SUSPENDED, then it continues at another server."""
    settings = CoordinationSettings(session_timeout_s=6.0, request_timeout_s=1.0, open_timeout_s=60.0)
    address = own_servers.address.split(",")
    leader = await asyncio.to_thread(lambda: own_servers.leader)
    follower = next(number for number in range(3) if number != leader)
    # The session begins at the follower: the only address at first.
    store = await ZooKeeper(CoordinationPlace.parse(address[follower]), settings).open_session()
    await store.create("/x")
    store._client.set_hosts(own_servers.address)
    own_servers.hold(follower)
    try:
        with pytest.raises(CoordinationOutcomeUnknownError):
            await store.set("/x", b"new")
        await wait_for_session(store, Session.SUSPENDED)
        with pytest.raises(CoordinationUnavailableError):
            await store.get("/x")
        # The session continues, or has ended: that is the leader's clock.
        async with asyncio.timeout(WAIT_S):
            assert await store.session_changed(Session.SUSPENDED) in (Session.CONNECTED, Session.EXPIRED)
    finally:
        own_servers.release(follower)
    await store.close()


async def test_servers_that_are_not_there_are_reported() -> None:
    """After a bound, with the address; and no thread stays."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = CoordinationSettings(open_timeout_s=0.5)
    with pytest.raises(CoordinationUnavailableError, match=f"127.0.0.1:{port}/root"):
        await ZooKeeper(CoordinationPlace.parse(f"127.0.0.1:{port}/root"), settings).open_session()

    async def is_over() -> bool:
        return not any(thread.name == "zookeeper-close" for thread in threading.enumerate())

    await wait_until(is_over)


async def test_one_silent_server_does_not_cost_the_session(zookeeper_server: ZooKeeperServers) -> None:
    """A server whose machine is off neither accepts nor refuses: its turn ends after a third of its share."""
    silent = socket.socket()
    silent.bind(("127.0.0.1", 0))
    silent.listen(0)
    fillers = []
    try:
        for _ in range(4):  # A full queue of connections: further ones get no answer.
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(silent.getsockname())
            fillers.append(filler)
        address = f"127.0.0.1:{silent.getsockname()[1]},{zookeeper_server.address}"
        # Each opening begins with a drawn server; one of several meets the silent one first.
        for _ in range(4):
            settings = CoordinationSettings(session_timeout_s=6.0, open_timeout_s=60.0)
            store = await ZooKeeper(CoordinationPlace.parse(address), settings).open_session()
            assert store.session is Session.CONNECTED
            await store.close()
    finally:
        silent.close()
        for filler in fillers:
            filler.close()


async def test_a_server_that_accepts_and_does_not_answer_does_not_cost_the_session(
    zookeeper_server: ZooKeeperServers,
) -> None:
    """A server that starts may accept a connection and never answer it. Two such connections in a row are given up."""
    silent_left, flows = 0, []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal silent_left
        flows.append(writer)
        if silent_left:
            silent_left -= 1
            return
        host, _, port = zookeeper_server.address.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        flows.append(far_writer)
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    place = CoordinationPlace.parse(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    store = await ZooKeeper(place, CoordinationSettings(session_timeout_s=6.0, open_timeout_s=60.0)).open_session()
    silent_left = 2
    for writer in list(flows):
        writer.close()
    await wait_for_session(store, Session.SUSPENDED)
    async with asyncio.timeout(WAIT_S):
        assert await store.session_changed(Session.SUSPENDED) is Session.CONNECTED
    assert silent_left == 0
    await store.close()
    server.close()
    for writer in flows:
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
    except ConnectionError:
        pass
    finally:
        writer.close()
