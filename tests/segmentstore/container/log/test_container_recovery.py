"""What containers make of crashes at chosen moments. SS-n: docs/spec/segment-store.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from penstock.model.errors import (
    ContainerOfflineError,
    CorruptionError,
    LogClosedError,
    LogDisabledError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    SegmentSealedError,
    StorageError,
)
from penstock.model.segments import NO_VALUE, Buffer, TableUpdate
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.container import ContainerStatus, SegmentContainer
from penstock.segmentstore.container.log.frames import RecordReader
from penstock.segmentstore.container.log.operations import Checkpoint, Forget, Truncate, decode_operation
from penstock.segmentstore.container.log.pipeline import completer
from penstock.segmentstore.container.segment import SegmentFlags
from penstock.segmentstore.container_start import ContainerStart
from penstock.segmentstore.tier1.durable_log import LogAddress, LogFrame
from penstock.segmentstore.tier2.chunked_storage import ChunkedStorage
from penstock.segmentstore.tier2.wrapped import WrappedChunkStorage
from support.containers import QUIET, SMALL_CACHE, Incarnations, append, evict_all, pause_writer, read_all, turns

A, B, C = "s/t/0.#epoch.0", "s/t/1.#epoch.0", "s/t/2.#epoch.0"
TABLE = "s/_tables/a"


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    made = Incarnations()
    yield made
    await made.close()


def logged(lives: Incarnations) -> list[object]:
    """Return the operations in the log."""
    reader = RecordReader()
    return [decode_operation(record)[1] for frame in lives.frames() for record in reader.feed(frame)]


async def checkpoint(container: SegmentContainer) -> None:
    """Write a checkpoint, and truncate the log to it if it allows that."""
    container.checkpoints.write()
    await container.pipeline.barrier()
    container.checkpoints.truncate_log()
    container.checkpoints.write_if_due(is_idle=False)
    while container.checkpoints._is_truncating:  # noqa: ASYNC110  # There is no event for it.
        await asyncio.sleep(0)


async def test_one_append_survives_a_restart(lives: Incarnations) -> None:
    """SS-37, SS-96: data, length and attribute are equal after a crash; reading the cache asks no storage."""
    container = await lives.start()
    segment = await container.create(A)
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    container.acceptor.append(
        segment, AppendRequest(b"abc", writer_id=b"w" * 16, event_number=7, first_event_number=7), completer(future)
    )
    await future
    container = await lives.restart(container)
    assert await read_all(container, A) == b"abc"
    assert await container.get_attribute(A, b"w" * 16) == 7
    assert (await container.info(A)).length == 3
    assert lives.chunks.calls["read"] == 0


async def test_a_writer_whose_id_is_all_zeros_keeps_its_event_number(lives: Incarnations) -> None:
    """An append without a writer is recognised by its missing event number, not by the writer's id."""
    container = await lives.start()
    segment = await container.create(A)
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    container.acceptor.append(
        segment, AppendRequest(b"abc", writer_id=bytes(16), event_number=7, first_event_number=7), completer(future)
    )
    await future
    await append(container, A, b"no writer")
    container = await lives.restart(container)
    assert await container.get_attribute(A, bytes(16)) == 7


async def test_many_appends_share_frames(lives: Incarnations) -> None:
    """SS-38: 10 000 small appends at once take far fewer frames, and all are there after a crash."""
    container = await lives.start()
    segment = await container.create(A)
    before = len(lives.frames())
    futures = [asyncio.get_running_loop().create_future() for _ in range(10_000)]
    for number, future in enumerate(futures):
        container.acceptor.append(segment, AppendRequest(b"%04d" % number), completer(future))
    await asyncio.gather(*futures)
    assert len(lives.frames()) - before < 20
    container = await lives.restart(container)
    assert await read_all(container, A) == b"".join(b"%04d" % number for number in range(10_000))


async def test_an_append_longer_than_three_frames_survives(lives: Incarnations) -> None:
    """SS-39: a record that spans frames comes back whole."""
    container = await lives.start()
    await container.create(A)
    data = bytes(range(256)) * 1000
    await append(container, A, data)
    container = await lives.restart(container)
    assert await read_all(container, A) == data


