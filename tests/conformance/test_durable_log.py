"""Conformance of every `DurableLog`: what containers rely on. SS-n: docs/spec/segment-store.md."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    LaterVersionError,
    LogClosedError,
    LogDisabledError,
    LogFencedError,
    PenstockError,
    StorageError,
    StorageFullError,
)
from penstock.model.segments import Buffer
from penstock.runtime.bookkeeper import open_ledger_store
from penstock.runtime.coordination import CoordinationSettings
from penstock.runtime.directory_objects import DirectoryObjects
from penstock.runtime.disk import DiskFile, LocalDisk
from penstock.runtime.java_machine import start_java
from penstock.runtime.ledgers import LedgerClientSettings, LedgerPlace
from penstock.runtime.objects import ObjectStore
from penstock.runtime.runtime import Runtime, ThreadedWork
from penstock.runtime.zookeeper import ZooKeeper
from penstock.segmentstore.later_format import LaterFormatError
from penstock.segmentstore.tier1.bookkeeper.factory import BookKeeperLogFactory
from penstock.segmentstore.tier1.bookkeeper.settings import BookKeeperSettings
from penstock.segmentstore.tier1.durable_log import DurableLog, DurableLogFactory, LogAddress
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier1.log_settings import LocalLogSettings
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.segmentstore.tier1.object_log.factory import ObjectLogFactory
from penstock.segmentstore.tier1.object_log.object_log import ObjectLog
from penstock.segmentstore.tier1.object_log.settings import ObjectLogSettings
from penstock_simulation.simulated.bookies import BookieSettings, SimulatedBookies
from penstock_simulation.simulated.disk import SimulatedDisk
from penstock_simulation.simulated.ledgers import SimulatedLedgers
from penstock_simulation.simulated.objects import ObjectFault, ObjectFaults, SimulatedBucket, SimulatedObjects
from penstock_simulation.simulated.zookeeper import SimulatedZooKeeper
from penstock_simulation.simulated.zookeeper_client import SimulatedCoordination
from support.inline_work import InlineWork
from support.s3_server import S3Server

FRAME_LENGTH_MAX = 10_000


SETTINGS = LocalLogSettings(
    frame_length_max_bytes=FRAME_LENGTH_MAX,
    batch_length_max_bytes=30_000,
    first_file_length_bytes=32 * 1024,
    file_length_bytes=64 * 1024,
    zero_chunk_length_bytes=16 * 1024,
    reserve_file_length_bytes=16 * 1024,
    reserve_file_count=1,
    reserve_record_count=2,
    # An owner of these tests that only waits writes nothing by itself, however slow the machine is.
    trailer_delay_s=3600.0,
)
BUCKET_SETTINGS = ObjectLogSettings(
    frame_length_max_bytes=FRAME_LENGTH_MAX,
    batch_interval_s=0.0,
    gather_s=0.0,
    batch_bytes_max=30_000,
    reserve_bytes=0,
    hedge_s=0.01,
    hedge_percent_max=50,
    retry_delay_s_first=0.001,
    retry_delay_s_max=0.01,
    kept_bytes_max=20_000,
    read_bytes_max=40_000,
    truncate_interval_s=0.0,
)
_BUCKET_NUMBERS = itertools.count()
QUICK_BUCKET = ObjectFaults(latency_s_min=0.0, latency_s_max=0.0005)
#: Each of them leaves the outcome unknown, or is an answer that says nothing.
FAULTY_BUCKET = ObjectFaults(
    latency_s_min=0.0,
    latency_s_max=0.0005,
    slow_s=0.02,
    late_s_max=0.05,
    hang_s=0.05,
    stall_s_max=0.02,
    rates=tuple(
        (fault, 0.05)
        for fault in (
            ObjectFault.SLOW,
            ObjectFault.THROTTLE,
            ObjectFault.LOST_REQUEST,
            ObjectFault.LOST_REPLY,
            ObjectFault.SENT_TWICE,
            ObjectFault.LATE,
            ObjectFault.LATE_COPY,
            ObjectFault.CONFLICT,
            ObjectFault.HANG,
            ObjectFault.STALL,
        )
    ),
)
KINDS: list[object] = [
    "memory",
    "local",
    "simulated disk",
    "bucket",
    "bucket, a process each",
    "bucket with faults",
    "directory of objects",
    "versitygw",
    "versitygw, a process each",
    "bookies",
    "bookies, a process each",
    "bookies with faults",
]
#: Set by `test_durable_log_on_bookies.py`, which runs this module in a process with a Java virtual machine.
BOOKIES_URL = os.environ.get("PENSTOCK_TEST_BOOKIES_URL", "")
if BOOKIES_URL:
    # Several clients of BookKeeper for each test take long.
    KINDS = ["real bookies", pytest.param("real bookies, a process each", marks=pytest.mark.nightly)]
BOOKIE_LOG_SETTINGS = BookKeeperSettings(
    frame_length_max_bytes=FRAME_LENGTH_MAX,
    in_flight_bytes_max=60_000,
    ledger_bytes=60_000,
    retry_s=0.01,
    ensemble_wait_s=0.1,
    read_bytes=20_000,
    kept_bytes_max=20_000,
    truncate_interval_s=0.0,
)
QUICK_BOOKIES = BookieSettings()
#: Changes of metadata that are not answered, and bookies that do not answer for a while.
FAULTY_BOOKIES = BookieSettings(add_timeout_s=0.05, request_timeout_s=0.05, lost_reply_rate=0.05)


class FillableFile:
    """A file of a `FillableDisk`."""

    def __init__(self, inner: DiskFile, disk: FillableDisk) -> None:
        self._inner = inner
        self._disk = disk

    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        if self._disk.is_full:
            raise OSError(errno.ENOSPC, "no space left on device")
        return self._inner.write(offset, buffers)

    def write_synced(self, offset: int, buffers: Sequence[Buffer]) -> int:
        if self._disk.is_full:
            raise OSError(errno.ENOSPC, "no space left on device")
        return self._inner.write_synced(offset, buffers)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


class FillableDisk(LocalDisk):
    """The real disk, with a switch that makes it full."""

    is_full = False

    def open(  # type: ignore[override]  # Not a `LocalFile`, but a `DiskFile` nevertheless.
        self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True
    ) -> DiskFile:
        file = super().open(path, create=create, exclusive=exclusive, writable=writable)
        return FillableFile(file, self)  # type: ignore[return-value]  # What it lacks is delegated.


@dataclass
class Backend:
    """A kind of log, and what is done to the medium under it.

    `fill`: there is no more room; `free`: there is again. `tear`: make the last frame of container 0, which holds
    these bytes, look as if the machine had stopped during the write: nothing after it was written.
    """

    factory: DurableLogFactory
    runtime: Runtime
    fill: Callable[[], None]
    free: Callable[[], None]
    tear: Callable[[bytes], None]


def memory_backend() -> Backend:
    runtime = Runtime(disk=LocalDisk(), work=ThreadedWork(1), rng=random.Random(1), wall_clock_ms=lambda: 0)
    factory = MemoryLogFactory(runtime, frame_length_max_bytes=FRAME_LENGTH_MAX, is_lease_kept=True)

    def tear(data: bytes) -> None:
        frame = factory._get(0).frames.pop()
        assert frame.data == data

    return Backend(
        factory, runtime, lambda: factory.fail_append(0, error=StorageFullError("no room")), lambda: None, tear
    )


def local_backend(directory: Path) -> Backend:
    disk = FillableDisk()
    runtime = Runtime(disk=disk, work=ThreadedWork(4), rng=random.Random(1), wall_clock_ms=lambda: 0)

    def tear(data: bytes) -> None:
        for path in sorted(directory.rglob("log-*")):
            content = path.read_bytes()
            if (at := content.find(data)) >= 0:
                path.write_bytes(content[: at + len(data) // 2] + bytes(len(content) - at - len(data) // 2))

    return Backend(
        LocalLogFactory(f"{directory}/tier1", runtime, SETTINGS),
        runtime,
        lambda: setattr(disk, "is_full", True),
        lambda: setattr(disk, "is_full", False),
        tear,
    )


def simulated_backend() -> Backend:
    disk = SimulatedDisk(random.Random(1))
    runtime = Runtime(disk=disk, work=InlineWork(), rng=random.Random(1), wall_clock_ms=lambda: 0)

    def refuse(operation: str, path: str) -> None:
        if operation == "write":
            raise OSError(errno.ENOSPC, "no space left on device")

    def tear(data: bytes) -> None:
        for path, content in disk.files().items():
            if (at := content.find(data)) >= 0:
                file = disk.open(path)
                file.write(at + len(data) // 2, [bytes(len(content) - at - len(data) // 2)])
                file.close()

    return Backend(
        LocalLogFactory("/tier1", runtime, SETTINGS),
        runtime,
        lambda: setattr(disk, "hook", refuse),
        lambda: setattr(disk, "hook", lambda operation, path: None),
        tear,
    )


class LogProcesses:
    """Logs that processes share: of one process, or each of a process of its own (`is_each`)."""

    def __init__(self, begin: Callable[[], DurableLogFactory], *, is_each: bool) -> None:
        self._begin = begin
        self._is_each = is_each
        self._factories = [begin()]

    def next(self) -> DurableLogFactory:
        """Begin a process, which makes the next logs."""
        self._factories.append(self._begin())
        return self._factories[-1]

    async def start(self) -> None:
        """See `DurableLogFactory.start`."""
        for factory in self._factories:
            await factory.start()

    async def close(self) -> None:
        """See `DurableLogFactory.close`."""
        for factory in self._factories:
            await factory.close()

    def create(self, container_id: int) -> DurableLog:
        """See `DurableLogFactory.create`."""
        return (self.next() if self._is_each else self._factories[-1]).create(container_id)

    async def check(self) -> None:
        """See `DurableLogFactory.check`."""
        await self._factories[-1].check()

    async def has_logs(self) -> bool:
        """See `DurableLogFactory.has_logs`."""
        return await self._factories[-1].has_logs()

    async def enable(self, container_id: int) -> None:
        """See `DurableLogFactory.enable`."""
        await self._factories[-1].enable(container_id)


def bucket_logs(objects: ObjectStore, runtime: Runtime) -> ObjectLogFactory:
    return ObjectLogFactory(objects, runtime, BUCKET_SETTINGS, prefix="log", cluster_id="cluster-a", container_count=4)


def bucket_backend(*, is_each: bool, faults: ObjectFaults) -> Backend:
    bucket = SimulatedBucket()
    runtime = Runtime(disk=LocalDisk(), work=InlineWork(), rng=random.Random(1), wall_clock_ms=lambda: 0)
    clients: list[SimulatedObjects] = []
    used = [faults]

    def connect() -> SimulatedObjects:
        clients.append(SimulatedObjects(bucket, random.Random(len(clients)), used[0]))
        return clients[-1]

    processes = LogProcesses(lambda: bucket_logs(connect(), runtime), is_each=is_each)

    def tear(data: bytes) -> None:
        """An object is created whole or not at all: this one was not. The process that sent it has ended."""
        if faults.rates:
            pytest.skip("a late copy of the creation may store the object again")
        for key, (content, _) in list(bucket.contents.items()):
            if data in content:
                del bucket.contents[key]
        processes.next()

    def set_full(is_full: bool) -> None:
        used[0] = replace(faults, is_full=is_full)
        for client in clients:
            client.faults = used[0]

    return Backend(processes, runtime, lambda: set_full(True), lambda: set_full(False), tear)


def directory_backend(folder: Path) -> Backend:
    runtime = Runtime(disk=LocalDisk(), work=InlineWork(), rng=random.Random(1), wall_clock_ms=lambda: 0)

    def skip(data: bytes = b"") -> None:
        pytest.skip("done with the simulated bucket")

    def connect() -> ObjectStore:
        return DirectoryObjects(str(folder), base=str(folder))

    processes = LogProcesses(lambda: bucket_logs(connect(), runtime), is_each=True)
    return Backend(processes, runtime, skip, skip, skip)


def versitygw_backend(server: S3Server, *, is_each: bool) -> Backend:
    if not server.is_atomic:
        pytest.skip("versitygw replaces objects in one step only where files have extended attributes")
    name = f"log-{next(_BUCKET_NUMBERS)}"
    server.make_bucket(name)
    runtime = Runtime(disk=LocalDisk(), work=InlineWork(), rng=random.Random(1), wall_clock_ms=lambda: 0)

    def skip(data: bytes = b"") -> None:
        pytest.skip("done with the simulated bucket")

    processes = LogProcesses(lambda: bucket_logs(server.open(name), runtime), is_each=is_each)
    return Backend(processes, runtime, skip, skip, skip)


def bookies_backend(*, is_each: bool, settings: BookieSettings) -> Backend:
    cluster = SimulatedBookies(random.Random(1), 4, settings)
    ensemble = SimulatedZooKeeper(random.Random(2))
    runtime = Runtime(disk=LocalDisk(), work=InlineWork(), rng=random.Random(1), wall_clock_ms=lambda: 0)
    numbers = itertools.count()

    def begin() -> BookKeeperLogFactory:
        number = next(numbers)
        return BookKeeperLogFactory(
            SimulatedLedgers(cluster, random.Random(f"client {number}")),
            SimulatedCoordination(ensemble, f"host {number}", random.Random(f"session {number}")),
            runtime,
            BOOKIE_LOG_SETTINGS,
            cluster_id="cluster-a",
            container_count=4,
        )

    def tear(data: bytes) -> None:
        """Only one bookie, which has lost its disk since, has stored the entry."""
        for bookie in cluster.bookies.values():
            for entries in bookie.entries.values():
                for number in [each for each, (entry, _) in entries.items() if data in entry]:
                    del entries[number]

    def skip() -> None:
        pytest.skip("a bookie without space is one that takes no entries")

    return Backend(LogProcesses(begin, is_each=is_each), runtime, skip, skip, tear)


def real_bookies_backend(*, is_each: bool) -> Backend:
    start_java("a test", os.environ["PENSTOCK_TEST_BOOKIES_JARS"], heap_mb=128, direct_mb=256)
    runtime = Runtime(disk=LocalDisk(), work=ThreadedWork(4), rng=random.Random(1), wall_clock_ms=lambda: 0)
    place = LedgerPlace.parse(BOOKIES_URL)
    root = replace(place.zookeeper, root=f"/tests/{uuid.uuid4().hex}")
    settings = replace(BOOKIE_LOG_SETTINGS, in_flight_bytes_max=1 << 20, ensemble_wait_s=5.0, retry_s=0.1)

    def begin() -> BookKeeperLogFactory:
        return BookKeeperLogFactory(
            open_ledger_store(place, LedgerClientSettings("secret"), runtime.work),
            ZooKeeper(root, CoordinationSettings(session_timeout_s=30.0, request_timeout_s=30.0)),
            runtime,
            settings,
            cluster_id="cluster-a",
            container_count=4,
        )

    def skip(data: bytes = b"") -> None:
        pytest.skip("done with simulated bookies")

    return Backend(LogProcesses(begin, is_each=is_each), runtime, skip, skip, skip)


async def make_root(backend: Backend) -> None:
    """Make the root of the records, as ``penstock cluster init`` does."""
    assert isinstance(backend.factory, LogProcesses)
    factory = backend.factory._factories[0]
    assert isinstance(factory, BookKeeperLogFactory)
    session = await factory.process.records._service.open_session(makes_root=True)
    await session.close()


@pytest.fixture(params=KINDS)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    if request.param == "memory":
        made = memory_backend()
    elif request.param == "local":
        made = local_backend(tmp_path)
    elif request.param == "bucket with faults":
        made = bucket_backend(is_each=True, faults=FAULTY_BUCKET)
    elif request.param == "directory of objects":
        made = directory_backend(tmp_path)
    elif request.param.startswith("versitygw"):
        made = versitygw_backend(request.getfixturevalue("s3_server"), is_each=request.param != "versitygw")
    elif request.param.startswith("real bookies"):
        made = real_bookies_backend(is_each=request.param != "real bookies")
        await make_root(made)
    elif request.param.startswith("bookies"):
        faults = FAULTY_BOOKIES if request.param == "bookies with faults" else QUICK_BOOKIES
        made = bookies_backend(is_each=request.param != "bookies", settings=faults)
    elif request.param.startswith("bucket"):
        made = bucket_backend(is_each=request.param != "bucket", faults=QUICK_BUCKET)
    else:
        made = simulated_backend()
    yield made
    await made.factory.close()
    await made.runtime.work.close()


@pytest.fixture
def factory(backend: Backend) -> DurableLogFactory:
    return backend.factory


async def opened(factory: DurableLogFactory, container_id: int = 0) -> DurableLog:
    log = factory.create(container_id)
    await log.open()
    return log


async def contents(log: DurableLog) -> list[tuple[LogAddress, bytes]]:
    return [(frame.address, frame.data) async for frame in log.frames()]


async def append(log: DurableLog, data: bytes) -> LogAddress:
    return await log.append([data], len(data))


async def test_frames_come_back_as_appended_with_growing_addresses(factory: DurableLogFactory) -> None:
    """SS-73: open, append, read: same bytes, growing addresses; buffers of every kind; an empty frame is a frame."""
    log = await opened(factory)
    assert log.epoch == 1
    first = await append(log, b"one")
    second = await log.append([b"t", bytearray(b"w"), memoryview(b"xoy")[1:2]], 3)
    third = await log.append([], 0)
    assert first < second < third
    await log.close()

    log = await opened(factory)
    assert log.epoch == 2
    assert await contents(log) == [(first, b"one"), (second, b"two"), (third, b"")]
    fourth = await append(log, b"four")
    assert fourth > third
    await log.close()

    log = await opened(factory)
    assert await contents(log) == [(first, b"one"), (second, b"two"), (third, b""), (fourth, b"four")]
    await log.close()


async def test_who_watches_syncs_is_called_before_those_who_wait_and_may_append(factory: DurableLogFactory) -> None:
    """In that call all frames of the sync have their addresses, and no callback of their futures has run yet."""
    log = await opened(factory)
    appended = [log.append([b"1"], 1), log.append([b"2"], 1)]
    told: list[asyncio.Future[LogAddress]] = []
    seen: list[tuple[int, int]] = []

    def synced() -> None:
        seen.append((sum(future.done() for future in appended), len(told)))
        if len(appended) < 5:
            appended.append(log.append([b"more"], 4))
            appended[-1].add_done_callback(told.append)

    for future in appended:
        future.add_done_callback(told.append)
    log.on_synced = synced
    while len(appended) < 5 or not appended[-1].done():  # noqa: ASYNC110  # what is shown is who is called when
        await asyncio.sleep(0.001)
    addresses = [await future for future in appended]
    assert addresses == sorted(addresses)
    done_before = 0
    for done, told_then in seen:
        assert done > done_before
        assert told_then <= done_before
        done_before = done
    assert done_before == 5
    await log.close()


async def test_longest_frame_is_taken_and_one_byte_more_is_refused_at_once(factory: DurableLogFactory) -> None:
    """SS-74: the refusal comes from the call, not the future, and the log stays usable."""
    log = await opened(factory)
    assert log.frame_length_max == FRAME_LENGTH_MAX
    await append(log, bytes(FRAME_LENGTH_MAX))
    with pytest.raises(InvalidArgumentError):
        log.append([bytes(FRAME_LENGTH_MAX + 1)], FRAME_LENGTH_MAX + 1)
    with pytest.raises(InvalidArgumentError):
        log.append([b"abc"], 2)
    await append(log, b"after")
    await log.close()
    log = await opened(factory)
    assert [len(data) for _, data in await contents(log)] == [FRAME_LENGTH_MAX, 5]
    await log.close()


async def test_second_open_fences_the_first(factory: DurableLogFactory) -> None:
    """SS-75: the first owner's next append fails, the one after finds the log closed; nothing of it becomes visible."""
    first = await opened(factory)
    await append(first, b"before")
    second = await opened(factory)
    assert second.epoch > first.epoch
    with pytest.raises(LogFencedError):
        await append(first, b"zombie")
    with pytest.raises(LogClosedError):
        first.append([b"again"], 5)
    assert [data for _, data in await contents(second)] == [b"before"]
    await append(second, b"after")
    await first.close()
    await second.close()
    third = await opened(factory)
    assert [data for _, data in await contents(third)] == [b"before", b"after"]
    await third.close()


