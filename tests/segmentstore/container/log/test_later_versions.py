"""A container's log that a later version of Penstock has written to: refused, not claimed, not disabled, not damaged.

What each version reads: docs/formats.md, "Compatibility".
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from penstock.model.errors import CorruptionError, LaterVersionError
from penstock.segmentstore.container.log import frames as frames_module
from penstock.segmentstore.container.log import operations
from penstock.segmentstore.container.log.frames import FIRST, LAST, RecordReader, check_later_formats
from penstock.segmentstore.container.log.later_formats import LaterFormats
from penstock.segmentstore.container.log.operations import (
    RECORD_HEADER,
    TYPE_MAX,
    Checkpoint,
    UpdateAttributes,
    UpdatePinned,
    decode_operation,
    encode_operation,
)
from penstock.segmentstore.container.metadata import SNAPSHOT_VERSION, ContainerMetadata
from penstock.segmentstore.container.metadata import decode_record as decode_segment_record
from penstock.segmentstore.later_format import LaterFormatError
from penstock.segmentstore.tier1.durable_log import LogAddress, LogFrame
from support.containers import Incarnations, append, read_all

A = "s/t/0.#epoch.0"
ATTRIBUTE = b"a" * 16


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    made = Incarnations()
    yield made
    await made.close()


def frame_of(record: bytes, *, version: int = 1, flags: int = FIRST | LAST) -> bytes:
    return struct.pack(">BBI", version, flags, len(record)) + record


def add_frame(lives: Incarnations, data: bytes) -> None:
    stored = lives.logs._get(0)
    stored.last_address += 1
    stored.frames.append(LogFrame(LogAddress(stored.last_address), data))


def log_state(lives: Incarnations) -> tuple[int, bool, list[bytes]]:
    stored = lives.logs._get(0)
    return stored.epoch, stored.is_enabled, [frame.data for frame in stored.frames]


async def written_log(lives: Incarnations) -> tuple[int, int]:
    """Leave a log with a segment of some bytes; return the id of the segment and the number of the last record."""
    container = await lives.start()
    segment = await container.create(A)
    await append(container, A, b"acknowledged")
    await lives.stop(container)
    reader = RecordReader()
    records = [record for frame in lives.frames() for record in reader.feed(frame)]
    return segment.id, decode_operation(records[-1])[0]


async def test_a_kind_of_operation_that_a_later_version_has_added_is_refused_before_the_claim(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the version that knows the kind the log works, with all that it had and the operation."""
    segment_id, number = await written_log(lives)
    kind = TYPE_MAX + 1
    body = msgspec.msgpack.encode(UpdateAttributes(segment_id, {ATTRIBUTE: 7}))
    add_frame(lives, frame_of(RECORD_HEADER.pack(kind, number + 1) + body))
    before = log_state(lives)
    for _ in range(2):
        with pytest.raises(LaterVersionError, match=f"operation type {kind}, this version reads 1 to {TYPE_MAX}"):
            await lives.start()
        lives.live.clear()
        assert log_state(lives) == before, "not claimed, not disabled"
    monkeypatch.setattr(operations, "TYPE_MAX", kind)
    monkeypatch.setattr(frames_module, "TYPE_MAX", kind)
    monkeypatch.setitem(operations._decoders, kind, msgspec.msgpack.Decoder(UpdateAttributes))
    container = await lives.start()
    assert await read_all(container, A) == b"acknowledged"
    assert container.segment(A).attributes[ATTRIBUTE] == 7


async def test_frames_of_a_later_version_are_refused_before_the_claim(lives: Incarnations) -> None:
    await written_log(lives)
    add_frame(lives, frame_of(b"anything", version=2))
    before = log_state(lives)
    with pytest.raises(LaterVersionError, match="frame format version 2, this version reads 1"):
        await lives.start()
    lives.live.clear()
    assert log_state(lives) == before
    del lives.logs._get(0).frames[-1]
    assert await read_all(await lives.start(), A) == b"acknowledged"


def with_snapshots(lives: Incarnations, change: Callable[[list[Any]], list[Any]]) -> None:
    """Change the fields of each checkpoint's snapshot in the log."""
    frames = lives.logs._get(0).frames
    before = list(frames)
    for index, frame in enumerate(before):
        (record,) = RecordReader().feed(frame.data)
        number, operation = decode_operation(record)
        if isinstance(operation, Checkpoint):
            snapshot = msgspec.msgpack.encode(change(msgspec.msgpack.decode(operation.snapshot)))
            changed = encode_operation(number, msgspec.structs.replace(operation, snapshot=snapshot))
            frames[index] = LogFrame(frame.address, frame_of(changed))
    assert frames != before


