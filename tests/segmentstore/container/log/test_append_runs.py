"""Appends replayed in runs: the state is that of a replay one by one, however the records lie."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence

import pytest

from penstock.model.errors import CorruptionError
from penstock.model.segments import NO_VALUE
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
from penstock.segmentstore.settings import CacheSettings, ContainerSettings
from penstock.segmentstore.tier1.durable_log import LogAddress, LogFrame

SEGMENT_IDS = (100, 101, 102)


class Log:
    """A log of given frames."""

    is_truncated = False

    def __init__(self, frames: Sequence[bytes]) -> None:
        self._frames = frames

    async def frames(self) -> AsyncIterator[LogFrame]:
        for number, data in enumerate(self._frames):
            yield LogFrame(LogAddress(number + 1), data)


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
    recovered = await recover(Log(frames), state)  # type: ignore[arg-type]  # all that it asks of a log
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
        await recover(Log([frames[0].replace(record, wrong)]), new_state())  # type: ignore[arg-type]


async def test_damage_is_said_where_it_stands_though_runs_go_over_frames() -> None:
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
        await recover(Log(frames), new_state())  # type: ignore[arg-type]
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

    state.replay = count  # type: ignore[method-assign]
    turn_count = 0

    async def take_turns() -> None:
        nonlocal turn_count
        while True:
            turn_count += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(take_turns())
    await recover(Log(frames), state)  # type: ignore[arg-type]
    others.cancel()
    assert len(frames) >= 1_000
    assert len(replayed) < 50
    assert turn_count >= len(frames) // 256
    assert described(state) == described(one_by_one(frames)[0])


async def test_repeated_frame_is_left_out_behind_a_column() -> None:
    """Some logs write a frame twice when the answer to the first write was lost."""
    log = LogWriter(700)
    for number in range(40):
        log.append(100, b"x" * 10, number, b"w" * 16)
    frames = log.close()
    state = new_state()
    twice = [*frames[:4], frames[3], *frames[4:]]
    recovered = await recover(Log(twice), state)  # type: ignore[arg-type]
    assert recovered.repeated_count > 1
    assert described(state) == described(one_by_one(frames)[0])


def test_an_append_is_what_it_was_encoded_from() -> None:
    """The columns are those of `decode_operation`."""
    header = encode_append_header(5, 100, 7, 9, 3, 11, b"w" * 16)
    assert decode_operation(header + b"abc") == (5, Append(100, 7, 9, 3, 11, b"w" * 16, memoryview(b"abc")))