async def test_acknowledged_appends_in_flight_at_the_fence_are_kept(factory: DurableLogFactory) -> None:
    """SS-76: 100 appends in flight; the acknowledged ones are a prefix, and the second owner reads at least those."""
    first = await opened(factory)
    payloads = [f"{number}".encode() * 40 for number in range(100)]
    futures = [first.append([payload], len(payload)) for payload in payloads]
    for turn in range(4):
        await asyncio.sleep(0)
        futures[turn].done()
    second = await opened(factory)
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    acknowledged = [outcome for outcome in outcomes if isinstance(outcome, int)]
    assert outcomes[: len(acknowledged)] == acknowledged
    assert all(isinstance(outcome, StorageError) for outcome in outcomes[len(acknowledged) :])
    found = [data for _, data in await contents(second)]
    assert found == payloads[: len(found)]
    assert len(found) >= len(acknowledged)
    await first.close()
    await second.close()


async def test_of_racing_opens_exactly_one_survives(factory: DurableLogFactory) -> None:
    """SS-77: five open at once; afterwards exactly one can append, and it has the highest epoch."""
    await (await opened(factory)).close()
    logs = [factory.create(0) for _ in range(5)]
    outcomes = await asyncio.gather(*(log.open() for log in logs), return_exceptions=True)
    assert all(outcome is None or isinstance(outcome, LogFencedError) for outcome in outcomes)
    survivors = []
    for log in logs:
        try:
            await append(log, b"mine")
            survivors.append(log)
        except (LogFencedError, LogClosedError):
            pass
    assert len(survivors) == 1
    assert survivors[0].epoch == max(log.epoch for log in logs)
    assert len({log.epoch for log in logs}) == 5
    for log in logs:
        await log.close()
    log = await opened(factory)
    assert [data for _, data in await contents(log)] == [b"mine"]
    await log.close()


