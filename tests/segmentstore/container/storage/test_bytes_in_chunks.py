"""Bytes of the table of storage records are found in chunks without records, and only if they are certain."""

from __future__ import annotations

import pytest

from penstock.segmentstore.container.storage import bytes_in_chunks as module
from penstock.segmentstore.container.storage.bytes_in_chunks import MissingBytes, bytes_in_chunks
from penstock.segmentstore.container.tables.entries import ENTRY_HEADER, encode_put, encode_removal
from penstock.segmentstore.tier2.garbage_records import TASK_PREFIX, CreationOrder, GarbageTask, encode_task
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.segmentstore.tier2.records import empty_segment, encode_record

SEGMENT = "_system/containers/storage_metadata_0"


def entry(number: int) -> bytes:
    """Return an entry with the record of a segment."""
    record = empty_segment(f"scope/stream/{number}", number, epoch=1, chunk_length_max=1 << 20, now_ms=0)
    return encode_put(record.key, encode_record(record))


ENTRIES = [entry(number) for number in range(8)]
TASK = GarbageTask(CreationOrder(1, 2), 0, 0, ("chunk",))
ENTRIES[2] = encode_put(TASK.place.key(TASK_PREFIX), encode_task(TASK))
ENTRIES[5] = encode_removal(b"scope/stream/3")
TABLE = b"".join(ENTRIES)


def offset_of(number: int) -> int:
    return sum(map(len, ENTRIES[:number]))


async def storage(*chunks: tuple[int, int, bytes]) -> MemoryChunkStorage:
    """Return storage with chunks of the table: epoch, offset, content."""
    made = MemoryChunkStorage()
    for number, (epoch, offset, data) in enumerate(chunks):
        name = f"{SEGMENT}.E-{epoch}-O-{offset}.00000000-0000-4000-8000-{number:012x}"
        await made.create_with_content(name, [data])
    return made


def missing(first: int, last: int) -> MissingBytes:
    start, end = offset_of(first), offset_of(last)
    return MissingBytes(1, SEGMENT, start, end, TABLE[:start])


async def found(chunks: MemoryChunkStorage, what: MissingBytes) -> bytes | None:
    return await bytes_in_chunks(chunks, what, epoch_max=4)


async def test_bytes_of_a_chunk_that_was_appended_to_and_of_later_chunks_are_found() -> None:
    a, b, c = offset_of(2) + 7, offset_of(4), offset_of(6)
    chunks = await storage((2, 0, TABLE[:a]), (2, a, TABLE[a:b]), (3, b, TABLE[b:]))
    assert await found(chunks, missing(1, 6)) == TABLE[offset_of(1) : c]


async def test_an_unrecorded_end_of_a_chunk_gives_way_to_the_chunk_that_begins_there() -> None:
    b = offset_of(4)
    chunks = await storage((2, 0, TABLE[:b] + b"\0" * 500), (3, b, TABLE[b:]))
    assert await found(chunks, missing(1, 6)) == TABLE[offset_of(1) : offset_of(6)]


async def test_remains_of_a_creation_that_failed_are_not_used() -> None:
    b = offset_of(4)
    chunks = await storage((2, 0, TABLE[:b]), (3, b, TABLE[b:]), (4, b, b"\0" * (len(TABLE) - b)))
    assert await found(chunks, missing(1, 6)) == TABLE[offset_of(1) : offset_of(6)]


HEADER, KEY, VALUE, CHECKSUM = 0, ENTRY_HEADER.size + 2, -20, -1


@pytest.mark.parametrize(
    ("number", "at"), [(2, HEADER), (2, VALUE), (2, CHECKSUM), (4, HEADER), (4, KEY), (4, VALUE), (4, CHECKSUM)]
)
async def test_bytes_that_differ_from_what_was_written_are_not_used(number: int, at: int) -> None:
    data = bytearray(TABLE)
    data[offset_of(number if at >= 0 else number + 1) + at] ^= 1
    assert await found(await storage((2, 0, bytes(data))), missing(1, 6)) is None


async def test_bytes_that_no_chunk_has_are_not_found() -> None:
    chunks = await storage((2, 0, TABLE[: offset_of(4)]), (2, offset_of(5), TABLE[offset_of(5) :]))
    assert await found(chunks, missing(1, 6)) is None
    assert await found(chunks, missing(1, 4)) == TABLE[offset_of(1) : offset_of(4)]


async def test_bytes_that_end_within_an_entry_are_not_used() -> None:
    # The rest of the entry cannot be checked.
    start, end = offset_of(1), offset_of(6) - 3
    assert await found(await storage((2, 0, TABLE)), MissingBytes(1, SEGMENT, start, end, TABLE[:start])) is None


async def test_chunks_of_later_epochs_and_of_other_segments_are_not_used() -> None:
    assert await found(await storage((5, 0, TABLE)), missing(1, 6)) is None
    chunks = MemoryChunkStorage()
    await chunks.create_with_content(f"{SEGMENT}0.E-2-O-0.00000000-0000-4000-8000-000000000000", [TABLE])
    assert await found(chunks, missing(1, 6)) is None


async def test_a_table_that_is_too_long_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = await storage((2, 0, TABLE))
    monkeypatch.setattr(module, "TABLE_BYTES_MAX", offset_of(6) - 1)
    assert await found(chunks, missing(1, 6)) is None
    assert await found(chunks, missing(1, 5)) is not None


async def test_the_number_of_combinations_that_are_tried_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    b = offset_of(4)
    bad = [(3, b, b"\0" * (len(TABLE) - b))] * 3
    chunks = await storage((2, 0, TABLE[:b]), (2, b, TABLE[b:]), *bad)
    assert await found(chunks, missing(1, 6)) is not None
    monkeypatch.setattr(module, "_TRIES_MAX", 3)
    assert await found(chunks, missing(1, 6)) is None