async def test_a_checkpoint_of_a_later_version_is_refused_before_the_claim(lives: Incarnations) -> None:
    """The version that wrote it opens the log as if nothing had been."""
    await written_log(lives)
    stored = lives.logs._get(0)
    kept = list(stored.frames)
    # Other fields may have other types, too.
    with_snapshots(lives, lambda fields: [SNAPSHOT_VERSION + 1, "other fields", *fields[2:]])
    before = log_state(lives)
    for _ in range(2):
        with pytest.raises(LaterVersionError, match=f"checkpoint version {SNAPSHOT_VERSION + 1}"):
            await lives.start()
        lives.live.clear()
        assert log_state(lives) == before, "not claimed, not disabled"
    stored.frames = kept
    assert await read_all(await lives.start(), A) == b"acknowledged"


@pytest.mark.parametrize("is_checkpoint", [True, False])
async def test_a_mode_of_layout_of_a_later_version_is_refused_before_the_claim(
    lives: Incarnations, is_checkpoint: bool
) -> None:
    _, number = await written_log(lives)
    stored = lives.logs._get(0)
    kept = list(stored.frames)
    if is_checkpoint:
        with_snapshots(lives, lambda fields: [*fields[:5], fields[5] | {b"\0layout": b"other"}])
    else:
        add_frame(lives, frame_of(encode_operation(number + 1, UpdatePinned({b"\0layout": b"other", b"x": None}))))
    before = log_state(lives)
    with pytest.raises(LaterVersionError, match=r"mode of layout other, this version reads .*install_new"):
        await lives.start()
    lives.live.clear()
    assert log_state(lives) == before, "not claimed, not disabled"
    stored.frames = kept
    assert await read_all(await lives.start(), A) == b"acknowledged"


async def test_a_retired_kind_is_damage_and_no_later_version(lives: Incarnations) -> None:
    _, number = await written_log(lives)
    add_frame(lives, frame_of(RECORD_HEADER.pack(5, number + 1)))
    with pytest.raises(CorruptionError, match="operation type 5 is retired"):
        await lives.start()
    lives.live.clear()
    assert not lives.logs._get(0).is_enabled


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        frame_of(RECORD_HEADER.pack(TYPE_MAX, 1)),
        frame_of(bytes([TYPE_MAX + 1]) + b"the rest of a record", flags=LAST),
        frame_of(bytes([TYPE_MAX + 1]) + b"the midst of a record", flags=0),
        frame_of(RECORD_HEADER.pack(1, 1)) + b"\x03\xff\xff\xff\xff",
    ],
)
def test_the_check_before_the_claim_leaves_all_else_to_the_replay(frame: bytes) -> None:
    check_later_formats(frame)


@pytest.mark.parametrize(
    "frame",
    [
        frame_of(RECORD_HEADER.pack(TYPE_MAX, 1)) + frame_of(RECORD_HEADER.pack(TYPE_MAX + 1, 2))[1:],
        frame_of(RECORD_HEADER.pack(TYPE_MAX + 1, 2), flags=FIRST),
        frame_of(RECORD_HEADER.pack(255, 2)),
    ],
)
def test_the_check_before_the_claim_finds_a_later_kind_in_every_place(frame: bytes) -> None:
    with pytest.raises(LaterFormatError, match="operation type"):
        check_later_formats(frame)


def checkpoint_record(change: Callable[[list[Any]], list[Any]]) -> bytes:
    fields = change([SNAPSHOT_VERSION, 0, 1, [], [], {}])
    return encode_operation(1, Checkpoint(1, 0, True, msgspec.msgpack.encode(fields)))


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: [SNAPSHOT_VERSION + 1, *fields[1:]],
        lambda fields: [*fields[:5], {b"\0layout": b"other"}],
    ],
)
def test_the_check_before_the_claim_reads_a_checkpoint_of_several_frames(
    change: Callable[[list[Any]], list[Any]],
) -> None:
    record = checkpoint_record(change)
    parts = [record[:12], record[12:20], record[20:]]
    frames = [frame_of(part, flags=flags) for part, flags in zip(parts, (FIRST, 0, LAST), strict=True)]
    check = LaterFormats()
    check(frames[0])
    check(frames[1])
    with pytest.raises(LaterFormatError):
        check(frames[2])
    # A part without its beginning, and one whose end is missing, are left to the replay.
    check = LaterFormats()
    for frame in (frames[2], frames[0], frames[1], b"", frames[2], frame_of(b"\x13damage")):
        check(frame)


def test_a_segment_record_of_a_later_version_is_distinguished_from_damage() -> None:
    with pytest.raises(LaterFormatError, match="segment record version 2"):
        decode_segment_record(msgspec.msgpack.encode([2, {"other": "fields"}]))
    with pytest.raises(ValueError, match="not a segment record") as damage:
        decode_segment_record(msgspec.msgpack.encode([1, {"other": "fields"}]))
    assert not isinstance(damage.value, LaterFormatError)


def test_a_checkpoint_of_a_version_that_never_was_is_damage() -> None:
    metadata = ContainerMetadata(0, lambda segment: None)
    fields = msgspec.msgpack.decode(metadata.snapshot())
    with pytest.raises(ValueError, match="checkpoint version 0 is not read") as damage:
        list(metadata.restore(msgspec.msgpack.encode([0, *fields[1:]])))
    assert not isinstance(damage.value, LaterFormatError)