async def test_validation_includes_queued_operations(lives: Incarnations) -> None:
    """SS-40, SS-41, SS-43: an append behind a queued seal is refused, one at the queued length is taken."""
    container = await lives.start()
    segment = await container.create(A)
    lives.logs.hold_appends(0)
    for _ in range(5):
        container.acceptor.append(segment, AppendRequest(b"12"), lambda _: None)
    container.acceptor.append(segment, AppendRequest(b"34", expected_offset=10), lambda _: None)
    sealing = asyncio.ensure_future(container.seal(A))
    await turns(2)
    with pytest.raises(SegmentSealedError):
        container.acceptor.append(segment, AppendRequest(b"x"), lambda _: None)
    again = asyncio.ensure_future(container.seal(A))
    await turns(5)
    assert not sealing.done()
    assert not again.done()
    lives.logs.release_appends(0)
    await sealing
    with pytest.raises(SegmentSealedError):
        await again


@pytest.mark.parametrize("has_effect", [False, True])
async def test_a_failed_log_write_ends_the_container_and_its_outcome_is_unknown(
    lives: Incarnations, has_effect: bool
) -> None:
    """SS-49, SS-50: what the log had is unknown, later calls are refused; the next life has the acked prefix."""
    container = await lives.start()
    segment = await container.create(A)
    await append(container, A, b"acked")
    lives.logs.fail_append(0, has_effect=has_effect)
    with pytest.raises(OutcomeUnknownError):
        await append(container, A, b"maybe")
    assert container.status is ContainerStatus.FAILED
    assert isinstance(lives.failures[0], StorageError)
    with pytest.raises(ContainerOfflineError):
        container.acceptor.append(segment, AppendRequest(b"no"), lambda _: None)
    container = await lives.restart(container)
    assert await read_all(container, A) == b"acked" + b"maybe" * has_effect


async def test_a_record_cut_off_by_a_crash_is_dropped_twice_in_a_row(lives: Incarnations) -> None:
    """SS-55, SS-56, SS-57: a record whose end never landed does not disturb later lives that write after it."""
    container = await lives.start()
    await container.create(A)
    await append(container, A, b"first")
    for _ in range(2):
        lives.logs.fail_append(0, nth=2)
        with pytest.raises((OutcomeUnknownError, ContainerOfflineError)):
            await append(container, A, bytes(200_000))
        assert str(lives.failures[-1]) == "injected failure of an append"
        container = await lives.restart(container)
        assert await read_all(container, A) == b"first"
    await append(container, A, b" second")
    container = await lives.restart(container)
    assert await read_all(container, A) == b"first second"


async def test_a_log_with_a_hole_is_corrupt_and_gets_disabled(lives: Incarnations) -> None:
    """SS-58: a record that continues without having begun stops the start; the next open says disabled."""
    container = await lives.start()
    await container.create(A)
    await append(container, A, bytes(200_000))
    await lives.crash(container)
    stored = lives.logs._get(0)
    del stored.frames[-4]
    with pytest.raises(CorruptionError):
        await lives.start()
    assert lives.cache.used_bytes == 0
    with pytest.raises(LogDisabledError):
        await lives.start()
    lives.live.clear()


async def test_swapped_frames_are_corruption(lives: Incarnations) -> None:
    """SS-61: sequence numbers that do not grow are corruption."""
    container = await lives.start()
    await container.create(A)
    for text in (b"one", b"two"):
        await append(container, A, text)
    await lives.crash(container)
    frames = lives.logs._get(0).frames
    last, other = frames[-1], frames[-2]
    frames[-2:] = [LogFrame(other.address, last.data), LogFrame(last.address, other.data)]
    with pytest.raises(CorruptionError):
        await lives.start()
    lives.live.clear()


async def test_an_empty_log_gets_a_checkpoint_first(lives: Incarnations) -> None:
    """SS-63: the first record of a new log is a checkpoint."""
    await lives.start()
    assert isinstance(logged(lives)[0], Checkpoint)