async def test_truncation_forgets_up_to_and_including_the_address(factory: DurableLogFactory) -> None:
    """SS-86: over several files; the reader starts right after the address, also when it is far inside a file."""
    log = await opened(factory)
    addresses = [await append(log, f"{number:04}".encode() * 1000) for number in range(100)]
    await log.truncate(addresses[70])
    await log.truncate(addresses[30])
    addresses.append(await append(log, b"last"))
    await log.close()
    log = await opened(factory)
    assert [address for address, _ in await contents(log)] == addresses[71:]
    await log.truncate(addresses[-1])
    await log.close()
    log = await opened(factory)
    assert await contents(log) == []
    assert await append(log, b"new") > addresses[-1]
    await log.close()


async def test_every_process_finds_whether_any_log_was_ever_opened(factory: DurableLogFactory) -> None:
    """Logs that were never opened do not count, and counting opens none; closed and disabled logs do count."""
    assert not await factory.has_logs()
    made = factory.create(0)
    assert not await factory.has_logs()
    await made.close()
    log = await opened(factory, 3)
    assert await factory.has_logs()
    await append(log, b"still the owner")
    await log.disable()
    assert await factory.has_logs()
    await log.close()


async def test_disable_fails_appends_in_flight_and_later_opens_until_enabled(factory: DurableLogFactory) -> None:
    """SS-90: the data stay."""
    log = await opened(factory)
    await append(log, b"kept")
    futures = [log.append([b"in flight"], 9) for _ in range(10)]
    await log.disable()
    for outcome in await asyncio.gather(*futures, return_exceptions=True):
        assert isinstance(outcome, StorageError)
    with pytest.raises(LogClosedError):
        log.append([b"x"], 1)
    for _ in range(2):
        again = factory.create(0)
        with pytest.raises(LogDisabledError):
            await again.open()
        await again.close()
    await factory.enable(0)
    log = await opened(factory)
    found = [data for _, data in await contents(log)]
    assert found[0] == b"kept"
    assert found[1:] == [b"in flight"] * (len(found) - 1)
    await append(log, b"on we go")
    await log.close()


