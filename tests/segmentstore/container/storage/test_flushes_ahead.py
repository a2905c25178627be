"""A flush of one segment by several writes, each under way while the one before is recorded (docs/write-ahead.md)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from penstock.model.errors import StorageError
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.tier2 import segment_write, write_ahead
from penstock.segmentstore.tier2.metadata import MetadataTransaction
from penstock.segmentstore.tier2.records import StoredSegmentRecord
from penstock.segmentstore.tier2.segment_write import SegmentWrite
from penstock.segmentstore.tier2.storage_context import StorageContext
from support.containers import Incarnations, append, evict_all, pause_writer, read_all, turns

A = "s/t/0.#epoch.0"
WRITE_BYTES = 1000
EXPECTED = b"".join(bytes([number]) * 500 for number in range(40))


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    made = Incarnations()
    yield made
    await made.close()


async def begin(lives: Incarnations, **settings: object) -> SegmentContainer:
    """Start a container with twenty writes waiting."""
    container = await lives.start(flush_write_bytes_max=WRITE_BYTES, **settings)  # type: ignore[arg-type]
    await pause_writer(container)
    await container.create(A)
    for start in range(0, len(EXPECTED), 500):
        await append(container, A, EXPECTED[start : start + 500])
    return container


class Commits:
    """Commits of segment A: they can be held, and the one of a number fails, before or after its effect."""

    def __init__(self, patch: pytest.MonkeyPatch, *, fails_at: int = -1, has_effect: bool = False) -> None:
        self.count = 0
        self.gate = asyncio.Event()
        self.gate.set()
        original = segment_write.commit_staged

        async def commit(
            context: StorageContext, transaction: MetadataTransaction, writes: Sequence[SegmentWrite]
        ) -> StoredSegmentRecord:
            if writes[0].record.name != A:
                return await original(context, transaction, writes)
            number, self.count = self.count, self.count + 1
            await self.gate.wait()
            if number == fails_at and not has_effect:
                raise StorageError("the process dies here")
            record = await original(context, transaction, writes)
            if number == fails_at:
                raise StorageError("the process dies here")
            return record

        for module in (segment_write, write_ahead):
            patch.setattr(module, "commit_staged", commit)


async def test_bytes_without_a_record_do_not_count_as_stored(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first commit hangs: nothing leaves the cache, nothing of the log is given up, all is read."""
    container = await begin(lives)
    commits = Commits(monkeypatch)
    commits.gate.clear()
    segment = container.segment(A)
    before = lives.chunks.calls["write"]
    flush = asyncio.ensure_future(container.writer.flush(segment))
    await turns(100)
    assert lives.chunks.calls["write"] - before == lives.settings.flush_writes_max == 8
    assert commits.count == 1
    assert segment.storage_length == 0
    assert segment.pending.byte_count == len(EXPECTED)
    assert container.storage.first_unflushed(segment) == segment.pending[0].sequence_number
    evict_all(container)
    assert segment.index.cached_bytes == len(EXPECTED)
    assert await read_all(container, A) == EXPECTED
    commits.gate.set()
    await flush
    assert segment.storage_length == len(EXPECTED)
    assert not segment.pending
    evict_all(container)
    assert segment.index.cached_bytes == 0
    assert await read_all(container, A) == EXPECTED