async def test_a_segment_removed_before_a_checkpoint_does_not_return(lives: Incarnations) -> None:
    """A deleted segment is freed; a checkpoint is queued right behind its last record; a new one takes the name.

    If the checkpoint still listed the old one, the recovery from it would free the new one's bytes.
    """
    container = await lives.start()
    await pause_writer(container)
    await container.create(A)
    await append(container, A, b"old")
    await container.flush()
    await container.delete(A)
    lives.logs.hold_appends(0)
    (gone,) = container.state.gone.values()
    freeing = asyncio.ensure_future(container.writer._flusher.free(gone))
    await turns(50)
    for _ in range(10):  # Storage's own records come before the one that forgets the segment.
        lives.logs.release_appends(0)
        await asyncio.sleep(0)
        lives.logs.hold_appends(0)
        await turns(10)
        if container.state.gone and not container.state.metadata.by_id.keys() & container.state.gone.keys():
            break
    container.checkpoints.write()
    lives.logs.release_appends(0)
    await freeing
    await container.create(A)
    await append(container, A, b"new bytes")
    await container.flush()
    container.checkpoints.truncate_log()
    container.checkpoints.write_if_due(is_idle=False)
    await turns(20)
    assert not any(isinstance(operation, Forget) for operation in logged(lives))
    container = await lives.restart(container)
    await container.flush()
    evict_all(container)
    assert await read_all(container, A) == b"new bytes"


async def test_the_log_is_truncated_while_something_is_always_unflushed() -> None:
    """Checkpoints come faster than a slow segment is flushed; each stays usable until it is not needed.

    If a newer checkpoint replaced an older one before that could be used, the log would grow without bound.
    """
    lives = Incarnations(replace(QUIET, checkpoint_log_bytes=10_000))
    container = await lives.start()
    await pause_writer(container)
    for name in (A, B):
        await container.create(name)
    for turn in range(20):
        name = (A, B)[turn % 2]
        await append(container, name, bytes(6000))
        if turn % 3 == 2:
            await container.writer.flush(container.segment(A))
            await container.writer.flush(container.segment(B))
            await container.writer.flush(container.segment("_system/containers/storage_metadata_0"))
            await append(container, A, b"slow")  # Unflushed before any checkpoint of the next two turns.
        container.checkpoints.truncate_log()
        container.checkpoints.write_if_due(is_idle=False)
        await turns(5)
    assert sum(map(len, lives.frames())) < 60_000
    container = await lives.restart(container)
    assert (await container.info(B)).length == 60_000
    await lives.close()


async def test_a_large_checkpoint_does_not_call_for_another() -> None:
    """A checkpoint longer than the idle threshold is not itself a reason to write one, at every check."""
    lives = Incarnations(replace(QUIET, checkpoint_log_bytes_idle=1000))
    container = await lives.start()
    await pause_writer(container)
    await asyncio.gather(*(container.create(f"s/t/{number}.#epoch.0") for number in range(100)))
    for _ in range(10):
        container.checkpoints.truncate_log()
        container.checkpoints.write_if_due(is_idle=True)
        await container.pipeline.barrier()
    assert sum(isinstance(operation, Checkpoint) for operation in logged(lives)) <= 2
    await lives.close()


@pytest.mark.parametrize("part_values", [8192, 2])
async def test_a_long_log_after_a_crash_is_truncated_as_storage_accepts_it(part_values: int) -> None:
    """At the checkpoints that recovery came by, also those of many parts; not only once storage has all of it.

    On a disk that log and storage share there may be no room for all of it twice.
    """
    settings = replace(
        QUIET,
        checkpoint_log_bytes=10_000,
        flush_bytes=3000,
        flush_write_bytes_max=6000,
        checkpoint_part_values=part_values,
    )
    lives = Incarnations(settings)
    container = await lives.start()
    await pause_writer(container)
    for name in (A, B):
        await container.create(name)
    for number in range(30):
        await append(container, (A, B)[number % 2], bytes([number]) * 3000)
    container = await lives.restart(container)
    await pause_writer(container)
    whole = sum(map(len, lives.frames()))
    assert whole > 90_000
    flusher = container.writer._flusher
    for name in (A, B):
        segment = container.segment(name)
        await flusher._open(segment)
        await flusher._write(segment, 30_000)
        assert segment.storage_length == 30_000
    await container.writer.flush(container.segment("_system/containers/storage_metadata_0"))
    container.checkpoints.truncate_log()
    await turns(20)
    assert sum(map(len, lives.frames())) < whole // 2
    container = await lives.restart(container)
    for index, name in enumerate((A, B)):
        assert await read_all(container, name) == b"".join(bytes([number]) * 3000 for number in range(index, 30, 2))
    await lives.close()


