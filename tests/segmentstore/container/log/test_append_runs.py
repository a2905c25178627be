"""Appends replayed in runs: the state is that of a replay one by one, however the records lie."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence

import pytest

from penstock.model.errors import CorruptionError
from penstock.model.segments import NO_VALUE
from penstock.segmentstore.container.log.append_runs import AppendRuns
from penstock.segmentstore.container.log.frames import FrameBuilder, RecordReader
from penstock.segmentstore.container.log.operations import (
    NO_WRITER,
    Append,
    Checkpoint,
    Create,
    Operation,
    Seal,
    UpdateAttributes,
    decode_operation,
    encode_append_header,
    encode_operation,
)
from penstock.segmentstore.container.log.recovery import recover
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container.reads.read_index import Found
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.settings import CacheSettings
from penstock.segmentstore.tier1.durable_log import LogFrameRun

SEGMENT_IDS = (100, 101, 102)


class Log:
    """A log of given frames."""

    is_truncated = False

    def __init__(self, frames: Sequence[bytes]) -> None:
        self._frames = frames

    async def frame_runs(self) -> AsyncIterator[LogFrameRun]:
        yield LogFrameRun(range(1, len(self._frames) + 1), self._frames)


class LogWriter:
    """Writes records into frames, with the numbers and offsets that follow."""

    def __init__(self, frame_length_max: int) -> None:
        self.frames: list[bytes] = []
        self._builder = FrameBuilder(frame_length_max)
        self._number = 0
        self._lengths: dict[int, int] = {}
        number = self._next()
        self.add(encode_operation(number, Checkpoint(number, 0, True, new_state().metadata.snapshot())))
        for segment_id in SEGMENT_IDS:
            create = Create(segment_id, f"s/t/{segment_id}.#epoch.0", 0, 0, 0, 0, 0, 1)
            self.add(encode_operation(self._next(), create))
            self._lengths[segment_id] = 0

    def _next(self) -> int:
        self._number += 1
        return self._number

    def add(self, header: bytes, data: bytes = b"") -> None:
        if self._builder.fits(len(header) + len(data)):
            self._builder.add(header, data, len(header) + len(data))
            return
        for parts, _ in self._builder.add_spanning(header, data):
            self.frames.append(b"".join(parts))

    def append(
        self, segment_id: int, data: bytes, event_number: int = NO_VALUE, writer: bytes = NO_WRITER, gap: int = 0
    ) -> None:
        self._number += gap
        offset = self._lengths[segment_id]
        header = encode_append_header(self._next(), segment_id, offset, self._number, 2, event_number, writer)
        self.add(header, data)
        self._lengths[segment_id] += len(data)

    def attributes(self, segment_id: int, values: dict[bytes, int]) -> None:
        self.add(encode_operation(self._next(), UpdateAttributes(segment_id, values)))

    def seal(self, segment_id: int) -> None:
        self.add(encode_operation(self._next(), Seal(segment_id, self._lengths[segment_id], 7)))

    def close(self) -> list[bytes]:
        parts, _ = self._builder.take()
        return [*self.frames, b"".join(parts)]


def new_state() -> ContainerState:
    return ContainerState(0, Cache(CacheSettings(bytes_max=1 << 28)), ContainerSettings())


def one_by_one(frames: Sequence[bytes]) -> tuple[ContainerState, int]:
    """Replay without runs."""
    state, reader, count = new_state(), RecordReader(), 0
    for frame in frames:
        for record in reader.feed(frame):
            number, operation = decode_operation(record)
            if isinstance(operation, Checkpoint):
                list(state.restore(operation.snapshot))
            else:
                state.replay(number, operation)
                count += 1
    return state, count


def described(state: ContainerState) -> list[object]:
    """Return what readers, writers and the storage writer see of a state."""
    seen: list[object] = []
    for segment in state.metadata.by_id.values():
        found = segment.index.lookup(0, segment.length) if segment.length else None
        data = b"".join(found.data) if isinstance(found, Found) else b""
        while isinstance(found, Found) and len(data) < segment.length:
            found = segment.index.lookup(len(data), segment.length - len(data))
            assert isinstance(found, Found)
            data += b"".join(found.data)
        seen.append((
            segment.id, segment.length, segment.durable_length, segment.event_count, segment.last_modified_ms,
            segment.is_sealed, dict(segment.attributes), data,
        ))  # fmt: skip
    return seen


async def check(frames: list[bytes]) -> None:
    expected, count = one_by_one(frames)
    state = new_state()
    recovered = await recover(Log(frames), state)  # all that it asks of a log
    assert described(state) == described(expected)
    assert recovered.operation_count == count


@pytest.mark.parametrize("seed", range(30))
async def test_runs_give_the_state_of_a_replay_one_by_one(seed: int) -> None:
    """Stretches of equal and unequal records, of one and several segments and writers, and other operations between."""
    rng = random.Random(seed)
    log = LogWriter(rng.choice((700, 5_000, 1 << 20)))
    number = 0
    for _ in range(rng.randint(1, 12)):
        segments = rng.sample(SEGMENT_IDS, rng.choice((1, 1, 2, 3)))
        writers = [rng.randbytes(16) for _ in range(rng.choice((1, 1, 3)))]
        length = rng.choice((0, 1, 100, 100, 3_000))
        numbered = rng.choice((0.0, 0.5, 1.0, 1.0))
        is_even = rng.random() < 0.7
        for index in range(rng.choice((1, 15, 16, 17, 70, 300))):
            number += 1
            data = rng.randbytes(length if is_even else rng.randint(0, 200))
            event_number = number if rng.random() < numbered else NO_VALUE
            gap = 1 if rng.random() < 0.002 else 0
            log.append(segments[index % len(segments)], data, event_number, rng.choice(writers), gap)
        if rng.random() < 0.5:
            log.attributes(rng.choice(SEGMENT_IDS), {rng.randbytes(16): rng.randint(0, 9)})
    if rng.random() < 0.5:
        log.seal(rng.choice(SEGMENT_IDS))
    await check(log.close())


async def test_append_that_does_not_follow_ends_a_column_and_is_corruption() -> None:
    """One offset in the middle of many equal records is wrong: it is found, not skipped."""
    log = LogWriter(1 << 20)
    for number in range(200):
        log.append(100, b"x" * 100, number, b"w" * 16)
    frames = log.close()
    record = encode_append_header(155, 100, 15_000, 155, 2, 150, b"w" * 16)
    assert frames[0].count(record) == 1
    wrong = encode_append_header(155, 100, 15_001, 155, 2, 150, b"w" * 16)
    await check(frames)
    with pytest.raises(CorruptionError, match="append at 15001"):
        await recover(Log([frames[0].replace(record, wrong)]), new_state())


async def test_damage_is_reported_at_its_offset_although_runs_span_frames() -> None:
    """An append that does not follow, in one of many small frames: the address of that frame is named."""
    log = LogWriter(200)
    for number in range(30):
        log.append(100, b"x" * 100, number, b"w" * 16)
    frames = log.close()
    right, wrong = ((100).to_bytes(8, "big") + offset.to_bytes(8, "big") for offset in (1_500, 1_501))
    place = next(index for index, frame in enumerate(frames) if right in frame)
    assert 5 < place < len(frames) - 5
    frames[place] = frames[place].replace(right, wrong)
    with pytest.raises(CorruptionError) as caught:
        await recover(Log(frames), new_state())
    assert caught.value.offset == place + 1


async def test_small_frames_are_replayed_together_and_others_get_a_turn_in_time() -> None:
    """A run goes over frames; between two turns of the loop lie 64 KiB and a few hundred frames at most."""
    log = LogWriter(200)
    for number in range(2_000):
        log.append(100, b"x" * 100, number, b"w" * 16)
    frames = log.close()
    state = new_state()
    replayed: list[int] = []
    replay = state.replay

    def count(number: int, operation: Operation) -> None:
        replayed.append(number)
        replay(number, operation)

    state.replay = count  # type: ignore[assignment, method-assign]
    turn_count = 0

    async def take_turns() -> None:
        nonlocal turn_count
        while True:
            turn_count += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(take_turns())
    await recover(Log(frames), state)
    others.cancel()
    assert len(frames) >= 1_000
    assert len(replayed) < 50
    # A turn is 64 KiB, with what a frame costs besides.
    assert turn_count >= len(frames) // 512
    assert described(state) == described(one_by_one(frames)[0])


async def test_repeated_frame_is_left_out_behind_a_column() -> None:
    """Some logs write a frame twice when the answer to the first write was lost."""
    log = LogWriter(700)
    for number in range(40):
        log.append(100, b"x" * 10, number, b"w" * 16)
    frames = log.close()
    state = new_state()
    twice = [*frames[:4], frames[3], *frames[4:]]
    recovered = await recover(Log(twice), state)
    assert recovered.repeated_count > 1
    assert described(state) == described(one_by_one(frames)[0])


def test_a_decoded_append_equals_the_encoded_one() -> None:
    """The columns are those of `decode_operation`."""
    header = encode_append_header(5, 100, 7, 9, 3, 11, b"w" * 16)
    assert decode_operation(header + b"abc") == (5, Append(100, 7, 9, 3, 11, b"w" * 16, memoryview(b"abc")))


@pytest.mark.parametrize("seed", range(8))
async def test_frames_of_one_append_each_are_replayed_as_one_by_one_with_damage_in_any(seed: int) -> None:
    """Frames of an append each, of one or several segments and writers: the state, or the error, is that of `take`."""
    rng = random.Random(seed)
    for _ in range(6):
        log = LogWriter(400)
        segment_count = rng.choice((1, 1, 2))
        is_even, has_gaps = rng.random() < 0.5, rng.random() < 0.2
        for number in range(rng.randrange(20, 150)):
            event_number = NO_VALUE if rng.random() < 0.02 else number
            log.append(
                SEGMENT_IDS[rng.randrange(segment_count)],
                bytes(100) if is_even else rng.randbytes(rng.randrange(1, 150)),
                event_number,
                b"w" * 16 if rng.random() < 0.98 else b"v" * 16,
                gap=rng.randrange(2) if has_gaps else 0,
            )
            if rng.random() < 0.01:
                log.attributes(SEGMENT_IDS[0], {b"a" * 16: number})
        frames = alone(log)
        damage = rng.randrange(4)
        at = rng.randrange(5, len(frames))
        if damage == 1:
            # Before the data, where nothing but the log's own checksum could tell.
            changed = bytearray(frames[at])
            changed[rng.randrange(min(len(changed), 67))] ^= 1 << rng.randrange(8)
            frames[at] = bytes(changed)
        elif damage == 2:
            frames[at] = frames[rng.randrange(5, len(frames))]
        elif damage == 3:
            frames[at:at] = [frames[at - 1]]
        assert await outcome(frames) == await outcome_without_columns(frames)


async def test_appends_that_are_alone_in_their_frames_are_not_unpacked_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 3000 appends of different lengths, a frame each, few are inspected by themselves."""
    log = LogWriter(400)
    for number in range(3000):
        log.append(100, b"x" * (1 + number % 150), number, b"w" * 16)
    assert await scans_of_single_frames(log, 3000, monkeypatch) < 3000 // 20


