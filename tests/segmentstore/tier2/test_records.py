"""Records of long-term storage: golden bytes, every damaged byte, every invariant of segment-store 8.4."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.block_checksums import block_range, verify_blocks
from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError, InvalidArgumentError
from penstock.model.segments import Buffer
from penstock.segmentstore.tier2.block_checksums import extend_checksums
from penstock.segmentstore.tier2.chunk_run import OFFSET_MAX, ChunkRun, describe_key, run_of, runs_of
from penstock.segmentstore.tier2.records import (
    ChunkRecord,
    MergedRun,
    Record,
    StoredSegmentRecord,
    check,
    check_extent,
    decode_record,
    empty_segment,
    encode_record,
)

RUN = ChunkRun("s/a/0", 3, 8)
SOURCE = ChunkRun("t", 4, 1)
SEGMENT = StoredSegmentRecord(
    name="s/a/0",
    run=RUN,
    start_offset=5,
    length=30,
    first_chunk_start=3,
    last_start=20,
    chunk_count=2,
    chunk_length_max=17,
    owner_epoch=4,
    last_modified_ms=1234,
    is_sealed=True,
    is_ownership_changed=True,
)
CHUNK = ChunkRecord(
    run=RUN, start=3, name="c1", length=17, epoch=4, block_length=16, block_checksums=(0x01020304, 0xFFFEFDFC)
)
LAST = ChunkRecord(run=RUN, start=20, name="c2", length=10, epoch=4, block_length=16, block_checksums=(7,))
MERGED = MergedRun(run=RUN, start=20, length=10, source=SOURCE)

# Written by hand from the byte table in docs/formats.md.
GOLDEN = [
    (
        SEGMENT,
        "732f612f30",
        "02 01 0f"
        "0000000000000005 000000000000001e 0000000000000003 0000000000000014"
        "0000000000000002 0000000000000011 0000000000000004 00000000000004d2"
        "0000000000000003 0000000000000008 0005 732f612f30",
    ),
    (
        CHUNK,
        "732f612f30 00 0000000000000003 0000000000000008 7ffffffffffffffc",
        "02 02 01 0000000000000003 0000000000000008 0000000000000003 0000000000000011 0000000000000004"
        "00000010 00000002 0005 732f612f30 0002 6331 01020304 fffefdfc",
    ),
    (
        replace(LAST, is_active=False),
        "732f612f30 00 0000000000000003 0000000000000008 7fffffffffffffeb",
        "02 02 00 0000000000000003 0000000000000008 0000000000000014 000000000000000a 0000000000000004"
        "00000010 00000001 0005 732f612f30 0002 6332 00000007",
    ),
    (
        MERGED,
        "732f612f30 00 0000000000000003 0000000000000008 7fffffffffffffeb",
        "02 03 01 0000000000000003 0000000000000008 0000000000000014 000000000000000a"
        "0000000000000004 0000000000000001 0005 732f612f30 0001 74",
    ),
]


@pytest.mark.parametrize(("record", "key", "expected"), GOLDEN)
def test_record_has_its_golden_bytes(record: Record, key: str, expected: str) -> None:
    body = bytes.fromhex(expected)
    golden = body + struct.pack(">I", crc32c(body, 0))
    assert record.key == bytes.fromhex(key)
    assert encode_record(record) == golden
    assert decode_record(record.key, golden) == record


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40)
NUMBERS = st.integers(0, (1 << 63) - 1)
RUNS = st.builds(ChunkRun, NAMES, NUMBERS, NUMBERS)


@given(
    st.builds(
        lambda name, run_epoch, run_number, **fields: StoredSegmentRecord(
            name=name, run=ChunkRun(name, run_epoch, run_number), **fields
        ),
        NAMES,
        NUMBERS,
        NUMBERS,
        start_offset=NUMBERS,
        length=NUMBERS,
        first_chunk_start=NUMBERS,
        last_start=NUMBERS,
        chunk_count=NUMBERS,
        chunk_length_max=NUMBERS,
        owner_epoch=NUMBERS,
        last_modified_ms=NUMBERS,
        is_active=st.booleans(),
        is_sealed=st.booleans(),
        is_ownership_changed=st.booleans(),
        is_system=st.booleans(),
    )
    | st.builds(
        ChunkRecord,
        run=RUNS,
        start=NUMBERS,
        name=NAMES,
        length=NUMBERS,
        epoch=NUMBERS,
        block_length=st.integers(0, 2**32 - 1),
        block_checksums=st.lists(st.integers(0, 2**32 - 1), max_size=20).map(tuple),
        is_active=st.booleans(),
    )
    | st.builds(MergedRun, run=RUNS, start=NUMBERS, length=NUMBERS, source=RUNS, is_active=st.booleans())
)
def test_every_record_comes_back_as_it_was(record: Record) -> None:
    assert decode_record(record.key, encode_record(record)) == record
    assert run_of(record.key) == (None if isinstance(record, StoredSegmentRecord) else record.run)


@given(RUNS, st.lists(NUMBERS, unique=True, min_size=1), NUMBERS)
def test_the_first_key_from_an_offset_on_is_that_of_what_begins_before_it(
    run: ChunkRun, starts: list[int], offset: int
) -> None:
    """Between the segment's own key and those of other names, whatever these are."""
    keys = sorted([run.segment.encode(), *map(run.key, starts), (run.segment + "\1").encode(), b"\xff"])
    found = next(key for key in keys if key >= run.key(offset))
    before = [start for start in starts if start <= offset]
    if before:
        assert found == run.key(max(before))
    else:
        assert run_of(found) is None
    first, last = runs_of(run.segment)
    assert all(run.segment.encode() < first <= run.key(start) <= run.last_key <= last for start in (0, *starts))
    assert run.key(OFFSET_MAX) < run.key(0)


