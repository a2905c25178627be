"""Logs in buckets, nodes of clusters and accounts that a later version wrote: refused by each operation, not changed.

`test_later_formats.py` has the formats one by one, `e2e/test_old_data_directories.py` a whole data directory.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.administration.log_administration import LogState
from penstock.administration.object_log_administration import ObjectLogAdministration
from penstock.model.checksum import crc32c
from penstock.model.cluster_nodes import (
    ASSIGNMENT_PATH,
    CONTROLLERS_PATH,
    HOSTS_PATH,
    IDENTITY_PATH,
    AssignmentNode,
    ClusterIdentity,
    ControllerNode,
    HostNode,
    encode_node,
)
from penstock.model.errors import LaterVersionError, PenstockError
from penstock.model.errors.coordination import NodeFormatError
from penstock.runtime.coordination import CoordinationSettings
from penstock.security.access_list import parse_entry
from penstock.security.accounts_file import AccountsFile
from penstock.security.errors import SecurityFileError
from penstock.segmentstore.tier1.object_log.log_bucket import LogBucket
from penstock.segmentstore.tier1.object_log.server_claim import (
    ServerClaim,
    claim_for_cluster,
    claim_identity,
    read_identity,
)
from penstock.server.cluster.administration import ClusterAdministration
from penstock.server.cluster.identity import make_cluster
from penstock.server.cluster.identity import read_identity as read_cluster_identity
from penstock.server.cluster.security import other_processes
from penstock.server.settings import StandaloneSettings
from penstock_simulation.simulated.simulation import Simulation
from penstock_simulation.simulated.zookeeper import SimulatedZooKeeper
from penstock_simulation.simulated.zookeeper_client import SimulatedCoordination, SimulatedSession
from segmentstore.tier1.object_log.test_object_log import SETTINGS, World, append, contents, opened, play
from support.containers import memory_runtime

# -- a log in a bucket ------------------------------------------------------------------------------------------------


def later_record(content: bytes, **fields: object) -> bytes:
    """Return a record of one line and its checksum with other fields."""
    body = json.dumps({**json.loads(content.splitlines()[0]), **fields}).encode() + b"\n"
    return body + b"%08x\n" % crc32c(body, 0)


def later_header(content: bytes, at: int, value: int, length: int) -> bytes:
    """Return an object of a journal with another number in its header."""
    head = content[:at] + value.to_bytes(length, "big") + content[at + length : 60]
    return head + crc32c(head, 0).to_bytes(4, "big") + content[64:]


#: What a later version may have written: which object, by the end of its key, and how it differs.
LOG_CASES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "record of a container": ("log/r/0", lambda content: later_record(content, v=2)),
    "log version": ("log/r/0", lambda content: later_record(content, log_version=5)),
    "object of a journal": ("log/j/", lambda content: later_header(content, 8, 2, 2)),
    "kind of object": ("log/j/", lambda content: later_header(content, 10, 3, 1)),
}


@pytest.mark.parametrize("name", LOG_CASES)
def test_a_log_in_a_bucket_of_a_later_version_is_refused_and_not_changed(name: str) -> None:
    """Put back, the object is used as before: nothing was fenced, sealed, disabled or deleted."""
    place, change = LOG_CASES[name]

    async def scenario(world: World) -> None:
        log = await opened(world.process())
        await append(log, b"frame")
        await log.close()
        bucket = LogBucket(world.process().process.bucket.objects, SETTINGS, prefix="log", attempts_max=2)
        identity = await claim_identity(bucket, world.runtime, "", 3)
        admin = ObjectLogAdministration(bucket, identity, StandaloneSettings(), world.runtime)
        key = next(key for key in sorted(world.bucket.contents) if key.startswith(place))
        content = world.bucket.contents[key][0]
        if place == "log/j/":
            await admin.disable(0)  # Then `enable` reads the frames.
        world.bucket.replace(key, change(content), "")
        before = dict(world.bucket.contents)
        if place == "log/r/0":
            (report, *_) = await admin.reports()
            assert report.state is LogState.LATER_VERSION
            for call in (admin.enable(0), admin.disable(0), admin.sweep(is_dry_run=False), opened(world.process())):
                with pytest.raises(LaterVersionError, match="log/r/0"):
                    await call
        else:
            with pytest.raises(LaterVersionError, match="log/j/"):
                await admin.enable(0)
        assert world.bucket.contents == before
        world.bucket.replace(key, content, "")
        if place == "log/j/":
            await admin.enable(0)
        assert await contents(await opened(world.process())) == [b"frame"]

    play(scenario)


@pytest.mark.parametrize("name", ["identity", "server"])
def test_a_server_does_not_claim_a_bucket_of_a_later_version(name: str) -> None:
    async def scenario(world: World) -> None:
        bucket = LogBucket(world.process().process.bucket.objects, SETTINGS, prefix="log", attempts_max=2)
        await claim_identity(bucket, world.runtime, "", 3)
        claim = ServerClaim(bucket, world.runtime, bytes(16), "this")
        await claim.take()
        key = f"log/{name}"
        world.bucket.replace(key, later_record(world.bucket.contents[key][0], v=2), "")
        before = dict(world.bucket.contents)
        calls: list[Awaitable[object]] = [claim.take(), claim.check(), claim_for_cluster(bucket, world.runtime, "zk")]
        if name == "identity":
            for call in calls:
                call.close()  # type: ignore[attr-defined]  # coroutines
            calls = [read_identity(bucket), claim_identity(bucket, world.runtime, "", 3)]
        for call in calls:
            with pytest.raises(LaterVersionError, match=key):
                await call
        assert world.bucket.contents == before

    play(scenario)


# -- nodes of a cluster -----------------------------------------------------------------------------------------------

IDENTITY = ClusterIdentity(
    cluster_id="ab" * 16, container_count=4, log="s3://b/log", tier2="s3://b/data", ownership_lease_s_max=4.0
)
NODES = {
    IDENTITY_PATH: encode_node(IDENTITY),
    ASSIGNMENT_PATH: encode_node(AssignmentNode(number=1, nonce="", owners=("a", "a", "b", "b"))),
    f"{HOSTS_PATH}/a~1": encode_node(HostNode(endpoints={})),
    f"{CONTROLLERS_PATH}/c1": encode_node(ControllerNode()),
}


def administration_of(session: SimulatedSession) -> ClusterAdministration:
    return ClusterAdministration(session, "zk", memory_runtime(), "test")


#: Operations that read a node, by path: administrators' and those of processes that start.
OPERATIONS: dict[str, tuple[Callable[[SimulatedSession], Awaitable[object]], ...]] = {
    IDENTITY_PATH: (
        lambda session: administration_of(session).status(),
        lambda session: read_cluster_identity(session, "zk"),
        lambda session: make_cluster(session, "zk", IDENTITY),
    ),
    ASSIGNMENT_PATH: (
        lambda session: administration_of(session).status(),
        lambda session: administration_of(session).drain("a", is_dry=False),
        lambda session: administration_of(session).move(0, "b", is_dry=False),
        lambda session: administration_of(session).balance(is_dry=False),
    ),
    f"{HOSTS_PATH}/a~1": (
        lambda session: administration_of(session).status(),
        lambda session: administration_of(session).drain("b", is_dry=False),
        lambda session: administration_of(session).move(0, "b", is_dry=False),
        lambda session: administration_of(session).balance(is_dry=False),
        lambda session: other_processes(session, "c1"),
    ),
    f"{CONTROLLERS_PATH}/c1": (
        lambda session: administration_of(session).status(),
        lambda session: other_processes(session, "c2"),
    ),
}


@pytest.mark.parametrize("path", OPERATIONS)
def test_a_node_of_a_later_version_is_refused_by_each_operation_and_nothing_is_changed(path: str) -> None:
    async def scenario() -> None:
        zookeeper = SimulatedZooKeeper(random.Random(1))
        service = SimulatedCoordination(zookeeper, "admin", random.Random(2), CoordinationSettings())
        session = await service.open_session()
        await make_cluster(session, "zk", IDENTITY)
        await session.create(f"{HOSTS_PATH}/b~1", encode_node(HostNode(endpoints={})))
        for each, content in NODES.items():
            if each in (IDENTITY_PATH, ASSIGNMENT_PATH):
                await session.set(each, content)
            else:
                await session.create(each, content)
        await session.set(path, NODES[path].replace(b'"v":1', b'"v":2'))
        assert zookeeper.leader is not None
        before = zookeeper.leader.tree.zxid
        for operation in OPERATIONS[path]:
            with pytest.raises(NodeFormatError, match=f"{path} .*version 2, this release reads 1"):
                await operation(session)
        assert zookeeper.leader.tree.zxid == before

    with Simulation(1) as simulation:
        simulation.run(scenario)


# -- accounts ---------------------------------------------------------------------------------------------------------


def test_accounts_with_a_password_of_a_later_kind_are_refused_and_not_changed(tmp_path: Path) -> None:
    """No command may write the file without the account that it does not understand."""
    path = tmp_path / "passwd"
    path.write_text("admin:argon9$later$hash:prn::*,READ_UPDATE\n")
    path.chmod(0o600)
    before = path.read_bytes()
    accounts = AccountsFile(path, lambda length: bytes(length))
    entry = parse_entry("prn::*,READ")
    changes: tuple[Callable[[], None], ...] = (
        lambda: accounts.add("new", "secret", [entry]),
        lambda: accounts.set_password("admin", "secret"),
        lambda: accounts.remove("admin"),
        lambda: accounts.grant("admin", entry),
        lambda: accounts.revoke("admin", "prn::*"),
    )
    for change in changes:
        with pytest.raises(PenstockError, match="line 1, account 'admin'"):
            change()
        assert path.read_bytes() == before
    with pytest.raises(SecurityFileError, match="passwd: line 1"):
        accounts.read()


def test_an_entry_of_a_later_kind_gives_no_permission_and_stays_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    accounts = AccountsFile(path, lambda length: bytes(length))
    accounts.add("one", None, [parse_entry("prn::*,READ")])
    accounts.add("two", None, [])
    line = "one:" + path.read_text().splitlines()[0].split(":", 2)[1] + ":prn::later:thing,OBSERVE"
    path.write_text(f"{line}\n{path.read_text().splitlines()[1]}\n")
    assert accounts.read().by_name["one"].access.entries == ()
    assert accounts.read().warnings
    accounts.grant("two", parse_entry("prn::*,READ"))
    assert path.read_text().splitlines()[0] == line