async def test_only_operations_between_single_appends_are_decoded_separately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Records of the container's own lie between, as they do in a log that was written slowly."""
    log = LogWriter(400)
    for number in range(3000):
        log.append(100, b"x" * 100, number, b"w" * 16)
        if number % 150 == 149:
            log.attributes(101, {b"a" * 16: number})
    assert await scans_of_single_frames(log, 3020, monkeypatch) < 20 + 50


async def scans_of_single_frames(log: LogWriter, count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Replay so many records, a frame each; return how many were inspected by themselves."""
    frames = alone(log)
    scans = 0
    original = AppendRuns.take

    def take(self: AppendRuns, frame: memoryview, position: int, last: int, starts: list[int]) -> tuple[int, int]:
        nonlocal scans
        scans += 1
        return original(self, frame, position, last, starts)

    monkeypatch.setattr(AppendRuns, "take", take)
    state = new_state()
    recovered = await recover(Log(frames), state)  # all that it asks of a log
    assert recovered.operation_count == count + len(SEGMENT_IDS)
    assert recovered.frame_count == len(frames)
    assert described(state) == described(one_by_one(frames)[0])
    return scans


def alone(log: LogWriter) -> list[bytes]:
    """Return the frames of a log, with each record in one of its own."""
    reader = RecordReader()
    records = [record for frame in log.close() for record in reader.feed(frame)]
    frames = []
    for record in records:
        builder = FrameBuilder(1 << 20)
        builder.add(bytes(record), None, len(record))
        frames.append(b"".join(builder.take()[0]))
    return frames


async def outcome(frames: Sequence[bytes]) -> object:
    """Return the state that a recovery comes to and what it says, or its error."""
    state = new_state()
    try:
        return await recover(Log(frames), state), described(state)
    except CorruptionError as error:
        return str(error)


async def outcome_without_columns(frames: Sequence[bytes]) -> object:
    """The same, each frame inspected by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AppendRuns, "take_frames", lambda self, frames, index, last: (0, last))
        return await outcome(frames)
