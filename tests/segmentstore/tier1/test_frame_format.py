"""Golden bytes of the local log's formats, and what the decoders refuse. Byte tables: docs/formats.md, "Tier 1"."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError, LaterVersionError
from penstock.model.segments import Buffer
from penstock.segmentstore.tier1.frame_format import (
    BLOCK_LENGTH,
    FRAME_HEADER_LENGTH,
    FileHeader,
    FrameHeader,
    FrameKind,
    Link,
    block_end,
    decode_file_header,
    decode_frame_header,
    decode_link,
    encode_file_header,
    encode_frame,
    encode_link,
    frame_matches,
    frame_pattern,
    padding,
)

SALT = 0x0102030405060708
HEADER = FileHeader(container_id=3, epoch=7, number=9, salt=SALT, opens_incarnation=True, cluster_id=b"a cluster")
#: Bytes of a header and its checksum: today's, and those of version 1.
HEADER_LENGTH, HEADER_LENGTH_WITHOUT_CLUSTER = 88, 40
FRAME = FrameHeader(FrameKind.DATA, True, False, length=3, offset=4096, epoch=7, sequence=11, synced_offset=4096)


def frame_bytes(frame: FrameHeader, payload: list[Buffer]) -> bytes:
    out: list[Buffer] = []
    encode_frame(SALT, frame, payload, out)
    return b"".join(out)


def header_block(body: bytes) -> bytes:
    return (body + crc32c(body, 0).to_bytes(4, "big")).ljust(BLOCK_LENGTH, b"\0")


def test_file_header_bytes_do_not_change() -> None:
    """Golden bytes: files of this version must stay readable."""
    data = encode_file_header(HEADER)
    body = bytes.fromhex("504e53544b4c4f47 0002 0001 00000003 0000000000000007 00000009 0102030405060708")
    body += b"a cluster".ljust(48, b"\0")
    assert data == header_block(body)
    assert len(body) + 4 == HEADER_LENGTH
    assert decode_file_header(data, "file") == HEADER
    assert crc32c(b"123456789", 0) == 0xE3069283


def test_file_headers_without_a_cluster_stay_readable() -> None:
    """Golden bytes of version 1."""
    body = bytes.fromhex("504e53544b4c4f47 0001 0001 00000003 0000000000000007 00000009 0102030405060708")
    assert len(body) + 4 == HEADER_LENGTH_WITHOUT_CLUSTER
    expected = FileHeader(container_id=3, epoch=7, number=9, salt=SALT, opens_incarnation=True)
    assert decode_file_header(header_block(body), "file") == expected


def test_frame_bytes_do_not_change() -> None:
    """Golden bytes of a frame that ends a batch: padded with zeros to the block."""
    data = frame_bytes(FRAME, [b"abc"])
    head = bytes.fromhex(
        "50536672 0102030405060708 01 01 0000 00000003 00001000 0000000000000007 000000000000000b 00001000"
    )
    assert data[:44] == head
    assert data[44:48] == crc32c(head + b"abc", 0).to_bytes(4, "big")
    assert data[48:51] == b"abc"
    assert len(data) == BLOCK_LENGTH
    assert not any(data[51:])
    assert data.startswith(frame_pattern(SALT))
    assert decode_frame_header(data, SALT, 4096) == FRAME
    assert frame_matches(data[:FRAME_HEADER_LENGTH], b"abc")


def test_payload_may_come_in_any_buffers() -> None:
    """Small and large, joined or not, the bytes are the same."""
    large = bytes(range(256)) * 1000
    frame = replace(FRAME, length=len(large))
    whole = frame_bytes(frame, [large])
    assert frame_bytes(frame, [memoryview(large)[:1000], bytearray(large[1000:])]) == whole
    frame = replace(FRAME, length=4)
    assert frame_bytes(frame, [b"a", memoryview(b"bc"), bytearray(b"d")]) == frame_bytes(frame, [b"abcd"])
    assert frame_bytes(replace(FRAME, length=0), []) == frame_bytes(replace(FRAME, length=0), [b""])


def test_frames_follow_each_other_within_a_batch_and_start_a_block_after_it() -> None:
    """The position of the next frame, also when a frame ends exactly on a block boundary."""
    assert replace(FRAME, is_last_of_batch=False).next_offset == 4096 + FRAME_HEADER_LENGTH + 3
    assert FRAME.next_offset == 8192
    exact = replace(FRAME, length=BLOCK_LENGTH - FRAME_HEADER_LENGTH)
    assert exact.next_offset == 8192
    assert replace(exact, length=exact.length + 1).next_offset == 12288
    assert [block_end(offset) for offset in (0, 1, 4096, 4097)] == [0, 4096, 4096, 8192]
    assert [len(padding(offset)) for offset in (0, 1, 4095, 4096)] == [0, 4095, 1, 0]


def test_frames_of_another_file_or_place_are_not_frames() -> None:
    """Wrong salt, wrong offset, short, zeros, unknown kind, reserved bits."""
    data = frame_bytes(FRAME, [b"abc"])
    assert decode_frame_header(data, SALT + 1, 4096) is None
    assert decode_frame_header(data, SALT, 8192) is None
    assert decode_frame_header(data[: FRAME_HEADER_LENGTH - 1], SALT, 4096) is None
    assert decode_frame_header(bytes(BLOCK_LENGTH), SALT, 4096) is None
    for index, value in ((12, 0), (12, 4), (14, 1), (15, 1)):
        changed = bytearray(data)
        changed[index] = value
        assert decode_frame_header(bytes(changed), SALT, 4096) is None


def test_any_changed_byte_of_a_frame_breaks_it() -> None:
    """Header and payload alike."""
    data = frame_bytes(FRAME, [b"abc"])
    for index in range(FRAME_HEADER_LENGTH + 3):
        changed = bytearray(data)
        changed[index] ^= 0x10
        frame = decode_frame_header(bytes(changed), SALT, 4096)
        assert frame is None or not frame_matches(bytes(changed[:48]), bytes(changed[48 : 48 + frame.length]))


def test_any_changed_byte_of_a_file_header_is_named() -> None:
    """Every flipped bit is corruption, in the version number too; a short file is; a whole later version is not."""
    data = encode_file_header(HEADER)
    for index in range(HEADER_LENGTH):
        for bit in range(8):
            changed = bytearray(data)
            changed[index] ^= 1 << bit
            with pytest.raises(CorruptionError):
                decode_file_header(bytes(changed), "file")
    with pytest.raises(CorruptionError, match="needs 4096 bytes"):
        decode_file_header(data[:-1], "file")
    with pytest.raises(LaterVersionError, match="format version 3, this version reads 1 to 2"):
        decode_file_header(header_block(data[:9] + b"\x03" + data[10 : HEADER_LENGTH - 4]), "file")


def test_link_round_trip_and_bad_length() -> None:
    """Golden bytes of a link."""
    link = Link(epoch=5, number=6, end=8192)
    assert encode_link(link).hex() == "0000000000000005000000060000000000002000"
    assert decode_link(encode_link(link)) == link
    with pytest.raises(ValueError):
        decode_link(b"x" * 19)
