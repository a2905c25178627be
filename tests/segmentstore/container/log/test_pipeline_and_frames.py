"""Frames and the operation pipeline by themselves. SS-n: docs/spec/segment-store.md."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest

from penstock.model.errors import ContainerOfflineError, LogClosedError, OutcomeUnknownError, StorageError
from penstock.model.segments import Buffer
from penstock.segmentstore.container.events import ContainerEvents
from penstock.segmentstore.container.log.frames import ENTRY_HEADER, FIRST, LAST, FrameBuilder, RecordReader
from penstock.segmentstore.container.log.operations import (
    NO_WRITER,
    Append,
    Delete,
    UpdateAttributes,
    decode_operation,
    encode_append_header,
    encode_operation,
)
from penstock.segmentstore.container.log.pipeline import CheckpointPosition, OperationPipeline
from penstock.segmentstore.tier1.durable_log import LogAddress
from support.containers import turns


def entry(flags: int, data: bytes) -> bytes:
    return ENTRY_HEADER.pack(flags, len(data)) + data


def test_records_of_any_length_come_back() -> None:
    """Random records through small frames: each frame within its bound, each record whole and in order."""
    rng = random.Random(3)
    for _ in range(50):
        length_max = rng.choice([100, 200, 1000])
        builder = FrameBuilder(length_max)
        records = [rng.randbytes(rng.choice([1, 20, 90, 500, 3000])) for _ in range(30)]
        frames: list[bytes] = []
        for record in records:
            header, data = record[: len(record) // 2], record[len(record) // 2 :]
            if builder.fits(len(record)):
                builder.add(header, data, len(record))
            else:
                frames += [b"".join(parts) for parts, _ in builder.add_spanning(header, data)]
        frames.append(b"".join(builder.take()[0]))
        assert max(map(len, frames)) <= length_max
        reader = RecordReader()
        assert [bytes(found) for frame in frames for found in reader.feed(frame)] == records


def test_a_record_that_was_never_completed_is_dropped() -> None:
    """SS-55, SS-56: its first part, then other records, twice; also in the middle of its parts."""
    reader = RecordReader()
    assert reader.feed(b"\1" + entry(FIRST, b"lost")) == []
    assert reader.feed(b"\1" + entry(FIRST, b"lost too") + entry(FIRST | LAST, b"a")) == [b"a"]
    assert reader.feed(b"\1" + entry(FIRST, b"b1")) == []
    assert reader.feed(b"\1" + entry(0, b"b2")) == []
    assert reader.feed(b"\1" + entry(LAST, b"b3")) == [b"b1b2b3"]


def test_the_rest_of_a_truncated_record_is_skipped() -> None:
    """SS-57: only at the very start."""
    reader = RecordReader()
    assert reader.feed(b"\1" + entry(0, b"x") + entry(LAST, b"y") + entry(FIRST | LAST, b"a")) == [b"a"]
    with pytest.raises(ValueError, match="never began"):
        reader.feed(b"\1" + entry(LAST, b"y"))


@pytest.mark.parametrize(
    "frame", [b"", b"\2", b"\1\3\0", b"\1" + entry(4, b"x"), b"\1" + entry(3, b"xyz")[:-1], b"\1" + entry(3, b"")]
)
def test_bytes_that_are_no_frame_are_refused(frame: bytes) -> None:
    with pytest.raises(ValueError, match=r"frame|entry"):
        RecordReader().feed(frame)


@pytest.mark.parametrize("record", [b"", b"\1", b"\1" + bytes(20), b"\x63" + bytes(8), b"\x0a" + bytes(8) + b"\xc1"])
def test_bytes_that_are_no_operation_are_refused(record: bytes) -> None:
    with pytest.raises(ValueError, match="operation"):
        decode_operation(record)


def test_operations_come_back() -> None:
    header = encode_append_header(7, 1, 2, 3, 4, -(1 << 63), NO_WRITER)
    number, operation = decode_operation(header + b"data")
    assert number == 7
    assert isinstance(operation, Append)
    assert (operation.event_number, bytes(operation.data)) == (-(1 << 63), b"data")
    update = UpdateAttributes(5, {b"a" * 16: -3})
    assert decode_operation(encode_operation(8, update)) == (8, update)


class ManualLog:
    """A log whose appends end when the test says so, in any order."""

    frame_length_max = 1000

    def __init__(self) -> None:
        self.on_synced: Callable[[], None] = lambda: None
        self.futures: list[asyncio.Future[LogAddress]] = []
        self.is_closed = False

    def append(self, buffers: Sequence[Buffer], length: int) -> asyncio.Future[LogAddress]:
        if self.is_closed:
            raise LogClosedError("closed")
        assert sum(map(len, buffers)) == length
        self.futures.append(asyncio.get_running_loop().create_future())
        return self.futures[-1]


class Bench:
    """A pipeline over a `ManualLog` that notes what it hears."""

    def __init__(self) -> None:
        self.log = ManualLog()
        self.failures: list[BaseException] = []
        self.heard: list[tuple[int, BaseException | None]] = []
        self.events = ContainerEvents()
        self.pipeline = OperationPipeline(
            0,
            self.log,  # type: ignore[arg-type]  # What the pipeline uses of a log.
            last_sequence_number=0,
            last_address=None,
            fail=self.failures.append,
            events=self.events,
        )

    async def add(self, name: int) -> None:
        """Add an operation in a frame of its own."""
        self.pipeline.add_operation(Delete(name), lambda error: self.heard.append((name, error)))
        await turns(8)


async def test_frames_acknowledged_out_of_order_commit_in_order() -> None:
    """SS-51: 2 before 1: both complete, 1 first. The late 1 completes nothing twice and moves nothing back."""
    bench = Bench()
    for name in (1, 2, 3):
        await bench.add(name)
    bench.log.futures[1].set_result(LogAddress(2))
    await turns()
    assert bench.heard == [(1, None), (2, None)]
    assert bench.pipeline.durable_sequence_number == 2
    bench.log.futures[0].set_result(LogAddress(1))
    await turns()
    assert len(bench.heard) == 2
    assert bench.pipeline.durable_sequence_number == 2
    bench.log.futures[2].set_result(LogAddress(3))
    await asyncio.wait_for(bench.pipeline.close(), 60)
    assert bench.heard == [(1, None), (2, None), (3, None)]


async def test_durable_operations_are_reported_in_the_turn_of_the_sync() -> None:
    """Callers first, in order, then `on_durable`, once. The futures' callbacks, a turn later, complete none twice."""
    bench = Bench()
    pipeline = bench.pipeline
    told: list[list[int]] = []
    bench.events.on_durable = lambda: told.append([name for name, _ in bench.heard])
    for name in (1, 2, 3):
        await bench.add(name)
    bench.log.futures[0].set_result(LogAddress(1))
    bench.log.futures[1].set_result(LogAddress(2))
    bench.log.on_synced()
    assert bench.heard == [(1, None), (2, None)]
    assert told == [[1, 2]]
    assert pipeline.frames_in_flight == 1
    assert pipeline.durable_sequence_number == 2
    await turns()
    bench.log.on_synced()
    assert (len(bench.heard), len(told), pipeline.frames_in_flight) == (2, 1, 1)
    bench.log.futures[2].set_exception(StorageError("no"))
    bench.log.on_synced()
    assert [type(error) for _, error in bench.heard] == [type(None), type(None), OutcomeUnknownError]
    assert [str(error) for error in bench.failures] == ["no"]