def test_the_owner_of_a_key_is_shown() -> None:
    assert describe_key(SEGMENT.key) == "storage metadata record 's/a/0'"
    assert describe_key(CHUNK.key) == "storage metadata record 's/a/0' (3.8) at 3"


@pytest.mark.parametrize("record", [SEGMENT, CHUNK, MERGED])
def test_every_damaged_or_missing_byte_is_reported(record: Record) -> None:
    good = encode_record(record)
    for at in range(len(good)):
        for bit in (1, 0x10, 0x80):
            bad = bytearray(good)
            bad[at] ^= bit
            with pytest.raises(CorruptionError):
                decode_record(record.key, bytes(bad))
        with pytest.raises(CorruptionError):
            decode_record(record.key, good[:at])
    with pytest.raises(CorruptionError):
        decode_record(record.key, good + b"\0")
    for other in (b"another", RUN.key(4), ChunkRun("s/a/0", 3, 9).key(3)):
        with pytest.raises(CorruptionError, match="belongs to"):
            decode_record(other, good)


@pytest.mark.parametrize("record", [SEGMENT, CHUNK, MERGED])
def test_bad_fields_under_a_good_checksum_are_reported(record: Record) -> None:
    body = encode_record(record)[:-4]
    bad_bodies = [
        b"\x01" + body[1:],
        *(body[:2] + bytes([body[2] ^ bit]) + body[3:] for bit in (4, 32, 128)),
        body + b"\0",
        *(body[:length] for length in range(3, len(body))),
    ]
    if isinstance(record, StoredSegmentRecord):
        names = body.index(b"\0\5s/a/0")
        bad_bodies += [body[:names] + b"\0\0" + body[names + 7 :], body[: names + 2] + b"\xff" + body[names + 3 :]]
    for bad in bad_bodies:
        with pytest.raises(CorruptionError):
            decode_record(record.key, bad + struct.pack(">I", crc32c(bad, 0)))


def test_overlong_name_is_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        encode_record(replace(CHUNK, name="x" * 65536))