async def test_a_log_that_the_inspection_refuses_is_not_claimed(factory: DurableLogFactory) -> None:
    """Its owner is not fenced, and no epoch is used up. The inspection sees each frame of a log in one file."""
    owner = await opened(factory)
    await append(owner, b"one")
    await append(owner, b"later")
    seen: list[bytes] = []

    def inspect(frame: bytes) -> None:
        seen.append(frame)
        if frame == b"later":
            raise LaterFormatError("kind", found=4, known=3)

    refused = factory.create(0)
    with pytest.raises(LaterVersionError, match="kind 4, this version reads 1 to 3"):
        await refused.open(inspect)
    await refused.close()
    assert seen == [b"one", b"later"]
    await append(owner, b"more")
    await owner.confirm_ownership()
    await owner.close()
    log = factory.create(0)
    await log.open(seen.append)
    assert log.epoch == 2
    assert [data for _, data in await contents(log)] == [b"one", b"later", b"more"]
    assert seen[2:] == [b"one", b"later", b"more"]
    await log.close()


async def test_later_opens_of_a_disabled_log_say_why_it_was_disabled(factory: DurableLogFactory) -> None:
    log = await opened(factory)
    await log.disable(CorruptionError("a/file", 77, 'a "frame" is damaged'))
    for _ in range(2):
        with pytest.raises(LogDisabledError, match='a/file at byte 77: a "frame" is damaged'):
            await factory.create(0).open()
    await factory.enable(0)
    log = await opened(factory)
    await log.disable()
    with pytest.raises(LogDisabledError) as refused:
        await factory.create(0).open()
    assert "damaged" not in str(refused.value)