async def test_a_failing_durability_callback_does_not_stop_the_log() -> None:
    """The log continues after its callback raised; the event loop's exception handler gets the error."""
    bench = Bench()
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    def broken() -> None:
        raise ZeroDivisionError

    bench.events.on_durable = broken
    await bench.add(1)
    bench.log.futures[0].set_result(LogAddress(1))
    bench.log.on_synced()
    assert bench.heard == [(1, None)]
    assert [type(each["exception"]) for each in told] == [ZeroDivisionError]
    assert "after operations became durable" in str(told[0]["message"])
    assert bench.pipeline.error is None


async def test_after_a_failed_frame_nothing_is_acknowledged() -> None:
    """SS-49: a later frame that succeeded does not count; what was never given to the log is refused."""
    bench = Bench()
    await bench.add(1)
    await bench.add(2)
    bench.log.futures[0].set_exception(StorageError("no"))
    bench.pipeline.add_operation(Delete(3), lambda error: bench.heard.append((3, error)))
    bench.log.futures[1].set_result(LogAddress(2))
    await turns()
    assert {name: type(error) for name, error in bench.heard} == {
        1: OutcomeUnknownError,
        2: OutcomeUnknownError,
        3: ContainerOfflineError,
    }
    assert [str(error) for error in bench.failures] == ["no"]
    with pytest.raises(ContainerOfflineError):
        bench.pipeline.check_open()
    with pytest.raises(ContainerOfflineError):
        await bench.pipeline.barrier()


