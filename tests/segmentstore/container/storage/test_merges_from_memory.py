"""Merged segments of which storage has nothing: their bytes go to the target's chunks, many at a time.

What storage had before a merge is moved by `concat`, as before: `test_storage_writer.py`, `test_truncated_merges.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from penstock.model.errors import StorageError
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.log.operations import Forget
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.tier2 import segment_write, write_ahead
from penstock.segmentstore.tier2.chunked_storage import ChunkedStorage, StoredSegment
from penstock.segmentstore.tier2.metadata import MetadataTransaction
from penstock.segmentstore.tier2.records import StoredSegmentRecord
from penstock.segmentstore.tier2.segment_write import SegmentWrite
from penstock.segmentstore.tier2.storage_context import StorageContext
from support.containers import Incarnations, append, evict_all, pause_writer, read_all, turns, until

A = "s/t/0.#epoch.0"
COUNT = 8


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    made = Incarnations()
    yield made
    await made.close()


def source_name(number: int) -> str:
    return f"{A}#transaction.{number:032x}"


async def merge_some(container: SegmentContainer, *, flushed: int = -1) -> bytes:
    """Append to a segment and merge others into it by turns; return all its bytes. Number `flushed` is in storage."""
    await pause_writer(container)
    await container.create(A)
    expected = b""
    for number in range(COUNT):
        name = source_name(number)
        await container.create(name)
        data, own = bytes([number + 1]) * 100, bytes([number + 101]) * 10
        await append(container, name, data[:60])
        if number == flushed:
            await container.writer.flush(container.segment(name))
        await append(container, name, data[60:])
        await append(container, A, own)
        await container.merges.merge(A, name)
        expected += own + data
    return expected


async def check(container: SegmentContainer, expected: bytes) -> None:
    """All of it is in storage, and nothing else is left of the merges."""
    segment = container.segment(A)
    assert segment.storage_length == len(expected)
    assert not container.state.gone
    assert not container.state.metadata.merges
    assert segment.id not in container.state.unflushed
    evict_all(container)
    assert await read_all(container, A) == expected


async def names_in_storage(lives: Incarnations) -> set[str]:
    return {info.name for info in await lives.chunks.list("s/")}


async def test_small_merges_are_stored_with_one_write_and_have_no_chunks_of_their_own(lives: Incarnations) -> None:
    container = await lives.start()
    expected = await merge_some(container)
    before = lives.chunks.calls["write"]
    await container.writer.flush(container.segment(A))
    assert lives.chunks.calls["write"] == before + 1
    assert not [name for name in await names_in_storage(lives) if "transaction" in name]
    await check(container, expected)
    container = await lives.restart(container)
    assert await read_all(container, A) == expected


async def test_merges_are_stored_together(lives: Incarnations) -> None:
    container = await lives.start(merge_delay_s=3600.0, writer_interval_s=0.01)
    expected = await merge_some(container)
    container.writer.start()
    container.writer._scan()
    assert not container.writer._jobs
    container = await lives.restart(container, merge_delay_s=0.05)
    await until(lambda: A in container.state.metadata.by_name and not container.state.metadata.merges)
    await until(lambda: not container.state.gone and container.segment(A).id not in container.state.unflushed)
    await check(container, expected)


@pytest.mark.parametrize("flushed", range(0, COUNT, 3))
async def test_a_partly_stored_merge_is_completed_in_its_place(lives: Incarnations, flushed: int) -> None:
    container = await lives.start()
    expected = await merge_some(container, flushed=flushed)
    await container.writer.flush(container.segment(A))
    await check(container, expected)


@pytest.mark.parametrize("write_bytes_max", [64, 97, 256])
@pytest.mark.parametrize("has_effect", [False, True])
async def test_a_crash_during_a_merge_is_recovered_from(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch, write_bytes_max: int, has_effect: bool
) -> None:
    """Writes end anywhere in what is merged. The process dies at each of them; the next one has the rest in its log."""
    container = await lives.start(flush_write_bytes_max=write_bytes_max)
    expected = await merge_some(container)
    original = segment_write.commit_staged
    lengths: set[int] = set()
    for _ in range(100):
        left = 1

        async def commit(
            context: StorageContext, transaction: MetadataTransaction, writes: Sequence[SegmentWrite]
        ) -> StoredSegmentRecord:
            nonlocal left
            if writes[0].record.name != A:
                return await original(context, transaction, writes)
            if left or has_effect:
                record = await original(context, transaction, writes)
            if not left:
                raise StorageError("the process dies here")
            left -= 1
            return record

        with monkeypatch.context() as patch:
            for module in (segment_write, write_ahead):
                patch.setattr(module, "commit_staged", commit)
            try:
                await container.writer.flush(container.segment(A))
            except StorageError:
                pass
            else:
                break
        lengths.add(container.segment(A).storage_length)
        assert await read_all(container, A) == expected
        container = await lives.restart(container)
        await pause_writer(container)
        assert await read_all(container, A) == expected
    assert any(length % 110 not in (0, 10) for length in lengths), "no write ended in the middle of a merged segment"
    await check(container, expected)
    assert not [name for name in await names_in_storage(lives) if "transaction" in name]


@pytest.mark.parametrize("has_effect", [False, True])
async def test_a_crash_before_the_sources_are_forgotten_forgets_them_later(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch, has_effect: bool
) -> None:
    """Some are forgotten, others not; what storage has is not written a second time."""
    container = await lives.start()
    expected = await merge_some(container)
    flusher = container.writer._flusher
    submit: Callable[..., Awaitable[None]] = flusher._submit
    count = 0

    async def dies(operation: object, accept: Callable[[], object]) -> None:
        nonlocal count
        if isinstance(operation, Forget):
            count += 1
            if count > COUNT // 2:
                if has_effect:
                    await submit(operation, accept)
                raise StorageError("the process dies here")
        await submit(operation, accept)

    monkeypatch.setattr(flusher, "_submit", dies)
    with pytest.raises(StorageError):
        await container.writer.flush(container.segment(A))
    assert await read_all(container, A) == expected
    container = await lives.restart(container)
    await pause_writer(container)
    assert await read_all(container, A) == expected
    await container.flush()
    await check(container, expected)
    assert sum(info.length for info in await lives.chunks.list(f"{A}.E-")) == len(expected)


async def test_a_target_deleted_during_a_merge_frees_its_sources(lives: Incarnations) -> None:
    container = await lives.start(flush_write_bytes_max=97)
    await merge_some(container)
    lives.chunks.fail("write")
    with pytest.raises(StorageError):
        await container.writer.flush(container.segment(A))
    await container.delete(A)
    await container.flush()
    assert not container.state.gone
    container = await lives.restart(container)
    await container.flush()
    assert not container.state.metadata.by_id or all(
        not one.name.startswith(A) for one in container.state.metadata.by_id.values()
    )


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_name_that_was_taken_again_and_deleted_frees_nothing_of_a_merge_that_waits(
    lives: Incarnations, is_restarted: bool
) -> None:
    """The later segment never had a chunk: what storage has under its name are bytes that the merge still needs."""
    container = await lives.start()
    expected = await merge_some(container, flushed=3)
    await container.create(source_name(3))
    await append(container, source_name(3), b"of the later one")
    await container.delete(source_name(3))
    later = max(container.state.gone)
    if is_restarted:
        container = await lives.restart(container)
        await pause_writer(container)
    assert await container.writer._flusher.free(container.state.gone[later])
    await container.writer.flush(container.segment(A))
    await check(container, expected)


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_move_with_a_lost_reply_is_recognised_as_done(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    container = await lives.start()
    expected = await merge_some(container, flushed=3)
    original = ChunkedStorage.concat

    async def concat(self: ChunkedStorage, target: str, offset: int, source: str) -> int:
        await original(self, target, offset, source)
        raise StorageError("the answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(ChunkedStorage, "concat", concat)
        with pytest.raises(StorageError):
            await container.writer.flush(container.segment(A))
    if is_restarted:
        container = await lives.restart(container)
        await pause_writer(container)
    await container.writer.flush(container.segment(A))
    await check(container, expected)


@pytest.mark.parametrize("is_left_out", [False, True])
async def test_a_flush_begun_before_the_merge_leaves_no_chunk(lives: Incarnations, is_left_out: bool) -> None:
    """Storage is slow: it takes the source's bytes while they are merged, and has them in the end."""
    container = await lives.start()
    await pause_writer(container)
    for name in (A, source_name(0)):
        await container.create(name)
    await append(container, A, b"before")
    await append(container, source_name(0), b"merged")
    lives.chunks.hold("write")
    before = lives.chunks.calls["write"]
    own = asyncio.ensure_future(container.writer.flush(container.segment(source_name(0))))
    await until(lambda: lives.chunks.calls["write"] > before)
    await container.merges.merge(A, source_name(0))
    await append(container, A, b"behind")
    if is_left_out:
        await container.truncate(A, len(b"beforemerged"))
    flushing = asyncio.ensure_future(container.writer.flush(container.segment(A)))
    await turns(50)
    lives.chunks.release("write")
    await own
    await flushing
    await container.flush()
    assert not container.state.gone
    stored = [info.name async for info in container.storage.of(container.segment(A)).list_segments()]
    assert not [name for name in stored if "transaction" in name]
    evict_all(container)
    assert await read_all(container, A) == (b"behind" if is_left_out else b"beforemergedbehind")