async def test_checkpoints_are_at_most_half_of_the_log() -> None:
    """However many segments there are, and however little log calls for a checkpoint by the settings."""
    lives = Incarnations(replace(QUIET, checkpoint_log_bytes=1000, checkpoint_frames=1))
    container = await lives.start()
    await pause_writer(container)
    await asyncio.gather(*(container.create(f"s/t/{number}.#epoch.0") for number in range(100)))
    await container.pipeline.barrier()
    appended = 0
    before = container.pipeline.logged_bytes
    while appended < 200_000:
        await append(container, "s/t/0.#epoch.0", bytes(500))
        appended += 500
    await turns(20)
    # Each append is logged with some forty bytes of its own.
    assert 3 * appended // 2 < container.pipeline.logged_bytes - before < 5 * appended // 2
    await lives.close()


async def test_replayed_bytes_count_for_the_next_checkpoint() -> None:
    """A container that does nothing after its restarts still gets its log cut."""
    lives = Incarnations(replace(QUIET, checkpoint_log_bytes_idle=10_000))
    container = await lives.start()
    await container.create(A)
    await append(container, A, bytes(50_000))
    container = await lives.restart(container)
    await container.flush()
    for _ in range(3):
        container.checkpoints.truncate_log()
        container.checkpoints.write_if_due(is_idle=True)
        await container.pipeline.barrier()
        await turns(5)
        await container.flush()
    assert sum(map(len, lives.frames())) < 10_000
    container = await lives.restart(container)
    assert await read_all(container, A) == bytes(50_000)
    await lives.close()


async def test_a_truncation_reaches_storage_although_the_log_was_cut(lives: Incarnations) -> None:
    """The log is not cut before storage has truncated, so the chunks are freed in the next life at the latest."""
    container = await lives.start(checkpoint_log_bytes=1 << 40)
    await pause_writer(container)
    await container.create(A)
    await append(container, A, bytes(1000))
    await container.flush()
    await container.truncate(A, 1000)
    await checkpoint(container)
    container = await lives.restart(container)
    await container.flush()
    assert [info.name for info in await lives.chunks.list("s/")] == []
    assert (await container.info(A)).start_offset == 1000


async def test_idle_segments_need_no_storage_after_the_log_was_cut(lives: Incarnations) -> None:
    """SS-69: a crash right behind the truncation of the log; lengths and bytes are as before."""
    container = await lives.start()
    await container.create(A)
    await append(container, A, b"stored")
    await container.flush()
    await checkpoint(container)
    assert isinstance(logged(lives)[0], Checkpoint)
    container = await lives.restart(container)
    assert container.recovered is not None
    assert (await container.info(A)).length == 6
    assert container.segment(A).storage_length == 6
    assert await read_all(container, A) == b"stored"


async def merged_chain(container: SegmentContainer) -> bytes:
    """Merge C into B and that into A, as the large event of a transaction is."""
    for name, text in ((A, b"aaaa"), (B, b"bb"), (C, b"cccccc")):
        await container.create(name)
        await append(container, name, text)
    await container.merges.merge(B, C)
    await append(container, B, b"BBB")
    await container.merges.merge(A, B)
    await append(container, A, b"end")
    return b"aaaabbccccccBBBend"


async def test_a_merge_of_a_merge_is_read_through_both(lives: Incarnations) -> None:
    """SS-118, SS-119: before storage merged, across every seam; after it, from storage; after a crash in each state."""
    container = await lives.start()
    await pause_writer(container)
    expected = await merged_chain(container)
    segment = container.segment(A)
    for start in range(len(expected)):
        data = await container.reader.read(segment, start, 100)
        assert data.joined() == expected[start:]
    container = await lives.restart(container)
    assert await read_all(container, A) == expected
    await container.flush()
    evict_all(container)
    assert await read_all(container, A) == expected
    assert not container.state.gone
    container = await lives.restart(container)
    assert await read_all(container, A) == expected


