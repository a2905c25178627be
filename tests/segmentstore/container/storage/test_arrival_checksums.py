"""What arrived is what is stored: bytes that change in memory are noticed before a reader gets them, or the log goes.

Checksums are taken when bytes arrive and carried along with them (docs/checksums.md). A bit is flipped in memory here,
as a bad memory cell would do it: nothing else knows of it.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.checksum import crc32c
from penstock.model.errors import ContainerOfflineError, InconsistentStateError
from penstock.model.segments import Buffer
from penstock.runtime.work import ThreadedWork
from penstock.segmentstore.container.container import ContainerStatus, SegmentContainer
from penstock.segmentstore.container.reads.read_index import _Block
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.tier2 import written_checksums
from penstock.segmentstore.tier2.block_checksums import extend_checksums
from penstock.segmentstore.tier2.written_checksums import Growth, sum_written
from support.containers import Incarnations, append, evict_all, pause_writer, read_all

A = "s/t/0.#epoch.0"


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    made = Incarnations()
    yield made
    await made.close()


def flip(container: SegmentContainer, name: str, position: int, bit: int = 0) -> None:
    """Invert a bit of a byte of a segment in the cache. What the log has is memory of its own."""
    for block in container.segment(name).index._entries:
        assert type(block) is _Block
        if block.start <= position < block.end:
            if not block.is_open:
                block.data = bytearray(block.data)
            block.data[position - block.start] ^= 1 << bit  # type: ignore[index]  # A bytearray.
            return
    raise AssertionError(f"byte {position} is not in the cache")


async def begin(lives: Incarnations, *appends: bytes) -> SegmentContainer:
    container = await lives.start()
    await pause_writer(container)
    await container.create(A)
    for data in appends:
        await append(container, A, data)
    return container


APPENDS = {
    "gathered": [b"%09d," % number for number in range(300)],
    "whole": [bytes([number]) * 5000 for number in range(4)],
    "both": [b"s" * 100, b"L" * 3000, b"t" * 50, b"M" * 2000, b"u" * 10],
}


@pytest.mark.parametrize("kind", APPENDS)
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
async def test_a_byte_that_changes_between_arrival_and_flush_is_not_stored(
    lives: Incarnations, kind: str, place: float
) -> None:
    """The flush ends the incarnation; the next one reads the log, and stores what was written."""
    expected = b"".join(APPENDS[kind])
    container = await begin(lives, *APPENDS[kind])
    flip(container, A, int(place * (len(expected) - 1)))
    with pytest.raises(InconsistentStateError, match="arrived"):
        await container.flush()
    assert [type(failure) for failure in lives.failures] == [InconsistentStateError]
    stored = await container.storage.of(container.state.metadata.by_name[A]).info(A)
    assert stored is None or stored.length == 0
    again = await lives.restart(container)
    await again.flush()
    evict_all(again)
    assert await read_all(again, A) == expected


async def test_a_byte_beside_those_that_are_flushed_counts_too(lives: Incarnations) -> None:
    """A block is compared whole: what was flushed of it before has been compared then, and is in it now."""
    container = await begin(lives, b"a" * 100)
    await container.flush()
    index = container.segment(A).index
    last = index._entries[-1]
    assert type(last) is _Block
    await append(container, A, b"b" * 100)
    flip(container, A, 150)
    with pytest.raises(InconsistentStateError):
        await container.flush()
    again = await lives.restart(container)
    await again.flush()
    evict_all(again)
    assert await read_all(again, A) == b"a" * 100 + b"b" * 100


async def test_a_byte_that_changed_is_not_read(lives: Incarnations) -> None:
    """The read fails as if the container were not there; the next incarnation returns what was written."""
    container = await begin(lives, *APPENDS["both"])
    expected = b"".join(APPENDS["both"])
    flip(container, A, 120)
    with pytest.raises(InconsistentStateError):
        await read_all(container, A)
    assert container.status is ContainerStatus.FAILED
    with pytest.raises(ContainerOfflineError):
        container.segment(A)
    again = await lives.restart(container)
    assert await read_all(again, A) == expected


async def test_a_byte_that_changed_is_not_stated_again_in_the_log(lives: Incarnations) -> None:
    """A log that is cut behind bytes stated again would lose what arrived."""
    container = await begin(lives, *APPENDS["both"])
    flip(container, A, 3200)
    segment = container.segment(A)
    before = len(lives.frames())
    with pytest.raises(InconsistentStateError):
        await container.log_rewriter._carry_all([segment], container.pipeline.sequence_number + 1)
    assert len(lives.frames()) == before
    again = await lives.restart(container)
    assert await read_all(again, A) == b"".join(APPENDS["both"])


async def test_recovered_bytes_are_verified_from_then_on(lives: Incarnations) -> None:
    container = await begin(lives, *APPENDS["gathered"])
    again = await lives.restart(container)
    await pause_writer(again)
    flip(again, A, 1000)
    with pytest.raises(InconsistentStateError):
        await again.flush()


async def test_merged_bytes_keep_their_checksums(lives: Incarnations) -> None:
    container = await begin(lives, b"t" * 100)
    source = "s/t/0.#epoch.0#transaction.00000000000000000000000000000001"
    await container.create(source)
    await append(container, source, b"s" * 3000)
    await container.seal(source)
    await container.merges.merge(A, source)
    expected = b"t" * 100 + b"s" * 3000
    assert await read_all(container, A) == expected
    flipped: Segment = container.state.metadata.by_id[container.segment(A).id + 1]
    block = flipped.index._entries[0]
    assert type(block) is _Block
    block.data = bytes(3000)
    with pytest.raises(InconsistentStateError):
        await container.flush()
    again = await lives.restart(container)
    await again.flush()
    assert await read_all(again, A) == expected


# The core.


@given(
    st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=8),
    st.integers(1, 9),
    st.integers(0, 30),
    st.data(),
)
def test_checksums_are_taken_and_any_flipped_bit_is_noticed(
    pieces: list[bytes], block_length: int, written: int, data: st.DataObject
) -> None:
    before = random.Random(written).randbytes(written)
    known = extend_checksums((), 0, [before], block_length=block_length)
    checksummed_blocks: list[tuple[Buffer, int]] = [(bytearray(piece), crc32c(piece, 0)) for piece in pieces]
    growth = Growth(known, written, block_length, [whole for whole, _ in checksummed_blocks])
    summed = written_checksums._sum_at_once([growth], checksummed_blocks)
    assert summed.damaged is None
    assert summed.checksums == [extend_checksums((), 0, [before, *pieces], block_length=block_length)]
    at = data.draw(st.integers(0, len(pieces) - 1))
    whole = checksummed_blocks[at][0]
    assert isinstance(whole, bytearray)
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert written_checksums._sum_at_once([growth], checksummed_blocks).damaged == at


@pytest.mark.parametrize("length", [100, 200_000])
async def test_long_pieces_are_summed_by_a_thread_and_short_ones_in_turns(length: int) -> None:
    """Either way the outcome is the same; and a byte that changes while it continues is noticed."""
    work = ThreadedWork(1)
    pieces: list[Buffer] = [bytearray(random.Random(number).randbytes(length)) for number in range(30)]
    checksummed_blocks = [(piece, crc32c(piece, 0)) for piece in pieces]
    growths = [Growth((), 0, 1 << 18, pieces[:20]), Growth((), 0, 1 << 18, pieces[20:])]
    try:
        assert await sum_written(work, A, 7, growths, checksummed_blocks) == [
            extend_checksums((), 0, pieces[:20], block_length=1 << 18),
            extend_checksums((), 0, pieces[20:], block_length=1 << 18),
        ]
        assert await sum_written(work, A, 7, growths, ()) == await sum_written(work, A, 7, growths, checksummed_blocks)
        assert isinstance(pieces[29], bytearray)
        pieces[29][-1] ^= 1
        with pytest.raises(InconsistentStateError):
            await sum_written(work, A, 7, growths, checksummed_blocks)
    finally:
        await work.close()


def test_the_comparison_comes_after_the_checksums() -> None:
    """A bit that flips right after the checksums were taken is noticed, or they would be those of other bytes."""
    piece = bytearray(b"x" * 100)
    checksummed_blocks: list[tuple[Buffer, int]] = [(piece, crc32c(piece, 0))]
    steps = written_checksums._sum([Growth((), 0, 64, [piece])], checksummed_blocks, crc32c)
    next(steps)
    piece[10] ^= 4
    with pytest.raises(StopIteration) as ended:
        next(steps)
    assert ended.value.value.damaged == 0