def test_valid_records_pass_the_check() -> None:
    check(SEGMENT)
    check(SEGMENT, LAST)
    check(empty_segment("s", 7, epoch=1, chunk_length_max=9, now_ms=0))
    check(replace(SEGMENT, first_chunk_start=20, start_offset=30, chunk_count=1), LAST)
    check(SEGMENT, MERGED)
    check(replace(SEGMENT, first_chunk_start=25, start_offset=26, chunk_count=1), MERGED)
    check_extent(CHUNK)
    check_extent(replace(CHUNK, length=32))
    check_extent(MERGED)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(SEGMENT, first_chunk_start=-1),
        replace(SEGMENT, first_chunk_start=6),
        replace(SEGMENT, start_offset=31),
        replace(SEGMENT, last_start=-1),
        replace(SEGMENT, last_start=30),
        replace(SEGMENT, first_chunk_start=30, start_offset=30),
        replace(SEGMENT, chunk_count=-1),
        replace(SEGMENT, chunk_count=0),
        replace(SEGMENT, chunk_length_max=0),
        replace(empty_segment("s", 7, epoch=1, chunk_length_max=9, now_ms=0), length=8),
        replace(empty_segment("s", 7, epoch=1, chunk_length_max=9, now_ms=0), last_start=6),
    ],
)
def test_broken_segment_invariant_is_reported(wrong: StoredSegmentRecord) -> None:
    with pytest.raises(CorruptionError, match="is violated"):
        check(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(LAST, run=SOURCE),
        replace(LAST, start=19),
        replace(LAST, length=9),
        replace(MERGED, run=SOURCE),
        replace(MERGED, start=19, length=11),
        replace(MERGED, length=9),
    ],
)
def test_last_record_that_does_not_fit_is_reported(wrong: ChunkRecord | MergedRun) -> None:
    with pytest.raises(CorruptionError, match="is violated"):
        check(SEGMENT, wrong)
    with pytest.raises(CorruptionError, match="is violated"):
        check(empty_segment("s", 7, epoch=1, chunk_length_max=9, now_ms=0), wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(SEGMENT, chunk_count=1),
        replace(SEGMENT, first_chunk_start=20, start_offset=20),
        replace(SEGMENT, first_chunk_start=21, start_offset=21),
    ],
)
def test_segment_whose_count_does_not_fit_its_last_chunk_is_reported(wrong: StoredSegmentRecord) -> None:
    with pytest.raises(CorruptionError, match="is violated"):
        check(wrong, LAST)


def test_single_chunk_that_lies_before_the_merged_run_it_came_by_is_reported() -> None:
    with pytest.raises(CorruptionError, match="is violated"):
        check(replace(SEGMENT, chunk_count=1), MERGED)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(CHUNK, length=0),
        replace(CHUNK, block_length=0),
        replace(CHUNK, length=16),
        replace(CHUNK, length=33),
        replace(CHUNK, block_checksums=()),
        replace(MERGED, length=0),
    ],
)
def test_record_that_contradicts_itself_is_reported(wrong: ChunkRecord | MergedRun) -> None:
    with pytest.raises(CorruptionError):
        check_extent(wrong)


@given(st.lists(st.binary(max_size=20), max_size=8), st.integers(1, 9))
def test_checksums_grow_as_if_written_at_once(writes: list[bytes], block_length: int) -> None:
    checksums: tuple[int, ...] = ()
    length = 0
    for number, data in enumerate(writes):
        cut = number % 3
        parts: list[Buffer] = [data[:cut], memoryview(data)[cut:]] if number % 2 else [bytearray(data)]
        checksums = extend_checksums(checksums, length, parts, block_length=block_length)
        length += len(data)
    whole = b"".join(writes)
    assert checksums == tuple(crc32c(whole[at : at + block_length], 0) for at in range(0, len(whole), block_length))
    verify_blocks("c", 0, whole, checksums, block_length=block_length)


def test_blocks_around_a_range() -> None:
    assert block_range(0, 1, length=10, block_length=4) == (0, 4)
    assert block_range(3, 5, length=10, block_length=4) == (0, 8)
    assert block_range(4, 8, length=10, block_length=4) == (4, 8)
    assert block_range(8, 9, length=10, block_length=4) == (8, 10)
    assert block_range(0, 10, length=10, block_length=4) == (0, 10)


def test_damaged_block_is_named() -> None:
    data = bytes(10)
    checksums = extend_checksums((), 0, [data], block_length=4)
    with pytest.raises(CorruptionError) as raised:
        verify_blocks("c", 4, b"\0\0\0\0\0\1", checksums, block_length=4)
    assert (raised.value.path, raised.value.offset) == ("c", 8)