async def test_enabling_an_enabled_or_disabling_a_disabled_log_is_an_error(factory: DurableLogFactory) -> None:
    """SS-91."""
    with pytest.raises(InvalidArgumentError):
        await factory.enable(0)
    log = factory.create(0)
    with pytest.raises(LogClosedError):
        await log.disable()
    await log.open()
    with pytest.raises(InvalidArgumentError):
        await factory.enable(0)
    await log.disable()
    with pytest.raises(LogClosedError):
        await log.disable()
    await factory.enable(0)
    with pytest.raises(InvalidArgumentError):
        await factory.enable(0)


async def test_fenced_owner_can_neither_disable_nor_truncate(factory: DurableLogFactory) -> None:
    """The new owner's state is its own."""
    first = await opened(factory)
    address = await append(first, b"kept")
    second = await opened(factory)
    with pytest.raises(LogFencedError):
        await first.truncate(address)
    with pytest.raises(LogFencedError):
        await first.disable()
    await append(second, b"more")
    await first.close()
    await second.close()
    third = await opened(factory)
    assert [data for _, data in await contents(third)] == [b"kept", b"more"]
    await third.close()


async def test_empty_log_has_no_frames_and_low_truncation_is_harmless(factory: DurableLogFactory) -> None:
    """SS-95."""
    log = await opened(factory)
    assert await contents(log) == []
    await log.truncate(LogAddress(0))
    await log.truncate(LogAddress(1))
    address = await append(log, b"first")
    await log.truncate(LogAddress(0))
    await log.close()
    log = await opened(factory)
    assert await contents(log) == [(address, b"first")]
    await log.close()


