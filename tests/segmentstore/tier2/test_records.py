"""Records of long-term storage: golden bytes, every damaged byte, every invariant of section 8.4."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError, InvalidArgumentError
from penstock.model.segments import Buffer
from penstock.segmentstore.tier2.block_checksums import block_range, extend_checksums, verify_blocks
from penstock.segmentstore.tier2.records import (
    ChunkRecord,
    Record,
    SegmentRecord,
    check,
    check_chunk,
    decode_record,
    empty_segment,
    encode_record,
)

SEGMENT = SegmentRecord(
    name="s/a/0",
    start_offset=5,
    length=30,
    first_chunk="c1",
    last_chunk="c2",
    first_chunk_start=3,
    last_chunk_start=20,
    chunk_count=2,
    chunk_length_max=17,
    owner_epoch=4,
    last_modified_ms=1234,
    is_sealed=True,
    is_ownership_changed=True,
)
CHUNK = ChunkRecord(
    name="c1", length=17, next_chunk="c2", epoch=4, block_length=16, block_checksums=(0x01020304, 0xFFFEFDFC)
)
LAST = ChunkRecord(name="c2", length=10, next_chunk=None, epoch=4, block_length=16, block_checksums=(7,))

# Written by hand from the byte table in docs/formats.md.
GOLDEN = [
    (
        SEGMENT,
        "01 01 0f"
        "0000000000000005 000000000000001e 0000000000000003 0000000000000014"
        "0000000000000002 0000000000000011 0000000000000004 00000000000004d2"
        "0005 732f612f30 0002 6331 0002 6332",
    ),
    (CHUNK, "01 02 01 0000000000000011 0000000000000004 00000010 00000002 0002 6331 0002 6332 01020304 fffefdfc"),
    (
        replace(LAST, is_active=False),
        "01 02 00 000000000000000a 0000000000000004 00000010 00000001 0002 6332 0000 00000007",
    ),
]


@pytest.mark.parametrize(("record", "expected"), GOLDEN)
def test_record_has_its_golden_bytes(record: Record, expected: str) -> None:
    body = bytes.fromhex(expected)
    golden = body + struct.pack(">I", crc32c(body, 0))
    assert encode_record(record) == golden
    assert decode_record(record.name, golden) == record


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
NUMBERS = st.integers(0, (1 << 63) - 1)


@given(
    st.builds(
        SegmentRecord,
        name=NAMES,
        start_offset=NUMBERS,
        length=NUMBERS,
        first_chunk=st.none() | NAMES,
        last_chunk=st.none() | NAMES,
        first_chunk_start=NUMBERS,
        last_chunk_start=NUMBERS,
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
        name=NAMES,
        length=NUMBERS,
        next_chunk=st.none() | NAMES,
        epoch=NUMBERS,
        block_length=st.integers(0, 2**32 - 1),
        block_checksums=st.lists(st.integers(0, 2**32 - 1), max_size=20).map(tuple),
        is_active=st.booleans(),
    )
)
def test_every_record_comes_back_as_it_was(record: Record) -> None:
    assert decode_record(record.name, encode_record(record)) == record


@pytest.mark.parametrize("record", [SEGMENT, CHUNK])
def test_every_damaged_or_missing_byte_is_reported(record: Record) -> None:
    good = encode_record(record)
    for at in range(len(good)):
        for bit in (1, 0x10, 0x80):
            bad = bytearray(good)
            bad[at] ^= bit
            with pytest.raises(CorruptionError):
                decode_record(record.name, bytes(bad))
        with pytest.raises(CorruptionError):
            decode_record(record.name, good[:at])
    with pytest.raises(CorruptionError):
        decode_record(record.name, good + b"\0")
    with pytest.raises(CorruptionError, match="about"):
        decode_record("another", good)


@pytest.mark.parametrize("record", [SEGMENT, CHUNK])
def test_bad_fields_under_a_good_checksum_are_reported(record: Record) -> None:
    body = encode_record(record)[:-4]
    bad_bodies = [
        b"\x02" + body[1:],
        body[:1] + b"\x03" + body[2:],
        body + b"\0",
        *(body[:length] for length in range(3, len(body))),
    ]
    if isinstance(record, SegmentRecord):
        names = body.index(b"\0\5s/a/0")
        bad_bodies += [body[:names] + b"\0\0" + body[names + 7 :], body[: names + 2] + b"\xff" + body[names + 3 :]]
    for bad in bad_bodies:
        with pytest.raises(CorruptionError):
            decode_record(record.name, bad + struct.pack(">I", crc32c(bad, 0)))


def test_overlong_name_is_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        encode_record(replace(CHUNK, next_chunk="x" * 65536))


def test_valid_records_pass_the_check() -> None:
    check(SEGMENT)
    check(SEGMENT, LAST)
    check(empty_segment("s", 7, epoch=1, chunk_length_max=9, now_ms=0))
    check(replace(SEGMENT, first_chunk="c2", first_chunk_start=20, start_offset=30, chunk_count=1), LAST)
    check_chunk(CHUNK)
    check_chunk(replace(CHUNK, length=32))


@pytest.mark.parametrize(
    "wrong",
    [
        replace(SEGMENT, first_chunk_start=-1),
        replace(SEGMENT, first_chunk_start=6),
        replace(SEGMENT, start_offset=31),
        replace(SEGMENT, last_chunk_start=2),
        replace(SEGMENT, last_chunk_start=31),
        replace(SEGMENT, chunk_count=-1),
        replace(SEGMENT, chunk_count=0),
        replace(SEGMENT, chunk_count=1),
        replace(SEGMENT, chunk_length_max=0),
        replace(SEGMENT, first_chunk=None),
        replace(SEGMENT, last_chunk=None),
        replace(SEGMENT, last_chunk="c1"),
        replace(SEGMENT, last_chunk_start=3),
        replace(SEGMENT, chunk_count=0, first_chunk=None, last_chunk=None),
        replace(empty_segment("s", 7, epoch=1, chunk_length_max=9, now_ms=0), length=8),
        replace(empty_segment("s", 7, epoch=1, chunk_length_max=9, now_ms=0), last_chunk="c1"),
    ],
)
def test_broken_segment_invariant_is_reported(wrong: SegmentRecord) -> None:
    with pytest.raises(CorruptionError, match="does not hold"):
        check(wrong)


@pytest.mark.parametrize("wrong", [replace(LAST, name="c3"), replace(LAST, next_chunk="c3"), replace(LAST, length=9)])
def test_last_chunk_that_does_not_fit_is_reported(wrong: ChunkRecord) -> None:
    with pytest.raises(CorruptionError, match="does not hold"):
        check(SEGMENT, wrong)
    with pytest.raises(CorruptionError, match="does not hold"):
        check(empty_segment("s", 7, epoch=1, chunk_length_max=9, now_ms=0), wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(CHUNK, length=0),
        replace(CHUNK, block_length=0),
        replace(CHUNK, length=16),
        replace(CHUNK, length=33),
        replace(CHUNK, block_checksums=()),
    ],
)
def test_chunk_record_that_contradicts_itself_is_reported(wrong: ChunkRecord) -> None:
    with pytest.raises(CorruptionError):
        check_chunk(wrong)


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
    assert checksums == tuple(
        crc32c(whole[at : at + block_length], 0) for at in range(0, len(whole), block_length)
    )
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
