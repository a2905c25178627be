"""`SegmentStore`: containers come and go, and what it refuses. SS-n: docs/spec/segment-store.md."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.controller.metadata import layout
from penstock.model.errors import (
    ContainerNotFoundError,
    ContainerOfflineError,
    CorruptionError,
    InvalidArgumentError,
    LogDisabledError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    SegmentExistsError,
    StorageError,
    StorageUnavailableError,
    UnsupportedOperationError,
)
from penstock.model.names import SegmentId, segment_name, transaction_segment_name, transient_segment_name
from penstock.model.routing import admin_container_of, container_of
from penstock.model.segments import TableUpdate
from penstock.segmentstore.container.storage.container_storage import INDEX_SUFFIX_BYTES_MAX
from penstock.segmentstore.container.storage.storage_writer import StorageWriter
from penstock.segmentstore.settings import DiskCacheSettings, SegmentStoreSettings
from penstock.segmentstore.statistics_report import store_report
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.durable_log import LogFrame
from penstock.segmentstore.tier1.memory_log import MemoryLog, MemoryLogFactory
from penstock.segmentstore.tier2.chunk_name import CHUNK_SUFFIX_BYTES_MAX, new_chunk_name
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.wire.statistics import StatisticsQuery
from support.containers import QUIET, SMALL_CACHE, FaultyChunks, evict_all, memory_runtime, memory_store, turns, until

SETTINGS = SegmentStoreSettings(
    container_count=4,
    restart_delay_s=0.01,
    restart_delay_s_max=0.01,
    disabled_retry_s=0.02,
    cache=SMALL_CACHE,
    container=QUIET,
)
A = "s/t/0.#epoch.0"
TABLE = "s/_tables/a"


class Stores:
    """Makes stores over one set of logs and chunks."""

    def __init__(self) -> None:
        self.runtime = memory_runtime()
        self.logs = MemoryLogFactory(self.runtime)
        self.chunks = FaultyChunks()
        self.made: list[SegmentStore] = []

    def new(self) -> SegmentStore:
        self.made.append(memory_store(self.logs, self.chunks, self.runtime, SETTINGS))
        return self.made[-1]


@pytest.fixture
async def stores() -> AsyncIterator[Stores]:
    made = Stores()
    yield made
    for store in made.made:
        await store.stop()
    await made.runtime.work.close()


async def eventually(store: SegmentStore) -> None:
    """Wait until all containers run."""
    await until(lambda: store.is_ready)


async def test_what_is_stored_comes_back_in_another_store(stores: Stores) -> None:
    """All containers recover; names reach the container that has them."""
    store = stores.new()
    await store.start()
    names = [f"s/t/{number}.#epoch.0" for number in range(12)]
    for name in names:
        await store.create_segment(name)
        assert await store.append(name, name.encode()) == len(name)
    await store.stop()
    await store.stop()
    store = stores.new()
    await store.start()
    assert len({store.container(name).id for name in names}) > 1
    for name in names:
        assert (await store.read(name, 0, 100)).joined() == name.encode()


async def test_a_failed_container_is_replaced_by_a_new_incarnation(stores: Stores) -> None:
    """SS-7, SS-14, SS-261: the others serve on; its segments answer 'not here' until the next incarnation runs."""
    store = stores.new()
    await store.start()
    await store.create_segment(A)
    await store.append(A, b"acked")
    failed = store.container(A)
    names = [f"s/{number}/0.#epoch.0" for number in range(20)]
    others = [name for name in names if store.container(name) is not failed]
    for name in others:
        await store.create_segment(name)
    stores.logs.fail_append(failed.id)
    with pytest.raises(OutcomeUnknownError):
        await store.append(A, b"lost")
    with pytest.raises(ContainerNotFoundError):
        await store.append(A, b"too early")
    assert len(store.containers) == 3
    assert not store.is_ready
    assert list(store.failures) == [failed.id]
    assert others
    for name in others:
        await store.append(name, b"served")
    await eventually(store)
    assert store.container(A) is not failed
    assert store.is_ready
    assert not store.failures  # type: ignore[unreachable]
    assert (await store.read(A, 0, 100)).joined() == b"acked"


async def test_the_end_of_the_storage_writer_ends_the_container(stores: Stores) -> None:
    """SS-14: a bug in the storage writer is the failure of its container, which is restarted."""
    store = stores.new()
    await store.start()
    await store.create_segment(A)
    failed = store.container(A)

    def broken() -> Iterator[None]:
        raise ZeroDivisionError

    failed.writer._scan_in_steps = broken  # type: ignore[method-assign]  # A bug, planted.
    failed.writer._wake.set()
    await turns(10)
    assert isinstance(store.failures[failed.id], ZeroDivisionError)
    await eventually(store)


async def test_a_deletion_that_left_an_index_behind_is_not_told_as_if_nothing_was_done(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a seed: the caller was redirected, retried there, and got "no such segment"."""
    store = stores.new()
    await store.start()
    await store.create_segment(A)
    indexes = store.container(A).offset_indexes
    monkeypatch.setattr(indexes, "may_have_one", lambda segment: True)

    async def fails(name: str) -> None:
        raise StorageUnavailableError("as the test says")

    monkeypatch.setattr(indexes, "deleted", fails)
    with pytest.raises(OutcomeUnknownError, match="is deleted, its index may not be"):
        await store.delete_segment(A)
    monkeypatch.undo()
    with pytest.raises(NoSuchSegmentError):
        await store.delete_segment(A)