@pytest.mark.parametrize("has_effect", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_flushing_continues_after_a_failed_commit(
    lives: Incarnations, has_effect: bool, is_restarted: bool
) -> None:
    """At each commit in turn: writes ahead of it are void, whatever the chunks contain, and are repeated."""
    for fails_at in range(20):
        lives = Incarnations()
        container = await begin(lives)
        with pytest.MonkeyPatch.context() as patch:
            Commits(patch, fails_at=fails_at, has_effect=has_effect)
            with pytest.raises(StorageError):
                await container.writer.flush(container.segment(A))
        assert container.segment(A).storage_length == fails_at * WRITE_BYTES
        if is_restarted:
            container = await lives.restart(container)
            await pause_writer(container)
        assert await read_all(container, A) == EXPECTED
        await container.flush()
        assert container.segment(A).storage_length == len(EXPECTED)
        evict_all(container)
        assert await read_all(container, A) == EXPECTED
        await lives.close()


@pytest.mark.parametrize("has_effect", [False, True])
async def test_flushing_continues_after_a_failed_write(lives: Incarnations, has_effect: bool) -> None:
    container = await begin(lives)
    for _ in range(4):
        lives.chunks.hold("write")
        flush = asyncio.ensure_future(container.writer.flush(container.segment(A)))
        await turns(20)
        lives.chunks.fail("write", has_effect=has_effect)
        lives.chunks.release("write")
        with pytest.raises(StorageError):
            await flush
        assert await read_all(container, A) == EXPECTED
    await container.flush()
    evict_all(container)
    assert await read_all(container, A) == EXPECTED


async def test_a_container_stopped_during_a_flush_leaves_no_running_write(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await begin(lives)
    commits = Commits(monkeypatch)
    commits.gate.clear()
    flush = asyncio.ensure_future(container.writer.flush(container.segment(A)))
    await turns(100)
    flush.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flush
    count = lives.chunks.calls["write"]
    await turns(100)
    assert lives.chunks.calls["write"] == count
    commits.gate.set()
    container = await lives.restart(container)
    await container.flush()
    evict_all(container)
    assert await read_all(container, A) == EXPECTED


async def test_bytes_truncated_during_a_flush_are_skipped(lives: Incarnations, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was begun is recorded; after it what was truncated is skipped, as between two writes ever."""
    container = await begin(lives, flush_writes_max=3)
    commits = Commits(monkeypatch)
    commits.gate.clear()
    segment = container.segment(A)
    flush = asyncio.ensure_future(container.writer.flush(segment))
    await turns(100)
    await container.truncate(A, 15_000)
    await append(container, A, bytes(3000))
    commits.gate.set()
    await flush
    assert segment.storage_length == len(EXPECTED), "what came meanwhile waits for the next flush"
    assert commits.count == 3 + 5
    await container.flush()
    assert segment.storage_length == len(EXPECTED) + 3000
    evict_all(container)
    assert await read_all(container, A) == EXPECTED[15_000:] + bytes(3000)


async def test_a_segment_that_is_deleted_meanwhile_is_freed(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await begin(lives, flush_writes_max=3)
    commits = Commits(monkeypatch)
    commits.gate.clear()
    flush = asyncio.ensure_future(container.writer.flush(container.segment(A)))
    await turns(100)
    await container.delete(A)
    commits.gate.set()
    await flush
    assert commits.count == 3
    await container.flush()
    assert not container.state.gone
    assert [info.name for info in await lives.chunks.list("s/")] == []


@pytest.mark.parametrize("is_interrupted", [False, True])
async def test_bytes_that_come_meanwhile_wait_for_the_next_flush(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    """A segment under constant writes does not starve the others, even while its layout is requested."""
    container = await begin(lives, flush_writes_max=3)
    commits = Commits(monkeypatch)
    commits.gate.clear()
    segment = container.segment(A)
    flush = asyncio.ensure_future(container.writer.flush(segment))
    await turns(100)
    for _ in range(10):
        await append(container, A, bytes(500))
    layout = asyncio.ensure_future(container.storage.layout(segment)) if is_interrupted else None
    await turns(20)
    commits.gate.set()
    if layout is not None:
        assert sum(chunk.length for chunk in await layout) == 3 * WRITE_BYTES
    await flush
    assert segment.storage_length == len(EXPECTED)
    await container.flush()
    assert segment.storage_length == len(EXPECTED) + 5000
    evict_all(container)
    assert await read_all(container, A) == EXPECTED + bytes(5000)


async def test_one_at_a_time_is_as_it_was(lives: Incarnations, monkeypatch: pytest.MonkeyPatch) -> None:
    container = await begin(lives, flush_writes_max=1)
    commits = Commits(monkeypatch)
    commits.gate.clear()
    before = lives.chunks.calls["write"]
    flush = asyncio.ensure_future(container.writer.flush(container.segment(A)))
    await turns(100)
    assert lives.chunks.calls["write"] - before == 1
    commits.gate.set()
    await flush
    assert commits.count == 20
