"""A container that starts while long-term storage is slow, hangs or fails: it serves, and flushes nothing meanwhile.

segment-store 8.5, fail-over. The log was truncated at a checkpoint whose storage lengths are older than the truncation.
Look-ups of the records of stored segments are held.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from penstock.model.errors import CorruptionError, StorageError, StorageNotRespondingError
from penstock.segmentstore.container.container import ContainerStatus, SegmentContainer
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container.storage.segment_flusher import SegmentFlusher
from penstock.segmentstore.tier2.chunked_storage import ChunkedStorage, StoredSegment
from support.containers import Incarnations, append, evict_all, pause_writer, read_all, until

A, B = "s/t/0.#epoch.0", "s/t/0.#epoch.0#transaction.1"
STORED, MERGED, LOGGED = bytes(range(100)), b"merged" * 9, b"logged" * 7


@dataclass
class Answers:
    """What becomes of look-ups of users' segments. `forgotten`: of which storage says that it has nothing."""

    come: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None
    forgotten: set[str] = field(default_factory=set)
    count: int = 0


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    incarnations = Incarnations()
    yield incarnations
    await incarnations.close()


@contextmanager
def held_lookups(answers: Answers) -> Iterator[None]:
    info = ChunkedStorage.info

    async def held(self: ChunkedStorage, segment: str) -> StoredSegment | None:
        if segment.startswith("_system/"):
            return await info(self, segment)
        answers.count += 1
        if answers.error is not None:
            raise answers.error
        await answers.come.wait()
        return None if segment in answers.forgotten else await info(self, segment)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChunkedStorage, "info", held)
        yield


async def crash_with_a_cut_log(lives: Incarnations, *, is_source_stored: bool = True) -> None:
    """Leave a segment whose first bytes storage alone has, whose merge it has done, and whose tail is in the log.

    What was merged had chunks of its own if `is_source_stored`; else it was stored with the tail, from memory.
    """
    container = await lives.start(recovery_lookup_s=0.05, writer_retry_s=0.01)
    await container.create(A)
    await append(container, A, STORED)
    container.checkpoints.write()
    await container.pipeline.barrier()
    await container.flush()
    assert container.segment(A).storage_length == len(STORED)
    await pause_writer(container)
    container.checkpoints.truncate_log()
    while container.checkpoints._is_truncating:  # noqa: ASYNC110  # There is no event for it.
        await asyncio.sleep(0)
    await container.create(B)
    await append(container, B, MERGED)
    if is_source_stored:
        await container.writer.flush(container.segment(B))
    await container.seal(B)
    await container.merges.merge_all(A, [B])
    await append(container, A, LOGGED)

    async def die(self: SegmentFlusher, target: Segment, source: Segment) -> None:
        raise StorageError("it dies after the merge, before reporting it")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SegmentFlusher, "_finish_merge", die)
        with pytest.raises(StorageError, match="dies after"):
            await container.writer.flush(container.segment(A))
    await lives.crash(container)


async def names(container: SegmentContainer) -> set[str]:
    return {stored.name async for stored in container.storage._user.list_segments()}


@pytest.mark.parametrize("is_source_stored", [True, False])
@pytest.mark.parametrize("error", [None, StorageNotRespondingError("it does not answer")])
async def test_a_container_serves_before_storage_has_answered(
    lives: Incarnations, error: Exception | None, is_source_stored: bool
) -> None:
    """Appends are taken, what is in memory is read, nothing is flushed; then all is flushed, each byte once."""
    await crash_with_a_cut_log(lives, is_source_stored=is_source_stored)
    answers = Answers(error=error)
    with held_lookups(answers):
        container = await lives.start()
        segment = container.segment(A)
        assert segment.storage_length == len(STORED)  # The log was cut behind these, so storage has them.
        await append(container, A, b"more")
        whole = STORED + MERGED + LOGGED + b"more"
        tail = await container.reader.read(segment, len(STORED + MERGED), 1000)
        assert tail.joined() == LOGGED + b"more"
        flush = asyncio.create_task(container.flush())
        asked = answers.count
        if error is not None:
            await until(lambda: answers.count > asked)
        assert not flush.done()
        answers.error = None
        answers.come.set()
        await flush
    assert segment.storage_length == len(whole)
    evict_all(container)
    assert await read_all(container, segment) == whole
    # The merge was not done a second time, nor its source written again.
    assert A in await names(container)
    assert B not in await names(container)
    assert container.status is ContainerStatus.RUNNING
    assert not lives.failures


async def test_a_start_waits_for_answers_that_arrive(lives: Incarnations) -> None:
    """Lookups in long-term storage that end within the limit are complete before the container serves."""
    await crash_with_a_cut_log(lives)
    answers = Answers()
    answers.come.set()
    with held_lookups(answers):
        container = await lives.start(recovery_lookup_s=60.0)
    assert answers.count
    assert container.segment(A).storage_length == len(STORED + MERGED)


async def test_missing_bytes_are_reported_once_storage_answers(lives: Incarnations) -> None:
    """Before that the log is believed. The segment is damaged, as if its start had waited; others are not."""
    await crash_with_a_cut_log(lives)
    answers = Answers(forgotten={A})
    with held_lookups(answers):
        container = await lives.start()
        other = "s/t/1.#epoch.0"
        await container.create(other)
        await append(container, other, b"other")
        assert container.segment(A).damage is None
        answers.come.set()
        await until(lambda: container.segment(A).damage is not None)
        await container.writer.flush(container.segment(other))
        with pytest.raises(CorruptionError, match="neither the log nor long-term storage"):
            await container.writer.flush(container.segment(A))
    assert container.segment(other).storage_length == len(b"other")
    assert not lives.failures


async def test_segments_truncated_and_deleted_during_recovery_do_not_return(lives: Incarnations) -> None:
    await crash_with_a_cut_log(lives)
    answers = Answers()
    with held_lookups(answers):
        container = await lives.start()
        await container.truncate(A, len(STORED) + 3)
        answers.come.set()
        await container.flush()
        evict_all(container)
        assert await read_all(container, A) == (MERGED + LOGGED)[3:]
        await lives.crash(container)
        answers.come = asyncio.Event()
        container = await lives.start()
        await container.delete(A)
        answers.come.set()
        await container.flush()
        assert await names(container) == set()
    assert not lives.failures