async def test_a_merge_that_storage_had_done_before_the_crash_is_read_at_once(lives: Incarnations) -> None:
    """SS-120, SS-122: the source's bytes were in storage only; it is merged there, and the container dies then."""
    container = await lives.start()
    await pause_writer(container)
    for name, text in ((A, b"aaaa"), (B, b"bb")):
        await container.create(name)
        await append(container, name, text)
    await container.flush()
    await checkpoint(container)
    evict_all(container)
    await container.merges.merge(A, B)
    segment = container.segment(A)
    assert await read_all(container, A) == b"aaaabb"
    source = container.state.gone[container.state.metadata.merges.copy().popitem()[0]]
    await container.writer._flusher._flush(source, is_for_merge=True)
    await container.storage.of(segment).concat(A, 4, B)
    await lives.crash(container)
    container = await lives.start()
    await pause_writer(container)
    assert await asyncio.wait_for(read_all(container, A), 60) == b"aaaabb"
    await container.flush()
    assert await read_all(container, A) == b"aaaabb"


async def test_a_failed_merge_that_took_effect_is_detected(lives: Incarnations) -> None:
    """A read that meets the gap between storage's merge and the writer's knowing of it waits; it is not told lies."""
    container = await lives.start(writer_interval_s=0.01)
    await pause_writer(container)
    for name, text in ((A, b"aaaa"), (B, b"bb")):
        await container.create(name)
        await append(container, name, text)
    await container.flush()
    evict_all(container)
    await container.merges.merge(A, B)
    source = next(iter(container.state.gone.values()))
    await container.writer._flusher._flush(source, is_for_merge=True)
    await container.storage.of(container.segment(A)).concat(A, 4, B)
    reading = asyncio.ensure_future(container.reader.read(container.segment(A), 4, 10))
    await asyncio.sleep(0.03)
    assert not reading.done()
    with pytest.raises(NoSuchSegmentError):
        await container.flush()
    await container.flush()
    assert (await reading).joined() == b"bb"


async def test_deleting_a_target_deletes_its_waiting_sources(lives: Incarnations) -> None:
    """A chain of merges that storage never did goes with its target: no chunk, no memory, no name is left."""
    container = await lives.start()
    await pause_writer(container)
    for name in (A, B, C):
        await container.create(name)
        await append(container, name, bytes(100))
    await container.flush()
    await container.merges.merge(B, C)
    await container.merges.merge(A, B)
    await container.delete(A)
    container = await lives.restart(container)
    await container.flush()
    assert not container.state.gone
    assert not container.state.metadata.merges
    assert [info.name for info in await lives.chunks.list("s/")] == []


async def test_a_name_may_be_used_again_before_its_storage_is_free(lives: Incarnations) -> None:
    """SS-25: the old one's storage cannot be deleted for a while; nothing of it shows in the new one."""
    container = await lives.start()
    await pause_writer(container)
    for text in (b"old", b"newer", b"the newest"):
        await container.create(A)
        await append(container, A, text)
        lives.chunks.fail("delete", has_effect=False)
        await container.flush()
        container = await lives.restart(container)
        await pause_writer(container)
        assert await read_all(container, A) == text
        await container.delete(A)
        with pytest.raises(NoSuchSegmentError):
            await container.delete(A)
    await container.flush()


async def test_compaction_does_not_truncate_a_table_that_was_deleted_meanwhile(lives: Incarnations) -> None:
    """A truncation logged behind the end of its segment would make the log unreadable."""
    container = await lives.start(table_compact_bytes=1 << 40)
    table = await container.create(TABLE, flags=SegmentFlags.TABLE)
    for turn in range(20):
        await container.tables.put(table, [TableUpdate(b"k", b"%d" % turn * 100)], -1)
    await container.flush()
    evict_all(container)
    lives.chunks.hold("read")
    compacting = asyncio.ensure_future(container.tables.compact(table))
    await turns(20)
    await container.delete(TABLE)
    lives.chunks.release("read")
    await asyncio.gather(compacting, return_exceptions=True)
    await container.flush()
    assert not any(isinstance(operation, Truncate) for operation in logged(lives))
    container = await lives.restart(container)
    assert container.status is ContainerStatus.RUNNING


