"""Formats of the log in a bucket: written data is read back, every flipped bit is found, later versions are "
"reported."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest

from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError, InvalidArgumentError, LaterVersionError, LogIdentityError
from penstock.segmentstore.tier1.object_log.container_record import ContainerRecord, LogPiece, record_key
from penstock.segmentstore.tier1.object_log.journal_format import (
    FRAMES_MAX,
    HEADER_LENGTH,
    ORDINAL_MAX,
    ObjectKind,
    SectionFrames,
    decode_header,
    decode_section,
    decode_table,
    encode_data,
    encode_seal,
    frame_address,
    journal_key,
    split_address,
)

JOURNAL, NONCE = bytes(range(16)), bytes(range(16, 32))
KEY = journal_key("log", JOURNAL, 5)


def read_object(data: bytes) -> dict[tuple[int, int], list[bytes]]:
    """Return the frames of a data object by container and epoch, as a reader does."""
    header = decode_header(data, KEY, JOURNAL, 5)
    found = {}
    for section in decode_table(header, data, KEY):
        body = data[section.offset : section.offset + section.length]
        found[section.container, section.epoch] = decode_section(section, body, KEY)
    return found


def sample_record() -> ContainerRecord:
    pieces = (LogPiece(3, JOURNAL, 7, 9), LogPiece(4, NONCE, 0))
    return ContainerRecord(2, "cluster-a", NONCE, 5, JOURNAL, next_ordinal=5, pieces=pieces, truncation=99)


def test_frames_come_back_by_container_whatever_their_number_and_length() -> None:
    rng = random.Random(1)
    for _ in range(200):
        sections = [
            SectionFrames(
                container,
                rng.randrange(1 << 40),
                [[rng.randbytes(rng.randrange(50)) for _ in range(rng.randrange(3))] for _ in range(rng.randint(1, 6))],
            )
            for container in rng.sample(range(1000), rng.randint(1, 5))
        ]
        found = read_object(encode_data(JOURNAL, 5, NONCE, sections))
        wanted = {(each.container, each.epoch): [b"".join(frame) for frame in each.frames] for each in sections}
        assert found == wanted


def test_each_flipped_bit_and_each_missing_byte_of_an_object_is_found() -> None:
    data = encode_data(JOURNAL, 5, NONCE, [SectionFrames(1, 2, [[b"one"], []]), SectionFrames(3, 4, [[b"t", b"wo"]])])
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError, match=KEY):
            read_object(bytes(damaged))
    for length in range(len(data)):
        with pytest.raises(CorruptionError, match=KEY):
            read_object(data[:length])


def test_a_seal_is_a_header_and_a_flipped_bit_of_it_is_found() -> None:
    seal = encode_seal(JOURNAL, 5, NONCE)
    header = decode_header(seal, KEY, JOURNAL, 5)
    assert (len(seal), header.kind, header.nonce) == (HEADER_LENGTH, ObjectKind.SEAL, NONCE)
    for bit in range(len(seal) * 8):
        damaged = bytearray(seal)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            decode_header(damaged, KEY, JOURNAL, 5)


@pytest.mark.parametrize(("journal", "slot"), [(NONCE, 5), (JOURNAL, 6)])
def test_a_copy_of_another_slot_or_journal_is_refused(journal: bytes, slot: int) -> None:
    with pytest.raises(CorruptionError, match="it is a copy of slot"):
        decode_header(encode_seal(journal, slot, NONCE), KEY, JOURNAL, 5)


@pytest.mark.parametrize(
    ("offset", "code", "value", "said"), [(8, ">H", 2, "format version 2"), (10, ">B", 3, "kind 3")]
)
def test_a_later_version_or_kind_of_an_object_is_no_damage(offset: int, code: str, value: int, said: str) -> None:
    data = bytearray(encode_seal(JOURNAL, 5, NONCE))
    struct.pack_into(code, data, offset, value)
    struct.pack_into(">I", data, HEADER_LENGTH - 4, crc32c(data[: HEADER_LENGTH - 4], 0))
    with pytest.raises(LaterVersionError, match=said):
        decode_header(data, KEY, JOURNAL, 5)


def test_addresses_grow_with_piece_slot_and_frame() -> None:
    rng = random.Random(2)
    parts = sorted(
        {(rng.randrange(ORDINAL_MAX), rng.randrange(1 << 27), rng.randrange(FRAMES_MAX)) for _ in range(1000)}
    )
    addresses = [frame_address(*each) for each in parts]
    assert addresses == sorted(addresses)
    assert [split_address(address) for address in addresses] == parts
    assert frame_address(ORDINAL_MAX, (1 << 28) - 1, FRAMES_MAX - 1) < 1 << 63
    for impossible in ((ORDINAL_MAX + 1, 0, 0), (0, 1 << 28, 0), (0, 0, FRAMES_MAX), (-1, 0, 0)):
        with pytest.raises(InvalidArgumentError):
            frame_address(*impossible)


def test_a_record_comes_back_and_each_flipped_bit_of_it_is_found() -> None:
    record = sample_record()
    data = record.encode()
    key = record_key("log", 2)
    assert ContainerRecord.decode(data, key, 2, "cluster-a") == record
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError, match=key):
            ContainerRecord.decode(bytes(damaged), key, 2, "cluster-a")
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            ContainerRecord.decode(data[:length], key, 2, "cluster-a")


def with_field(data: bytes, old: bytes, new: bytes) -> bytes:
    """Return the record with a change of its text and the checksum that belongs to it."""
    body = data[:-9].replace(old, new)
    return body + b"%08x\n" % crc32c(body, 0)


def test_a_record_of_a_later_version_another_cluster_or_container_is_refused_as_such() -> None:
    data = sample_record().encode()
    for old, new, said in (
        (b'"v": 1', b'"v": 2', "format version 2"),
        (b'"log_version": 4', b'"log_version": 5', "log version 5"),
    ):
        with pytest.raises(LaterVersionError, match=said):
            ContainerRecord.decode(with_field(data, old, new), "r/2", 2, "cluster-a")
    with pytest.raises(LogIdentityError, match="belongs to cluster cluster-a"):
        ContainerRecord.decode(data, "r/2", 2, "cluster-b")
    with pytest.raises(CorruptionError, match="record of container 2"):
        ContainerRecord.decode(data, "r/3", 3, "cluster-a")
    assert ContainerRecord.decode(data, "r/2", 2, "").cluster_id == "cluster-a"


def test_an_end_drops_an_empty_piece_and_a_truncation_those_before_it() -> None:
    record = sample_record()
    assert record.with_end(5, is_empty=False).pieces[-1] == LogPiece(4, NONCE, 0, 5)
    assert record.with_end(5, is_empty=True).pieces == record.pieces[:1]
    assert record.with_end(0, is_empty=False).pieces == record.pieces[:1]
    assert record.truncated(frame_address(4, 2, 0)).pieces == record.pieces[1:]
    assert record.truncated(frame_address(4, 2, 0)).first_slot(record.pieces[1]) == 2
    assert record.truncated(0) == record
    ended = replace(record, pieces=record.pieces[:1])
    assert ended.with_piece(JOURNAL, 8).pieces[-1] == LogPiece(5, JOURNAL, 8)
    assert ended.with_end(3, is_empty=False) == ended
