"""``penstock cluster log salvage``: an entry is damaged on all real bookies, and the cluster continues without it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.routing import container_of
from penstock.wire.commands import (
    AppendBlockEnd,
    AppendSetup,
    CreateSegment,
    DataAppended,
    SegmentCreated,
    SetupAppend,
    WrongHost,
)
from support.bookkeeper_cluster import STORES, bookkeeper_cluster, start_all
from support.bookkeeper_server import Bookies
from support.cluster_processes import WAIT_S, Cluster
from support.s3_server import S3Server
from support.wire_client import WireClient
from support.zookeeper_server import ZooKeeperServers

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(900)]

CONTAINERS = 2
CONTAINER = 1
#: Two segments of the container.
DAMAGED, OTHER = [
    name
    for name in (f"shop/orders{number}/0.#epoch.0" for number in range(1000))
    if container_of(name, CONTAINERS) == CONTAINER
][:2]
MARK = b"this event will be damaged"
BEFORE, AFTER = b"before", b"after"
WRITER = b"w" * 16


@pytest.fixture
def cluster(
    zookeeper_server: ZooKeeperServers, s3_server: S3Server, bookies: Bookies, tmp_path: Path
) -> Iterator[Cluster]:
    """A cluster that was made, without processes. Bytes stay in the log: nothing else has them."""
    with bookkeeper_cluster(zookeeper_server, s3_server, bookies, tmp_path, CONTAINERS) as made:
        made.config.write_text(made.config.read_text().replace("flush_age_s = 0.5", "flush_age_s = 3600.0"))
        yield made


def server_of(cluster: Cluster, segment: str) -> WireClient:
    """Return a connection with the store that serves a segment, which exists then."""
    for name in STORES:
        connection = WireClient(cluster.ports[name], timeout_s=WAIT_S)
        if not isinstance(connection.ask(CreateSegment(connection.next_id(), segment, 0, 0, "")), WrongHost):
            return connection
        connection.close()
    raise AssertionError(f"no store serves {segment}")


def append(connection: WireClient, segment: str, writer: bytes, *blocks: bytes) -> None:
    """Append blocks to a segment, each acknowledged."""
    connection.ask(SetupAppend(connection.next_id(), writer, segment, ""), AppendSetup)
    for number, block in enumerate(blocks, 1):
        request = AppendBlockEnd(writer, len(block), block, 1, number, connection.next_id())
        connection.ask(request, DataAppended)


def damage(directory: Path) -> int:
    """Flip a bit of each mark in the files of stopped bookies; return how many there were."""
    count = 0
    for path in (each for each in sorted(directory.rglob("*")) if each.is_file()):
        content = path.read_bytes()
        found = content.count(MARK)
        if found:
            path.write_bytes(content.replace(MARK, bytes([MARK[0] ^ 0x10]) + MARK[1:]))
        count += found
    return count


def wait_until_damage_is_found(cluster: Cluster) -> None:
    """Wait until the store of the container has found that its log is damaged."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        logs = json.loads(cluster.command("log", "list").stdout)["logs"]
        if "corrupt data" in logs[CONTAINER]["problem"] + logs[CONTAINER]["error"]:
            return
        assert time.monotonic() < deadline_s, logs
        time.sleep(0.5)


def test_a_damaged_log_is_salvaged_and_its_container_is_served_again(cluster: Cluster, bookies: Bookies) -> None:
    """While a store serves the container, the command refuses. The other container is served all the time."""
    start_all(cluster)
    with server_of(cluster, DAMAGED) as connection:
        connection.ask(CreateSegment(connection.next_id(), OTHER, 0, 0, ""), SegmentCreated)
        append(connection, DAMAGED, WRITER, BEFORE, MARK, AFTER)
        append(connection, OTHER, b"o" * 16, b"of another segment")
    refused = cluster.command("log", "salvage", str(CONTAINER))
    assert refused.returncode == 2, refused.stdout
    for name in STORES:
        cluster.processes[name].kill()
    for number in range(len(bookies.ports)):
        bookies.kill(number)
    assert damage(bookies.directory) >= 2
    bookies.restore()
    for name in STORES:
        cluster.start_store(name).wait_ready()
    wait_until_damage_is_found(cluster)

    told = cluster.command("log", "salvage", str(CONTAINER), "--dry-run")
    assert told.returncode == 0, told.stdout + told.stderr
    done = cluster.command("log", "salvage", str(CONTAINER))
    assert done.returncode == 0, done.stdout + done.stderr
    salvaged = json.loads(done.stdout)
    assert salvaged["report"]["segments"] == json.loads(told.stdout)["report"]["segments"]
    (loss,) = salvaged["report"]["segments"]
    lost_to = len(BEFORE + MARK + AFTER)
    assert (loss["name"], loss["start"], loss["end"]) == (DAMAGED, len(BEFORE), lost_to)
    assert [each["unit"] for each in salvaged["report"]["damaged"]] == ["entries"]

    cluster.wait_served()
    swept = cluster.command("sweep")
    assert swept.returncode == 0, swept.stdout + swept.stderr
    with server_of(cluster, DAMAGED) as connection:
        assert connection.read_whole(DAMAGED, len(BEFORE)) == BEFORE
        assert connection.read_whole(OTHER, len(b"of another segment")) == b"of another segment"
        append(connection, DAMAGED, b"n" * 16, b" continues")
        assert connection.read_whole(DAMAGED, len(BEFORE) + 10) == BEFORE + b" continues"
    assert (
        "is not damaged" in json.loads(cluster.command("log", "salvage", str(CONTAINER), "--dry-run").stdout)["message"]
    )
    for name in STORES:
        assert cluster.processes[name].terminate() == 0, cluster.processes[name].log[-3000:]