async def test_stopping_ends_every_wait(lives: Incarnations) -> None:
    """SS-72, SS-16, SS-100, SS-125: parked and storage reads and 1 000 appends each end; the cache is empty."""
    container = await lives.start()
    for name in (A, B):
        await container.create(name)
    await append(container, B, b"stored")
    await container.flush()
    evict_all(container)
    lives.chunks.hold("read")
    segment = container.segment(A)
    waiting = [
        asyncio.ensure_future(container.reader.wait(segment, 1 << 40)),
        *(asyncio.ensure_future(container.reader.read(container.segment(B), at, 10)) for at in (3, 1, 0)),
    ]
    await turns(5)
    futures = [asyncio.get_running_loop().create_future() for _ in range(1000)]
    for future in futures:
        container.acceptor.append(segment, AppendRequest(b"12345"), completer(future))
    await lives.stop(container)
    for error in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(error, ContainerOfflineError)
    assert all(future.done() for future in futures)
    assert lives.cache.used_bytes == 0
    with pytest.raises(ContainerOfflineError):
        await asyncio.wait_for(container.reader.wait(segment, 1 << 40), 60)
    lives.chunks.release("read")
    acked = sum(future.exception() is None for future in futures)
    container = await lives.start()
    assert (await container.info(A)).length >= 5 * acked


async def test_a_silent_log_does_not_delay_a_stop(lives: Incarnations) -> None:
    """The stop is abandoned after its time-out; what was in flight is unknown. Two stops at once do no harm. SS-52."""
    container = await lives.start(stop_timeout_s=0.05)
    await container.create(A)
    lives.logs.hold_appends(0)
    appending = asyncio.ensure_future(append(container, A, b"held"))
    creating = asyncio.ensure_future(container.create(B))
    await turns(3)
    await asyncio.wait_for(asyncio.gather(container.stop(), container.stop()), 60)
    for error in await asyncio.gather(appending, creating, return_exceptions=True):
        assert isinstance(error, OutcomeUnknownError)
    assert lives.cache.used_bytes == 0
    lives.logs.release_appends(0)
    await turns(5)
    lives.live.clear()


