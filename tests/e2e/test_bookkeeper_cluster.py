"""A cluster whose log is in BookKeeper: real bookies, ZooKeeper, stores and controllers, of which some are killed.

A writer runs all the time. In the end every acknowledged event is there, once, in the order of its key.
"""

from __future__ import annotations

import random
import signal
import threading
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
    GetStreamSegmentInfo,
    ReadSegment,
    SegmentCreated,
    SegmentRead,
    SetupAppend,
    StreamSegmentInfo,
    WireCommand,
)
from support.bookkeeper_cluster import bookkeeper_cluster, start_all
from support.bookkeeper_server import Bookies
from support.cluster_load import Load, check_events
from support.cluster_processes import WAIT_S, Cluster, kill_process
from support.s3_server import S3Server
from support.wire_client import WireClient
from support.zookeeper_server import ZooKeeperServers

# Each store has a Java virtual machine: too much beside other tests, so it runs in nightly runs.
pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(3600)]

CONTAINERS = 4
#: A segment in each container.
SEGMENTS = [
    next(
        name
        for name in (f"shop/orders{number}/0.#epoch.0" for number in range(1000))
        if container_of(name, CONTAINERS) == container_id
    )
    for container_id in range(CONTAINERS)
]
WRITER = b"w" * 16
OTHER_WRITER = b"o" * 16
#: Appends that a suspended store finds in its connection.
LATE_COUNT = 50
#: Stores that are killed with one seed; and one bookie is killed in this time.
KILLS = 10
BOOKIE_INTERVAL_S = 20.0


@pytest.fixture
def cluster(
    zookeeper_server: ZooKeeperServers, s3_server: S3Server, bookies: Bookies, tmp_path: Path
) -> Iterator[Cluster]:
    """A cluster that was made, without processes."""
    with bookkeeper_cluster(zookeeper_server, s3_server, bookies, tmp_path, CONTAINERS) as made:
        yield made


class LostBookies:
    """Kills one bookie after the other, one every `interval_s`, and starts it again after half of that time.

    Attributes:
        killed: the numbers of those killed so far.
    """

    def __init__(self, bookies: Bookies, interval_s: float) -> None:
        self._bookies = bookies
        self._interval_s = interval_s
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self.killed: list[int] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> LostBookies:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(2 * WAIT_S)
        assert not self._thread.is_alive()
        assert self._error is None, self._error

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                number = len(self.killed) % len(self._bookies.ports)
                self._bookies.kill(number)
                self.killed.append(number)
                self._is_over.wait(self._interval_s / 2)
                self._bookies.launch(number)
                self._bookies.wait_until_ready(number)
                self._is_over.wait(self._interval_s / 2)
        except BaseException as error:  # noqa: BLE001  # the end of the block reports it
            self._error = error


@pytest.mark.parametrize("seed", range(5))
def test_kills_of_stores_and_bookies_lose_double_and_reorder_nothing(
    seed: int, cluster: Cluster, bookies: Bookies
) -> None:
    """Stores are killed with and without their parents, while one bookie after the other is away."""
    draws = random.Random(seed)
    start_all(cluster)
    load = Load(cluster.uri("controller-a"))
    load.start()
    load.wait_for_more()
    began_s = time.monotonic()
    with LostBookies(bookies, BOOKIE_INTERVAL_S) as lost:
        for _ in range(KILLS):
            name = draws.choice(("store-a", "store-b"))
            if draws.random() < 0.5:
                for pid in cluster.processes[name].store_pids():
                    kill_process(pid)
            else:
                cluster.processes[name].kill()
                cluster.start_store(name).wait_ready()
            load.wait_for_more()
        took_s = time.monotonic() - began_s
        killed = len(lost.killed)
    assert killed >= took_s // (2 * BOOKIE_INTERVAL_S)
    count = load.stop()
    cluster.wait_served()
    check_events(cluster.uri("controller-a"), count)
    for name in ("store-a", "store-b"):
        assert cluster.processes[name].terminate() == 0, cluster.processes[name].log[-3000:]
    print(f"{KILLS} stores and {killed} bookies killed in {took_s:.0f} s, {count} events")  # noqa: T201


def event(number: int) -> bytes:
    """Return an event of a wire append."""
    return b"\0\0\0\0\0\0\0\x08%08d" % number


def append(number: int, writer: bytes) -> WireCommand:
    """Return the append of one event."""
    return AppendBlockEnd(writer, len(event(number)), event(number), 1, number, number)


def own_segment(connection: WireClient) -> str:
    """Create a segment in a container of the store at the other end, and return its name."""
    for name in SEGMENTS:
        if isinstance(connection.ask(CreateSegment(connection.next_id(), name, 0, 0, "")), SegmentCreated):
            return name
    raise AssertionError("the store has no container")


def wait_until_served(connection: WireClient, segment: str) -> None:
    """Wait until the store at the other end serves a segment."""
    deadline_s = time.monotonic() + WAIT_S
    while not isinstance(connection.ask(GetStreamSegmentInfo(connection.next_id(), segment, "")), StreamSegmentInfo):
        assert time.monotonic() < deadline_s
        time.sleep(0.2)


def test_a_store_that_resumes_after_a_take_over_acknowledges_nothing(cluster: Cluster) -> None:
    """It finds appends and a read in its connection, which were sent while it was suspended."""
    start_all(cluster)
    with (
        WireClient(cluster.ports["store-a"], timeout_s=WAIT_S) as old,
        WireClient(cluster.ports["store-b"], timeout_s=WAIT_S) as new,
    ):
        segment = own_segment(old)
        old.ask(SetupAppend(old.next_id(), WRITER, segment, ""), AppendSetup)
        assert old.ask(append(0, WRITER), DataAppended).event_number == 0
        cluster.processes["store-a"].signal_all(signal.SIGSTOP)
        try:
            old.send(*(append(number, WRITER) for number in range(1, LATE_COUNT)))
            old.send(ReadSegment(segment, 0, 1024, "", 1000))
            wait_until_served(new, segment)
            new.ask(SetupAppend(new.next_id(), OTHER_WRITER, segment, ""), AppendSetup)
            new.ask(append(1000, OTHER_WRITER), DataAppended)
        finally:
            cluster.processes["store-a"].signal_all(signal.SIGCONT)
        answers = old.receive_until_closed()
        assert not [each for each in answers if isinstance(each, (DataAppended, SegmentRead))]
        assert new.read_whole(segment, 2 * len(event(0))) == event(0) + event(1000)
        length = new.ask(GetStreamSegmentInfo(new.next_id(), segment, ""), StreamSegmentInfo).write_offset
        assert length == 2 * len(event(0))
    cluster.wait_served()


def test_a_store_without_the_jars_says_what_to_install(cluster: Cluster, bookies: Bookies) -> None:
    cluster.config.write_text(cluster.config.read_text().replace(str(bookies.jars), "/nowhere"))
    store = cluster.start_store("store-a")
    assert store.process is not None
    assert store.process.wait(WAIT_S) != 0
    assert "penstock jars --to DIR" in store.log + str(store.records)