async def test_calls_outside_the_open_state_are_refused(factory: DurableLogFactory) -> None:
    """Before open, after close, and a second open of the same object."""
    log = factory.create(0)
    with pytest.raises(LogClosedError):
        log.append([b"x"], 1)
    with pytest.raises(LogClosedError):
        await log.truncate(LogAddress(1))
    await log.open()
    with pytest.raises(LogClosedError):
        await log.open()
    await log.close()
    await log.close()
    with pytest.raises(LogClosedError):
        log.append([b"x"], 1)
    with pytest.raises(LogClosedError):
        await log.open()
    never = factory.create(0)
    await never.close()
    with pytest.raises(PenstockError):
        await never.open()


async def test_close_finishes_the_appends_under_way(factory: DurableLogFactory) -> None:
    """Also when two close at once, and when a caller gave up on its future."""
    log = await opened(factory)
    futures = [log.append([b"abc"], 3) for _ in range(50)]
    futures[7].cancel()
    await asyncio.gather(log.close(), log.close())
    assert all(future.done() for future in futures)
    log = await opened(factory)
    assert len(await contents(log)) == 50
    await log.close()


async def test_containers_do_not_share_anything(factory: DurableLogFactory) -> None:
    """Two logs of one factory: own epochs, own frames."""
    a, b = await opened(factory, 1), await opened(factory, 2)
    await append(a, b"a")
    await append(b, b"b")
    await a.close()
    a = await opened(factory, 1)
    assert (a.epoch, b.epoch) == (2, 1)
    assert [data for _, data in await contents(a)] == [b"a"]
    await append(b, b"b")
    await a.close()
    await b.close()