async def test_a_pipeline_that_uses_up_its_time_leaves_the_log_time_to_close(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its files and threads would stay for as long as the process lives."""
    container = await lives.start(stop_timeout_s=0.05)
    monkeypatch.setattr(container.pipeline, "close", asyncio.Event().wait)
    await asyncio.wait_for(container.stop(), 60)
    with pytest.raises(LogClosedError):
        container.log.append([b"x"], 1)
    lives.live.clear()


async def test_a_fenced_container_stops_and_acknowledges_nothing(lives: Incarnations) -> None:
    """SS-9, SS-11: another incarnation opens the log; the old one's next append is not acked, its bytes not read."""
    old = await lives.start()
    await old.create(A)
    await append(old, A, b"acked")
    new = await lives.start()
    with pytest.raises(OutcomeUnknownError):
        await append(old, A, b"zombie")
    assert old.status is ContainerStatus.FAILED
    assert await read_all(new, A) == b"acked"
    assert new.log.epoch > old.log.epoch
    newest = await lives.start()
    assert newest.log.epoch > new.log.epoch
    assert await read_all(newest, A) == b"acked"


async def test_a_temporary_failure_of_storage_loses_nothing(lives: Incarnations) -> None:
    """Each failure, before and after the effect, is tried again; bytes are exact after the last."""
    container = await lives.start()
    await pause_writer(container)
    await container.create(A)
    expected = b""
    for turn in range(6):
        expected += b"%d" % turn * 500
        await append(container, A, b"%d" % turn * 500)
        lives.chunks.fail("write", has_effect=turn % 2 == 0)
        with pytest.raises(StorageError):
            await container.flush()
        await container.flush()
        evict_all(container)
        assert await read_all(container, A) == expected


async def test_transient_segments_are_gone_after_a_restart(lives: Incarnations) -> None:
    """SS-31: what a connection of an earlier life left is deleted at the start."""
    container = await lives.start()
    await container.create(A)
    await container.create(f"{A}#transient.{'a' * 32}.{'b' * 32}")
    container = await lives.restart(container)
    assert [segment.name for segment in container.segments() if not segment.is_system] == [A]


async def test_attributes_survive_a_cut_log(lives: Incarnations) -> None:
    """SS-132: attributes are in the checkpoint that the log begins with, and of a merge's target."""
    container = await lives.start()
    await container.create(A)
    assert await container.update_attribute(A, b"i" * 16, value=5, expected=NO_VALUE)
    assert not await container.update_attribute(A, b"i" * 16, value=6, expected=4)
    await container.flush()
    await checkpoint(container)
    container = await lives.restart(container)
    assert await container.get_attribute(A, b"i" * 16) == 5
    assert await container.get_attribute(A, b"j" * 16) == NO_VALUE


async def test_concurrent_reads_of_one_range_read_storage_once(lives: Incarnations) -> None:
    """SS-106, SS-107, SS-108: 50 readers, overlapping ranges, one read; a failure reaches all; the next tries again."""
    container = await lives.start()
    await container.create(A)
    data = bytes(range(256)) * 100
    await append(container, A, data)
    await container.flush()
    evict_all(container)
    segment = container.segment(A)
    lives.chunks.fail("read")
    for attempt in range(2):
        before = lives.chunks.calls["read"]
        reads = [container.reader.read(segment, 10 * number, 5000) for number in range(50)]
        for number, found in enumerate(await asyncio.gather(*reads, return_exceptions=True)):
            if attempt:
                assert not isinstance(found, BaseException)
                assert found.joined() == data[10 * number : 10 * number + 5000]
            else:
                assert isinstance(found, StorageError)
        assert lives.chunks.calls["read"] - before == 1
    assert segment.index.cached_bytes == len(data)


async def test_a_log_longer_than_the_cache_recovers_within_it() -> None:
    """SS-70, SS-126: checkpoints in the log say what storage has; the replay lets that go at each."""
    cache = replace(SMALL_CACHE, bytes_max=100_000)
    lives = Incarnations(replace(QUIET, checkpoint_log_bytes=1 << 40), cache=cache)
    container = await lives.start()

    async def keep_all(address: LogAddress) -> None:
        """Truncate nothing: a log may keep more than it must."""

    container.log.truncate = keep_all  # type: ignore[method-assign]  # To have a long log.
    await container.create(A)
    for _ in range(30):
        await append(container, A, bytes(10_000))
        await container.flush()
        container.checkpoints.write()
    await container.pipeline.barrier()
    assert sum(map(len, lives.frames())) > 300_000
    await lives.crash(container)
    opening = lives.new()
    peak_bytes = 0
    count = lives.cache.count

    def noted(byte_count: int) -> None:
        nonlocal peak_bytes
        count(byte_count)
        peak_bytes = max(peak_bytes, lives.cache.used_bytes)

    lives.cache.count = noted  # type: ignore[method-assign]  # To note the peak.
    container = await lives.open(opening)
    assert peak_bytes < cache.bytes_max
    assert await read_all(container, A) == bytes(300_000)
    await lives.close()


async def test_a_storage_reply_that_is_lost_does_not_end_the_storage_writer(lives: Incarnations) -> None:
    """A chunk write whose outcome is unknown is a passing fault while the log is well: the loop must continue."""

    class LostReply(WrappedChunkStorage):
        call_count = 0

        async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
            length = await super().create_with_content(name, data)
            self.call_count += 1
            if self.call_count == 1:
                raise OutcomeUnknownError("no reply to the write")
            return length

    chunks, inner = LostReply(lives.chunks), lives.chunks
    lives.chunks = chunks  # type: ignore[assignment]  # a wrapper of what is declared
    try:
        container = await lives.start(flush_bytes=1, writer_interval_s=0.01, writer_retry_s=0.01)
        segment = await container.create(A)
        await append(container, A, b"abc")
        async with asyncio.timeout(60):
            while segment.storage_length < 3:  # noqa: ASYNC110  # There is no event for it.
                await asyncio.sleep(0.01)
    finally:
        lives.chunks = inner
    assert chunks.call_count > 1


async def test_a_recovery_looks_up_segments_concurrently_and_reports_progress(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequential look-ups would take as long as all of them together. Each one is reported as progress of the start."""
    container = await lives.start(recovery_lookups_max=8)
    names = [f"s/t/{number}.#epoch.0" for number in range(20)]
    for name in names:
        await container.create(name)
        await append(container, name, b"unflushed")
    await lives.crash(container)
    lookups = most = 0
    info = ChunkedStorage.info

    async def slow_info(self: ChunkedStorage, segment: str) -> object:
        nonlocal lookups, most
        lookups += 1
        most = max(most, lookups)
        await asyncio.sleep(0.001)
        lookups -= 1
        return await info(self, segment)

    monkeypatch.setattr(ChunkedStorage, "info", slow_info)
    steps = ContainerStart()
    opening = lives.new()
    frames = len(lives.frames())
    await lives.open(opening, steps)
    assert most == 8
    assert steps.step_count >= frames + len(names)