async def test_the_scans_of_several_containers_do_not_fall_into_one_turn(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What wakes one storage writer wakes them all as a rule, and a step of a scan takes a millisecond or two."""
    store = stores.new()
    await store.start()
    turn, steps = [0], list[int]()

    def scan(self: StorageWriter) -> Iterator[None]:
        for _ in range(5):
            steps.append(turn[0])
            yield

    async def count_turns() -> None:
        while True:
            await asyncio.sleep(0)
            turn[0] += 1

    monkeypatch.setattr(StorageWriter, "_scan_in_steps", scan)
    counting = asyncio.ensure_future(count_turns())
    for container in store.containers:
        container.writer._wake.set()
    await until(lambda: len(steps) >= 5 * len(store.containers))
    counting.cancel()
    assert len(store.containers) > 1
    assert len(set(steps)) == len(steps)


async def check_told(store: SegmentStore, container_id: int, others: list[str]) -> None:
    """Check that a store answers that one container's log is disabled, and that the other containers serve."""
    assert list(store.failures) == [container_id]
    assert isinstance(store.failures[container_id], LogDisabledError)
    told = store_report(store, StatisticsQuery()).failures
    assert list(told) == [container_id]
    assert "is disabled: find out why, then enable it" in told[container_id]
    assert not store.is_ready
    assert others
    for name in others:
        await store.append(name, b"served")


def others_of(store: SegmentStore, container_id: int) -> list[str]:
    names = [f"s/{number}/0.#epoch.0" for number in range(20)]
    return [name for name in names if store.container(name).id != container_id]


async def test_a_disabled_log_keeps_one_container_offline_until_it_is_enabled(stores: Stores) -> None:
    """SS-12, SS-262: the store starts without it, says so, and takes it up by itself once the log is enabled.

    It says so for as long as the log is disabled, while it tries it again, too; and not any longer.
    """
    store = stores.new()
    await store.start()
    await store.create_segment(A)
    container_id = store.container(A).id
    others = others_of(store, container_id)
    for name in others:
        await store.create_segment(name)
    await store.stop()
    stores.logs._get(container_id).is_enabled = False
    tried_s: list[float] = []
    was_told: list[bool] = []
    create = stores.logs.create

    def noted(number: int) -> MemoryLog:
        if number == container_id:
            tried_s.append(asyncio.get_running_loop().time())
            was_told.append(container_id in store.failures)
        return create(number)

    stores.logs.create = noted  # type: ignore[assignment, method-assign]
    store = stores.new()
    await store.start()
    async with asyncio.timeout(60):
        while len(tried_s) < 4:
            await check_told(store, container_id, others)
            with pytest.raises(ContainerNotFoundError, match="is disabled"):
                await store.segment_info(A)
            await asyncio.sleep(0)
    assert all(was_told[1:])
    # Retries are slow: an operator has to resolve it.
    assert tried_s[-1] - tried_s[0] > 2 * SETTINGS.disabled_retry_s
    await stores.logs.enable(container_id)
    await eventually(store)
    assert store.is_ready
    assert store.failures == {}
    assert store_report(store, StatisticsQuery()).failures == {}
    assert (await store.segment_info(A)).length == 0


async def test_a_log_that_is_disabled_under_its_container_takes_it_offline(stores: Stores) -> None:
    """SS-262: what it could not log ends it; its next lives find the log disabled, and the store says so."""
    store = stores.new()
    await store.start()
    await store.create_segment(A)
    container_id = store.container(A).id
    others = others_of(store, container_id)
    for name in others:
        await store.create_segment(name)
    stores.logs._get(container_id).is_enabled = False
    with pytest.raises(OutcomeUnknownError):
        await store.append(A, b"lost")
    assert list(store.failures) == [container_id]
    assert not store.is_ready
    await until(lambda: isinstance(store.failures[container_id], LogDisabledError))
    await check_told(store, container_id, others)
    with pytest.raises(ContainerNotFoundError, match="is disabled"):
        await store.append(A, b"refused")
    await stores.logs.enable(container_id)
    await eventually(store)
    assert store.failures == {}
    assert (await store.segment_info(A)).length == 0


async def test_a_store_with_an_offline_container_stops_at_once(stores: Stores) -> None:
    """SS-13: stopping does not wait for the container that could not start."""
    store = stores.new()
    stores.logs._get(2).is_enabled = False
    await store.start()
    async with asyncio.timeout(60):
        await store.stop()


async def test_a_corrupt_log_is_disabled_and_the_others_serve(stores: Stores) -> None:
    """SS-58: the container with the damage stays offline, its log is evidence."""
    store = stores.new()
    await store.start()
    await store.stop()
    stored = stores.logs._get(1)
    stored.frames[0] = LogFrame(stored.frames[0].address, b"\0 damage")
    store = stores.new()
    await store.start()
    # It may have been tried again since: then the log is disabled already, and the failure repeats the cause.
    assert isinstance(store.failures[1], (CorruptionError, LogDisabledError))
    assert "corrupt data in log of container 1" in str(store.failures[1])
    assert not stored.is_enabled
    assert len(store.containers) == 3


async def test_a_store_that_cannot_start_says_why_and_holds_nothing(stores: Stores) -> None:
    """SS-62, SS-7: an error that is not corruption fails the start, leaves the log enabled, and a retry succeeds."""
    store = stores.new()
    stores.logs.fail_append(3)
    with pytest.raises(StorageError, match="injected"):
        await store.start()
    assert store.containers == []
    assert stores.logs._get(3).is_enabled
    store = stores.new()
    await store.start()
    assert store.is_ready


async def test_a_stop_during_the_start_leaves_nothing_running(stores: Stores) -> None:
    """A container that comes up after the stop is stopped at once."""
    store = stores.new()
    stores.logs.hold_appends(0)
    starting = asyncio.ensure_future(store.start())
    await turns(20)
    await store.stop()
    stores.logs.release_appends(0)
    with pytest.raises(ContainerOfflineError):
        await starting
    assert store.containers == []
    assert store.cache.used_bytes == 0


async def test_segments_of_the_container_itself_are_out_of_reach(stores: Stores) -> None:
    """Clients cannot seal, truncate, append to, merge, delete or write to them, nor create segments of such names."""
    store = stores.new()
    await store.start()
    own = "_system/containers/storage_metadata_1"
    assert store.containers[1].segment(own).is_table
    for call in (
        store.seal_segment(own),
        store.truncate_segment(own, 0),
        store.append(own, b"x"),
        store.delete_segment(own),
        store.delete_table(own),
        store.update_policy(own, scale_type=0, target_rate=0),
        store.update_attribute(own, bytes(16), value=1, expected=0),
        store.table_put(own, [TableUpdate(b"k", b"v")]),
        store.table_remove(own, []),
        store.create_segment("_system/containers/metadata_77"),
    ):
        with pytest.raises(InvalidArgumentError):
            await call


async def test_the_bytes_of_a_table_cannot_be_written_or_cut_from_outside(stores: Stores) -> None:
    """Appending to a table, or truncating it, would ruin its index."""
    store = stores.new()
    await store.start()
    await store.create_table(TABLE)
    with pytest.raises(UnsupportedOperationError):
        await store.append(TABLE, b"garbage")
    with pytest.raises(UnsupportedOperationError):
        await store.truncate_segment(TABLE, 0)


@pytest.mark.parametrize("name", ["", "/", "a//b", "a/../b", "a\nb", "ä", "x" * 300, "a\\b", "/".join(["ab"] * 500)])
async def test_names_that_could_never_be_stored_are_refused(stores: Stores, name: str) -> None:
    """A name becomes chunk names and wire text."""
    store = stores.new()
    await store.start()
    with pytest.raises(InvalidArgumentError):
        await store.create_segment(name)


@pytest.mark.parametrize("part_bytes_max", [143, 255])
async def test_a_name_whose_chunks_could_not_be_stored_is_refused_at_its_creation(
    stores: Stores, part_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks, and those of the segment's indexes, add to its last part; what the storage takes is its own say.

    The longest possible one is created and flushed, with its attribute index, at the latest epoch and offset.
    """
    monkeypatch.setattr(MemoryChunkStorage, "name_part_bytes_max", part_bytes_max)
    store = stores.new()
    await store.start()
    last_bytes_max = part_bytes_max - INDEX_SUFFIX_BYTES_MAX - CHUNK_SUFFIX_BYTES_MAX
    longest = f"scope/{'d' * part_bytes_max}/{'x' * last_bytes_max}"
    await store.create_segment(longest)
    index = f"{longest}$attributes-{(1 << 64) - 1:x}"
    chunk = new_chunk_name(index, epoch=(1 << 64) - 1, offset=(1 << 63) - 1, rng=random.Random(1))
    assert len(chunk.rpartition("/")[2]) == part_bytes_max
    for name in (f"{longest}x", f"scope/{'d' * (part_bytes_max + 1)}/0", "s/t/" + "x" * 230):
        with pytest.raises(InvalidArgumentError):
            await store.create_segment(name)
        with pytest.raises(InvalidArgumentError):
            await store.create_table(name)
        with pytest.raises(NoSuchSegmentError):
            await store.segment_info(name)


async def test_every_name_that_streams_and_the_controller_make_can_be_stored(stores: Stores) -> None:
    """With the longest scopes and streams, the highest segment and epoch, as transaction and large event."""
    store = stores.new()
    await store.start()
    scope, stream = "s" * 255, "t" * 255
    segment = segment_name(scope, stream, SegmentId((1 << 63) - 1))
    for name in (
        segment,
        transaction_segment_name(segment, -1, -1),
        transient_segment_name(segment, bytes(16), bytes(16)),
    ):
        await store.create_segment(name)
    await store.create_table(layout.transactions_in_epoch(scope, stream, "0" * 36, (1 << 31) - 1))
    await store.create_table(layout.completed_batch((1 << 63) - 1))


async def test_variants_of_one_segment_live_in_one_container(stores: Stores) -> None:
    """SS-1, SS-2: transaction, transient and epoch suffixes do not move a name."""
    store = stores.new()
    await store.start()
    for number in range(250):
        base = f"s/t/{number}"
        ids = {
            store.container(name).id
            for name in (
                base,
                f"{base}.#epoch.0",
                f"{base}.#epoch.7",
                f"{base}.#epoch.0#transaction.{'0' * 32}",
                f"{base}.#epoch.0#transient.{'0' * 32}.{'1' * 32}",
            )
        }
        assert len(ids) == 1


async def test_a_query_after_a_failed_one_is_answered_afresh(stores: Stores) -> None:
    """SS-19, SS-27: missing, created, there; deleted, missing."""
    store = stores.new()
    await store.start()
    with pytest.raises(NoSuchSegmentError):
        await store.segment_info(A)
    await store.create_segment(A)
    with pytest.raises(SegmentExistsError):
        await store.create_segment(A)
    assert (await store.segment_info(A)).length == 0
    await store.delete_segment(A)
    with pytest.raises(NoSuchSegmentError):
        await store.delete_segment(A)


async def test_many_appends_right_after_the_creation_keep_their_order(stores: Stores) -> None:
    """SS-17: 50 callers at once."""
    store = stores.new()
    await store.start()
    await store.create_segment(A)
    await asyncio.gather(*(store.append(A, b"%02d" % number) for number in range(50)))
    assert (await store.read(A, 0, 1000)).joined() == b"".join(b"%02d" % number for number in range(50))


async def test_the_containers_own_tables_are_found_by_number_by_administrators_alone(stores: Stores) -> None:
    """SS-3: normal routing hashes their names like any other."""
    store = stores.new()
    await store.start()
    for container in store.containers:
        for kind in ("metadata", "storage_metadata"):
            own = f"_system/containers/{kind}_{container.id}"
            assert container.segment(own).is_system
            assert admin_container_of(own, 4) == container.id
    assert admin_container_of("_system/containers/storage_metadata_7", 8) == 7
    assert admin_container_of("_system/containers/event_processor_gc.queue_2", 4) == 2
    assert admin_container_of(A, 4) == admin_container_of(f"{A}$attributes-12", 4) == container_of(A, 4)
    names = [f"_system/containers/storage_metadata_{number}" for number in range(8)]
    assert [container_of(name, 8) for name in names] != list(range(8))


async def test_evicted_bytes_are_read_again_from_the_disk_cache(tmp_path: Path) -> None:
    """With a second level of the cache, what left memory is found on the local disk; long-term storage is not asked."""
    runtime = memory_runtime()
    chunks = FaultyChunks()
    settings = SegmentStoreSettings(
        container_count=1,
        cache=SMALL_CACHE,
        container=replace(QUIET, read_ahead_bytes=64 * 1024),
        disk_cache=DiskCacheSettings(bytes_max=1 << 20, slot_bytes=64 * 1024, piece_bytes_min=1),
    )
    store = SegmentStore(
        logs=MemoryLogFactory(runtime), chunks=chunks, runtime=runtime, settings=settings, cache_directory=str(tmp_path)
    )
    await store.start()
    data = bytes(range(256)) * 400
    await store.create_segment(A)
    await store.append(A, data)
    (container,) = store.containers
    await container.flush()
    evict_all(container)
    assert (await store.read(A, 0, 50_000)).joined() == data[:50_000]
    assert store.disk_cache is not None
    await store.disk_cache.settle()
    evict_all(container)
    await store.disk_cache.settle()
    calls = chunks.calls["read"]
    assert (await store.read(A, 100, 40_000)).joined() == data[100:40_100]
    assert chunks.calls["read"] == calls
    assert store.disk_cache.statistics.hit_count
    await store.stop()
    assert list(tmp_path.iterdir()) == []
    await runtime.work.close()
