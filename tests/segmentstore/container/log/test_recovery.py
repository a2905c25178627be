"""Recovery from logs that were tampered with, cut or repeated. SS-n: docs/spec/segment-store.md."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.model.errors import CorruptionError, LogDisabledError
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.log.frames import RecordReader
from penstock.segmentstore.container.log.operations import (
    NO_VALUE,
    NO_WRITER,
    RECORD_HEADER,
    Checkpoint,
    Deactivate,
    decode_operation,
    encode_append_header,
)
from penstock.segmentstore.container.log.pipeline import completer
from penstock.segmentstore.container.log.recovery import REPEATED_RECORDS_MAX, RepeatedRecords, record_number
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.tier1.durable_log import LogAddress, LogFrame
from support.containers import QUIET, SMALL_CACHE, Incarnations, append, pause_writer, read_all, turns

A, B, C, D = (f"s/t/{number}.#epoch.0" for number in range(4))


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    made = Incarnations()
    yield made
    await made.close()


def add_frame(lives: Incarnations, data: bytes) -> None:
    """Write a frame behind the last one, as a log client would that gave the same frame to the log twice."""
    stored = lives.logs._get(0)
    stored.last_address += 1
    stored.frames.append(LogFrame(LogAddress(stored.last_address), data))


def logged(lives: Incarnations) -> list[object]:
    """Return the operations in the log."""
    reader = RecordReader()
    return [decode_operation(record)[1] for frame in lives.frames() for record in reader.feed(frame)]


def described(state: ContainerState) -> list[object]:
    """Return what appends change of the segments."""
    segments = [state.metadata.get(name) for name in (A, B, C)]
    return [
        (
            (segment.start_offset, segment.length, segment.durable_length, segment.event_count),
            (segment.last_modified_ms, segment.attributes),
        )
        for segment in segments
    ]


async def append_in_one_frame(container: SegmentContainer, name: str, count: int) -> None:
    """Append `count` small records that land in one frame."""
    futures = [asyncio.get_running_loop().create_future() for _ in range(count)]
    for number, future in enumerate(futures):
        container.acceptor.append(container.segment(name), AppendRequest(b"%05d" % number), completer(future))
    await asyncio.gather(*futures)


async def test_a_frame_written_twice_is_recovered_once(lives: Incarnations, caplog: pytest.LogCaptureFixture) -> None:
    """SS-59: exact repeats close by are left out with a warning, also a frame after others, and of long records."""
    container = await lives.start()
    await container.create(A)
    await append_in_one_frame(container, A, 10)
    await append(container, A, bytes(40_000))
    await append(container, A, b"end")
    expected = await read_all(container, A)
    await lives.crash(container)
    tail = lives.frames()[-3:]
    for data in (tail[0], tail[1], tail[2], tail[1]):
        add_frame(lives, data)
    with caplog.at_level(logging.WARNING):
        container = await lives.start()
    assert await read_all(container, A) == expected
    assert container.recovered is not None
    assert container.recovered.repeated_count == 13
    assert "is repeated" in caplog.text
    await append(container, A, b"more")
    container = await lives.restart(container)
    assert await read_all(container, A) == expected + b"more"


@pytest.mark.parametrize(("between", "is_harmless"), [(REPEATED_RECORDS_MAX - 1, True), (REPEATED_RECORDS_MAX, False)])
async def test_a_repetition_counts_as_harmless_only_among_the_last_25_records(
    lives: Incarnations, between: int, is_harmless: bool
) -> None:
    """SS-59: 24 records after the first occurrence it is one of the last 25; 25 after it, it is not: corruption."""
    container = await lives.start()
    await container.create(A)
    await append(container, A, b"first")
    again = lives.frames()[-1]
    await append_in_one_frame(container, A, between)
    expected = await read_all(container, A)
    await lives.crash(container)
    add_frame(lives, again)
    if is_harmless:
        assert await read_all(await lives.start(), A) == expected
        return
    with pytest.raises(CorruptionError):
        await lives.start()
    with pytest.raises(LogDisabledError):
        await lives.start()
    lives.live.clear()


@pytest.mark.parametrize("other", [b"firs", b"first!", b"fiRst"])
async def test_another_record_with_a_known_number_is_corruption(lives: Incarnations, other: bytes) -> None:
    """SS-60: the same sequence number with another length, and even with one other byte."""
    container = await lives.start()
    segment = await container.create(A)
    number = container.pipeline.sequence_number + 1
    await append(container, A, b"first")
    header = encode_append_header(number, segment.id, 0, 1_000, 0, -(1 << 63), bytes(16))
    assert header + b"first" in lives.frames()[-1]
    await lives.crash(container)
    record = header + other
    add_frame(lives, b"\1\3" + len(record).to_bytes(4, "big") + record)
    with pytest.raises(CorruptionError, match="different"):
        await lives.start()
    with pytest.raises(LogDisabledError):
        await lives.start()
    lives.live.clear()


def test_long_records_are_compared_by_length_and_checksum() -> None:
    """SS-60: they are not kept; one changed byte, or one more, is still noticed. So it is behind other records."""
    latest = RepeatedRecords()
    record = RECORD_HEADER.pack(1, 7) + bytes(2_000_000)
    latest.add([RECORD_HEADER.pack(1, 3), record])
    latest.add([RECORD_HEADER.pack(1, 8), RECORD_HEADER.pack(1, 9)])
    latest.check(7, 9, record[:])
    for other in (record[:-1] + b"\1", record + b"\0", record[:-1]):
        with pytest.raises(ValueError, match="different"):
            latest.check(7, 9, other)
    with pytest.raises(ValueError, match="does not follow 9"):
        latest.check(6, 9, record)


def test_bytes_too_short_for_a_record_have_no_number() -> None:
    with pytest.raises(ValueError, match="cannot decode an operation"):
        record_number(b"\1")


async def test_a_record_whose_parts_were_written_twice_is_taken_once(lives: Incarnations) -> None:
    """SS-59: the frame with the first part comes again before the rest: the open record restarts."""
    container = await lives.start()
    await container.create(A)
    data = bytes(range(256)) * 700
    await append(container, A, data)
    await lives.crash(container)
    stored = lives.logs._get(0)
    first = next(number for number, frame in enumerate(stored.frames) if frame.data[1] == 1)
    frames = [frame.data for frame in stored.frames]
    frames.insert(first, frames[first])
    stored.frames = [LogFrame(LogAddress(number), data) for number, data in enumerate(frames, 1)]
    stored.last_address = len(frames)
    container = await lives.start()
    assert await read_all(container, A) == data


async def test_metadata_after_several_checkpoints_equals_the_live_one() -> None:
    """SS-65: segments come, go, leave memory and come again between five checkpoints that all stay in the log."""
    lives = Incarnations(replace(QUIET, checkpoint_log_bytes=1 << 40, checkpoint_log_bytes_idle=1 << 40))
    container = await lives.start()
    await pause_writer(container)

    async def keep_all(address: LogAddress) -> None:
        """Truncate nothing: a log may keep more than it must."""

    container.log.truncate = keep_all  # type: ignore[method-assign]  # To have all five in the log.
    await container.create(D)
    await append(container, D, b"now and then in memory")
    for turn in range(5):
        for name in (A, B, C):
            await container.create(name)
            await append(container, name, b"%d" % turn * (100 + turn))
        await container.update_attribute(A, bytes(16), value=turn, expected=-(1 << 63))
        await container.truncate(A, turn * 10)
        if turn % 2:
            await container.flush()
        container.checkpoints.write()
        await container.pipeline.barrier()
        if turn < 4:
            await container.delete(A)
            await container.merges.merge(B, C)
            await container.seal(B)
            await container.delete(B)
        if turn in (1, 2):
            await container.flush()  # Deleted segments are freed and forgotten; idle ones may leave memory.
            assert await container.catalog.deactivate([await container.find(D)], 1) == 1
        if turn in (2, 3):
            await append(container, (await container.find(D)).name, b"back")
    for segment in container.segments():
        segment.has_record = not segment.is_system  # As every start assumes: the log does not say.
    live = container.state.metadata.snapshot()
    content = {name: await read_all(container, name) for name in (A, B, C, D)}
    assert sum(isinstance(operation, Deactivate) for operation in logged(lives)) == 2
    assert sum(isinstance(operation, Checkpoint) for operation in logged(lives)) >= 5
    container = await lives.restart(container)
    await pause_writer(container)
    assert container.state.metadata.snapshot() == live
    assert {name: await read_all(container, name) for name in (A, B, C, D)} == content
    await lives.close()


@pytest.mark.parametrize("is_truncated", [False, True])
async def test_a_crash_around_the_truncation_of_the_log_is_recovered_from(
    lives: Incarnations, is_truncated: bool
) -> None:
    """SS-68: right before the log is truncated, and right after it, before the container hears that it was."""
    container = await lives.start()
    await pause_writer(container)
    await container.create(A)
    await append(container, A, b"stored")
    await container.flush()
    container.checkpoints.write()
    await container.pipeline.barrier()
    await append(container, A, b" logged")
    frame_count = len(lives.frames())
    truncate = container.log.truncate
    reached = asyncio.Event()

    async def held(address: LogAddress) -> None:
        if is_truncated:
            await truncate(address)
        reached.set()
        await asyncio.Event().wait()

    container.log.truncate = held  # type: ignore[method-assign]  # The moment of the crash.
    container.checkpoints.truncate_log()
    await reached.wait()
    assert (len(lives.frames()) < frame_count) is is_truncated
    container = await lives.restart(container)
    await pause_writer(container)
    assert container.segment(A).storage_length == 6
    assert await read_all(container, A) == b"stored logged"
    await container.flush()
    container.checkpoints.write()
    await container.pipeline.barrier()
    container.checkpoints.truncate_log()
    await turns()
    assert len(lives.frames()) == 1
    container = await lives.restart(container)
    assert await read_all(container, A) == b"stored logged"


async def test_an_append_that_cannot_be_encoded_fails_alone(lives: Incarnations) -> None:
    """SS-48: a large append that would fill frames fails in the encoder; the next one lands where it would have.

    Had its bytes been accepted, the log would have a gap, and the next start would find it corrupt.
    """
    container = await lives.start()
    segment = await container.create(A)
    await append(container, A, b"before")
    frame_count = container.pipeline.frame_count
    heard: list[object] = []
    with pytest.raises(struct.error):
        container.acceptor.append(segment, AppendRequest(bytes(200_000), event_count=1 << 31), heard.append)
    assert not heard
    assert segment.length == 6
    assert container.pipeline.frame_count == frame_count
    await append(container, A, b" after")
    assert await read_all(container, A) == b"before after"
    container = await lives.restart(container)
    assert await read_all(container, A) == b"before after"


async def test_appends_replayed_together_are_as_if_replayed_one_by_one(lives: Incarnations) -> None:
    """Interleaved segments and writers in one frame, appends without a writer, and other operations between them."""
    container = await lives.start()
    rng = random.Random(4)
    segments = [await container.create(name) for name in (A, B, C)]
    writers = [bytes([number]) * 16 for number in range(1, 4)]

    async def truncate_to_the_end(segment: Segment) -> None:
        await container.truncate(segment.name, segment.length)

    for _ in range(10):
        # It runs after the appends of this turn, before their frame is sent.
        truncating = asyncio.ensure_future(truncate_to_the_end(rng.choice(segments)))
        for _ in range(60):
            segment, writer = rng.choice(segments), rng.choice([*writers, NO_WRITER])
            stored = segment.attribute(writer)
            number = NO_VALUE if writer == NO_WRITER else max(stored, 0) + rng.randint(1, 9)
            container.acceptor.append(
                segment,
                AppendRequest(
                    rng.randbytes(rng.choice([0, 1, 30, 3000])),
                    event_count=rng.randint(0, 5),
                    writer_id=writer,
                    event_number=number,
                    first_event_number=number,
                ),
                lambda _: None,
                stored_event_number=stored,
            )
        await truncating
    live = described(container.state)
    content = {name: await read_all(container, name) for name in (A, B, C)}
    assert len({segment.event_count for segment in segments}) == 3
    await lives.crash(container)
    one_by_one = ContainerState(0, Cache(SMALL_CACHE), lives.settings)
    reader = RecordReader()
    for frame in lives.frames():
        for number, operation in map(decode_operation, reader.feed(frame)):
            if isinstance(operation, Checkpoint) and not one_by_one.metadata.by_id:
                list(one_by_one.restore(operation.snapshot))
            else:
                one_by_one.replay(number, operation)
    container = await lives.start()
    assert described(container.state) == live == described(one_by_one)
    assert {name: await read_all(container, name) for name in (A, B, C)} == content


@pytest.mark.parametrize("gap", [1, -1])
async def test_a_gap_within_a_frame_is_corruption(lives: Incarnations, gap: int) -> None:
    """Appends that are replayed together are still inspected one by one: each begins where the one before ended."""
    container = await lives.start()
    segment = await container.create(A)
    await append(container, A, b"first")
    number = container.pipeline.sequence_number
    await lives.crash(container)
    records = [
        encode_append_header(number + 1, segment.id, 5, 1_000, 0, NO_VALUE, NO_WRITER) + b"abc",
        encode_append_header(number + 2, segment.id, 8 + gap, 1_000, 0, NO_VALUE, NO_WRITER) + b"def",
    ]
    add_frame(lives, b"\1" + b"".join(b"\3" + len(record).to_bytes(4, "big") + record for record in records))
    with pytest.raises(CorruptionError, match=f"append at {8 + gap}"):
        await lives.start()
    lives.live.clear()


async def test_an_append_record_that_is_cut_short_is_corruption(lives: Incarnations) -> None:
    container = await lives.start()
    segment = await container.create(A)
    header = encode_append_header(container.pipeline.sequence_number + 1, segment.id, 0, 0, 0, NO_VALUE, NO_WRITER)
    await lives.crash(container)
    add_frame(lives, b"\1\3" + (len(header) - 1).to_bytes(4, "big") + header[:-1])
    with pytest.raises(CorruptionError, match="not an operation record"):
        await lives.start()
    lives.live.clear()