async def test_appends_are_acknowledged_in_the_order_of_the_calls(factory: DurableLogFactory) -> None:
    """Whatever shares a sync: when a frame is acknowledged, all before it are; addresses grow with the calls."""
    log = await opened(factory)
    told: list[int] = []
    futures = []
    for number in range(200):
        future = log.append([bytes([number]) * (1 + number * 37 % 5000)], 1 + number * 37 % 5000)
        future.add_done_callback(partial(lambda number, _: told.append(number), number))
        futures.append(future)
        if number % 7 == 0:
            await asyncio.sleep(0)
    addresses = await asyncio.gather(*futures)
    assert told == list(range(200))
    assert list(addresses) == sorted(set(addresses))
    await log.close()


async def test_a_log_that_outgrows_its_files_under_load_loses_and_repeats_nothing(factory: DurableLogFactory) -> None:
    """SS-83, for logs of files: 400 kB at once through files of 64 kB, by two incarnations."""
    payloads = [number.to_bytes(2, "big") * 2500 for number in range(80)]
    for part in (payloads[:40], payloads[40:]):
        log = await opened(factory)
        await asyncio.gather(*(log.append([payload], len(payload)) for payload in part))
        await log.close()
    log = await opened(factory)
    assert [data for _, data in await contents(log)] == payloads
    await log.close()


async def test_a_live_owner_that_is_fenced_during_its_appends_acknowledges_no_more(
    factory: DurableLogFactory,
) -> None:
    """SS-76: the old owner appends without a pause. No acknowledged append is missing, none follows what was read."""
    first = await opened(factory)
    acknowledged: list[bytes] = []

    async def keep_appending() -> None:
        for number in range(10_000):
            data = b"%06d" % number
            await append(first, data)
            acknowledged.append(data)

    appending = asyncio.ensure_future(keep_appending())
    while len(acknowledged) < 5:  # noqa: ASYNC110  # What it is about.
        await asyncio.sleep(0)
    second = await opened(factory)
    found = [data for _, data in await contents(second)]
    with pytest.raises((LogFencedError, LogClosedError)):
        await appending
    assert acknowledged == found[: len(acknowledged)]
    await append(second, b"mine")
    await first.close()
    await second.close()
    third = await opened(factory)
    assert [data for _, data in await contents(third)] == [*found, b"mine"]
    await third.close()


async def test_a_full_disk_is_an_error_of_its_own_and_loses_nothing(backend: Backend) -> None:
    """`StorageFullError`, the log is closed; once there is room it opens again with all that was acknowledged.

    A log in a bucket stays open instead: the append waits.
    """
    log = await opened(backend.factory)
    kept = await append(log, b"kept")
    backend.fill()
    if isinstance(log, ObjectLog):
        waiting = asyncio.ensure_future(append(log, b"no room"))
        assert await asyncio.wait([waiting], timeout=0.2) == (set(), {waiting})
        await log.confirm_ownership()
        space = await log.space()
        assert space is not None
        assert space.free_bytes == 0
        backend.free()
        assert await waiting > kept
        await log.close()
        log = await opened(backend.factory)
        assert [data for _, data in await contents(log)] == [b"kept", b"no room"]
        await log.close()
        return
    with pytest.raises(StorageFullError):
        await append(log, b"no room")
    with pytest.raises(LogClosedError):
        log.append([b"x"], 1)
    await log.close()
    backend.free()
    log = await opened(backend.factory)
    assert (await contents(log))[0] == (kept, b"kept")
    assert await append(log, b"room again") > kept
    await log.close()
    log = await opened(backend.factory)
    found = [data for _, data in await contents(log)]
    assert found in ([b"kept", b"room again"], [b"kept", b"no room", b"room again"])
    await log.close()