async def test_an_acknowledgement_after_the_end_changes_nothing() -> None:
    """SS-52: the pipeline was abandoned; the log answers later."""
    bench = Bench()
    await bench.add(1)
    bench.pipeline.abandon("stopped")
    assert [type(error) for _, error in bench.heard] == [OutcomeUnknownError]
    bench.log.futures[0].set_result(LogAddress(1))
    await turns()
    assert len(bench.heard) == 1
    assert bench.pipeline.durable_sequence_number == 0


async def test_a_failing_callback_ends_the_container_and_fails_the_other_operations() -> None:
    """The log has the record, memory is in doubt; every caller ends, the broken one included."""
    bench = Bench()
    outcomes: list[BaseException | None] = []

    def broken(error: BaseException | None) -> None:
        outcomes.append(error)
        if error is None:
            raise ZeroDivisionError

    bench.pipeline.add_operation(Delete(1), broken)
    await bench.add(2)
    bench.log.futures[0].set_result(LogAddress(1))
    await turns()
    assert [type(outcome) for outcome in outcomes] == [type(None), OutcomeUnknownError]
    assert [type(error) for _, error in bench.heard] == [OutcomeUnknownError]
    assert isinstance(bench.failures[0], ZeroDivisionError)


async def test_a_checkpoint_begins_a_frame_and_notes_the_one_before() -> None:
    """The address is that of the last frame before it, also while that one is still in flight."""
    bench = Bench()
    marks: list[CheckpointPosition] = []
    await bench.add(1)
    mark = bench.pipeline.begin_checkpoint()
    bench.pipeline.add_operation(Delete(9), lambda _: marks.append(mark))
    await turns(8)
    bench.log.futures[0].set_result(LogAddress(41))
    bench.log.futures[1].set_result(LogAddress(42))
    await turns()
    assert [(mark.sequence_number, mark.address) for mark in marks] == [(2, 41)]


async def test_outstanding_bytes_are_counted_and_reported_when_they_shrink() -> None:
    """Bytes in the frame being gathered and in the log's hands; a call each time, the end included."""
    bench = Bench()
    pipeline = bench.pipeline
    told: list[int] = []
    bench.events.on_shrunk = lambda: told.append(pipeline.outstanding_bytes)
    assert (pipeline.outstanding_bytes, pipeline.frames_in_flight) == (0, 0)
    pipeline.add_operation(Delete(1), lambda _: None)
    length = pipeline.outstanding_bytes
    assert 10 < length < 60
    await turns(8)
    assert (pipeline.outstanding_bytes, pipeline.frames_in_flight) == (length, 1)
    for name in (2, 3):
        await bench.add(name)
    assert pipeline.outstanding_bytes == 3 * length
    assert pipeline.frames_in_flight == 3
    assert told == []
    bench.log.futures[0].set_result(LogAddress(1))
    await turns()
    bench.log.futures[1].set_result(LogAddress(2))
    await turns()
    assert told == [2 * length, length]
    bench.log.futures[2].set_exception(StorageError("no"))
    await turns()
    assert told[2:]
    assert told[-1] == 0


async def test_waits_for_room_end_when_the_pipeline_is_abandoned() -> None:
    """Otherwise a stopped container would hold a connection without end."""
    bench = Bench()
    await bench.add(1)
    told: list[int] = []
    bench.events.on_shrunk = lambda: told.append(1)
    bench.pipeline.abandon("stopped")
    assert told == [1]


async def test_an_accepted_operation_that_cannot_be_encoded_ends_the_container() -> None:
    """SS-48, for rare operations: memory is ahead of what the log can say; what was before it is not harmed."""
    bench = Bench()
    bench.pipeline.add_operation(Delete(1), lambda error: bench.heard.append((1, error)))
    with pytest.raises(OverflowError):
        bench.pipeline.add_operation(Delete(1 << 64), lambda error: bench.heard.append((2, error)))
    assert isinstance(bench.failures[0], OverflowError)
    assert [(name, type(error)) for name, error in bench.heard] == [(1, ContainerOfflineError)]
    with pytest.raises(ContainerOfflineError):
        bench.pipeline.check_open()
    await turns()
    assert not bench.log.futures


async def test_closing_twice_at_once_waits_for_the_same_frames() -> None:
    bench = Bench()
    await bench.add(1)
    closing = [asyncio.ensure_future(bench.pipeline.close()) for _ in range(2)]
    await turns(8)
    bench.log.futures[0].set_result(LogAddress(1))
    await asyncio.wait_for(asyncio.gather(*closing), 60)
    assert bench.heard == [(1, None)]