class HeldLookups:
    """Holds the first flush that is requested before it has its segment's lock."""

    def __init__(self, container: SegmentContainer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = asyncio.Event()
        self._is_first = True
        monkeypatch.setattr(container.storage.lookups, "ended", self._ended)

    async def _ended(self) -> None:
        if self._is_first:
            self._is_first = False
            await self.gate.wait()


async def merged_beside_own_flush(
    container: SegmentContainer, monkeypatch: pytest.MonkeyPatch
) -> tuple[bytes, HeldLookups, asyncio.Future[None]]:
    """Merge a segment whose own flush was requested before, and is held; return the target's bytes and that flush."""
    await pause_writer(container)
    held = HeldLookups(container, monkeypatch)
    for name in (A, source_name(0)):
        await container.create(name)
    data = bytes(range(100))
    await append(container, source_name(0), data)
    own = asyncio.ensure_future(container.writer.flush(container.segment(source_name(0))))
    await turns()
    await container.merges.merge(A, source_name(0))
    await append(container, A, b"behind")
    return data + b"behind", held, own


async def test_a_flush_after_the_merge_writes_nothing(lives: Incarnations, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the lock of the merged segment between two checks of the target's flush."""
    container = await lives.start()
    expected, held, own = await merged_beside_own_flush(container, monkeypatch)
    original = container.storage.open_for_write

    async def open_for_write(segment: Segment) -> StoredSegment | None:
        if segment.name != A:
            held.gate.set()
            await turns()
        return await original(segment)

    monkeypatch.setattr(container.storage, "open_for_write", open_for_write)
    await container.writer.flush(container.segment(A))
    await own
    await check(container, expected)
    assert not [name for name in await names_in_storage(lives) if "transaction" in name]


async def test_a_merge_that_is_truncated_while_it_is_checked_is_skipped(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await lives.start()
    await pause_writer(container)
    for name in (A, source_name(0)):
        await container.create(name)
    await append(container, source_name(0), bytes(100))
    await container.merges.merge(A, source_name(0))
    await append(container, A, b"behind")
    original = container.storage.open_for_write

    async def open_for_write(segment: Segment) -> StoredSegment | None:
        if segment.name != A:
            await container.truncate(A, 100)
        return await original(segment)

    monkeypatch.setattr(container.storage, "open_for_write", open_for_write)
    await container.writer.flush(container.segment(A))
    assert container.segment(A).storage_length == len(bytes(100) + b"behind")
    assert not container.state.gone
    evict_all(container)
    assert await read_all(container, A) == b"behind"