async def test_a_frame_that_was_half_written_is_no_frame(backend: Backend) -> None:
    """Everything before it is there; the next owner writes on, and the half never comes back."""
    first = await opened(backend.factory)
    await append(first, b"whole" * 100)
    torn = b"half of this is missing " * 100
    await append(first, torn)
    backend.tear(torn)
    second = await opened(backend.factory)
    assert [data for _, data in await contents(second)] == [b"whole" * 100]
    await append(second, b"after")
    await second.close()
    third = await opened(backend.factory)
    assert [data for _, data in await contents(third)] == [b"whole" * 100, b"after"]
    await third.close()
    await first.close()


async def test_a_reader_that_stops_early_leaves_the_log_usable(factory: DurableLogFactory) -> None:
    """As a recovery does that found corruption: the log can still be disabled, or appended to."""
    log = await opened(factory)
    for number in range(50):
        await append(log, bytes([number]) * 9000)
    await log.close()
    log = await opened(factory)
    async for frame in log.frames():
        assert frame.data == bytes(9000)
        break
    await append(log, b"on")
    await log.disable()
    await factory.enable(0)
    log = await opened(factory)
    assert len(await contents(log)) == 51
    await log.close()


async def test_ownership_is_confirmed_by_open_appends_and_checks_and_by_nothing_of_a_fenced_owner(
    backend: Backend,
) -> None:
    """The time is taken before the check. A fenced owner's time does not advance; its check raises `LogFencedError`."""
    times = iter(range(100, 10_000))
    backend.runtime.monotonic_s = lambda: float(next(times))
    log = backend.factory.create(0)
    assert log.ownership_confirmed_s == float("-inf")
    await log.open()
    opened_s = log.ownership_confirmed_s
    assert opened_s >= 100
    await append(log, b"x")
    appended_s = log.ownership_confirmed_s
    assert appended_s > opened_s
    await log.confirm_ownership()
    confirmed_s = log.ownership_confirmed_s
    assert confirmed_s > appended_s
    successor = await opened(backend.factory)
    with pytest.raises(LogFencedError):
        await log.confirm_ownership()
    with pytest.raises(LogFencedError):
        await append(log, b"y")
    assert log.ownership_confirmed_s == confirmed_s
    await successor.confirm_ownership()
    await successor.close()
    with pytest.raises(LogClosedError):
        await successor.confirm_ownership()
    await log.close()


async def test_who_was_not_closed_is_waited_for_by_all_that_follow_until_one_has_waited(
    factory: DurableLogFactory,
) -> None:
    """The successor of no owner, or of one that closed, need not wait. A fenced predecessor may still answer appends,
    and so may one before it that was not waited for, even if the owner in between closed.
    """
    first = await opened(factory)
    assert not first.may_predecessor_answer
    await first.close()
    second = await opened(factory)
    assert not second.may_predecessor_answer
    third = await opened(factory)
    assert third.may_predecessor_answer
    await third.close()
    fourth = await opened(factory)
    assert fourth.may_predecessor_answer
    await fourth.settle()
    assert not fourth.may_predecessor_answer
    with pytest.raises(LogFencedError):  # type: ignore[unreachable]
        await second.settle()
    await second.close()
    await fourth.close()
    fifth = await opened(factory)
    assert not fifth.may_predecessor_answer
    await fifth.close()


async def test_runs_of_frames_are_the_frames(factory: DurableLogFactory) -> None:
    """The same addresses and bytes, in the same order; a run has at least one."""
    log = await opened(factory)
    addresses = [await append(log, bytes([number]) * (100 * number)) for number in range(40)]
    await log.truncate(addresses[4])
    await log.close()
    log = await opened(factory)
    runs = [run async for run in log.frame_runs()]
    await log.close()
    assert all(len(run.addresses) == len(run.data) > 0 for run in runs)
    found = [(address, bytes(data)) for run in runs for address, data in zip(run.addresses, run.data, strict=True)]
    assert found == [(addresses[number], bytes([number]) * (100 * number)) for number in range(5, 40)]


async def test_that_a_log_was_truncated_is_known_to_each_later_owner(factory: DurableLogFactory) -> None:
    """Also to those that have truncated nothing themselves."""
    log = await opened(factory)
    assert not log.is_truncated
    address = await append(log, b"gone")
    await log.close()
    log = await opened(factory)
    await log.truncate(address)
    seen = [log.is_truncated]
    await log.close()
    assert seen == [True]
    for _ in range(2):
        log = await opened(factory)
        assert log.is_truncated
        await log.close()


async def test_the_space_of_a_log_is_unknown_or_not_more_than_there_is(factory: DurableLogFactory) -> None:
    log = await opened(factory)
    space = await log.space()
    assert space is None or 0 <= space.free_bytes <= space.total_bytes
    await log.close()


async def test_a_factory_starts_before_its_logs_and_closes_again_and_again(factory: DurableLogFactory) -> None:
    """A start is no log: storage is not claimed by it."""
    await factory.start()
    assert not await factory.has_logs()
    log = await opened(factory)
    await append(log, b"one")
    await log.close()
    await factory.close()
    await factory.close()
