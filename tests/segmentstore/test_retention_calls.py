"""Truncation and what else retention asks for. SS-n: docs/spec/segment-store.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.model.errors import SegmentTruncatedError
from penstock.segmentstore.container.container import SegmentContainer
from support.containers import Incarnations, append, evict_all, read_all, turns

A = "s/t/0.#epoch.0"


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    made = Incarnations()
    yield made
    await made.close()


def pattern(start: int, end: int) -> bytes:
    """Return bytes that say where they belong."""
    return b"".join(at.to_bytes(4, "big") for at in range(start // 4, end // 4))


async def stored_bytes(lives: Incarnations) -> int:
    return sum(chunk.length for chunk in await lives.chunks.list("s/"))


async def test_a_truncation_survives_a_crash_right_after_it(lives: Incarnations) -> None:
    """SS-246: nothing below it is served, by this or the next incarnation."""
    container = await lives.start()
    await container.create(A)
    await append(container, A, pattern(0, 1000))
    await container.truncate(A, 400)
    container = await lives.restart(container)
    assert (await container.info(A)).start_offset == 400
    segment = container.segment(A)
    with pytest.raises(SegmentTruncatedError) as caught:
        await container.reader.read(segment, 399, 10)
    assert (caught.value.start_offset, caught.value.offset) == (400, 399)
    assert await read_all(container, A) == pattern(400, 1000)


async def test_a_truncation_may_be_repeated_but_not_taken_back(lives: Incarnations) -> None:
    """SS-247: the same offset is fine, a lower one says where the segment starts."""
    container = await lives.start()
    await container.create(A)
    await append(container, A, pattern(0, 1000))
    for _ in range(2):
        await container.truncate(A, 400)
    with pytest.raises(SegmentTruncatedError) as caught:
        await container.truncate(A, 399)
    assert (caught.value.start_offset, caught.value.offset) == (400, 399)


async def test_a_sealed_segment_may_be_truncated_to_its_end(lives: Incarnations) -> None:
    """SS-248: a reader there hears that nothing follows."""
    container = await lives.start()
    await container.create(A)
    await append(container, A, pattern(0, 1000))
    await container.seal(A)
    await container.truncate(A, 1000)
    end = await container.reader.read(container.segment(A), 1000, 10)
    assert (end.joined(), end.is_end_of_segment) == (b"", True)
    with pytest.raises(SegmentTruncatedError):
        await container.reader.read(container.segment(A), 999, 10)


async def test_a_reader_in_a_range_that_is_truncated_never_gets_other_bytes(lives: Incarnations) -> None:
    """SS-249: its bytes, or the refusal; from the cache, from storage, and while storage is being read."""
    container = await lives.start()
    await container.create(A)
    await append(container, A, pattern(0, 40_000))
    await container.flush()
    await append(container, A, pattern(40_000, 50_000))
    segment = container.segment(A)
    refused = served = 0

    async def read(offset: int) -> None:
        nonlocal refused, served
        try:
            data = (await container.reader.read(segment, offset, 2000)).joined()
        except SegmentTruncatedError:
            refused += 1
        else:
            served += 1
            assert data == pattern(offset, 50_000)[: len(data)]

    for start in range(0, 48_000, 4000):
        evict_all(container)
        lives.chunks.hold("read")
        reads = [asyncio.ensure_future(read(start + 400 * number)) for number in range(10)]
        await turns(3)
        await container.truncate(A, start + 2000)
        await container.writer.flush(segment)
        reads += [asyncio.ensure_future(read(start + 400 * number)) for number in range(10)]
        await turns(start // 4000)
        lives.chunks.release("read")
        await asyncio.gather(*reads)
    assert refused >= 60
    assert served >= 60


async def test_a_truncation_beyond_what_storage_has(lives: Incarnations) -> None:
    """SS-250: in the end storage starts where the segment does, and has the rest."""
    container = await lives.start()
    await container.create(A)
    await append(container, A, pattern(0, 400))
    await container.flush()
    await append(container, A, pattern(400, 2000))
    await container.truncate(A, 1200)
    await container.flush()
    segment = container.segment(A)
    stored = await container.storage.open_for_write(segment)
    assert stored is not None
    assert (stored.start_offset, stored.length) == (1200, 2000)
    assert await read_all(container, A) == pattern(1200, 2000)
    container = await lives.restart(container)
    assert await read_all(container, A) == pattern(1200, 2000)


async def test_asking_about_an_inactive_segment_leaves_it_inactive(lives: Incarnations) -> None:
    """SS-251: the answer comes from its record."""
    container = await lives.start()
    await container.create(A)
    await append(container, A, pattern(0, 400))
    await container.truncate(A, 40)
    await container.flush()
    await _put_away(container, A)
    before = container.state.metadata.active_count
    info = await container.info(A)
    assert (info.start_offset, info.length, info.is_sealed) == (40, 400, False)
    assert container.state.metadata.active_count == before
    assert A not in container.state.metadata.by_name


async def _put_away(container: SegmentContainer, name: str) -> None:
    assert await container.catalog.deactivate([container.segment(name)], 1) == 1
    assert name not in container.state.metadata.by_name


async def test_truncation_gives_the_bytes_back(lives: Incarnations) -> None:
    """SS-252: whole chunks before the start go from long-term storage."""
    container = await lives.start(rollover_bytes_min=1000)
    await container.create(A, rollover_bytes=1000)
    for start in range(0, 5000, 1000):
        await append(container, A, pattern(start, start + 1000))
        await container.flush()
    assert await stored_bytes(lives) == 5000
    await container.truncate(A, 3500)
    await container.flush()
    for _ in range(100):
        if await stored_bytes(lives) <= 2000:
            break
        await asyncio.sleep(0.01)
    assert await stored_bytes(lives) in (1500, 2000)
    assert await read_all(container, A) == pattern(3500, 5000)
