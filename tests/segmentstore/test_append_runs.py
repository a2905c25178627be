"""Appends taken in by runs: however a conversation is cut into reads, the outcome is that of one block at a time."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.segments import NO_VALUE
from penstock.segmentstore.connection import Connection
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.wire.append_runs import AppendRun, scan_appends
from penstock.wire.codec import decode, encode
from penstock.wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    ConditionalBlockEnd,
    DataAppended,
    Hello,
    KeepAlive,
    Padding,
    PartialEvent,
    SetupAppend,
    WireCommand,
)
from support.containers import QUIET, SMALL_CACHE, FaultyChunks, memory_runtime, memory_store, turns

SEGMENTS = ("s/t/0.#epoch.0", "s/u/0.#epoch.0")
WRITERS = (b"a" * 16, b"b" * 16)
FORMS = ("single", "single", "pair", "pair", "padded", "partial", "conditional", "keep", "odd")


class Wire(asyncio.Transport):
    """A connection's sending side that keeps what is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.replies: list[WireCommand] = []
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:  # As the loops have it.
        view = memoryview(data)
        while view:
            type_code, length = struct.unpack_from(">ii", view)
            self.replies.append(decode(type_code, view[8 : 8 + length]))
            view = view[8 + length :]

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


@dataclass
class Outcome:
    """What must be the same however the reads were cut."""

    stored: list[bytes] = field(default_factory=list)
    event_counts: list[int] = field(default_factory=list)
    last_numbers: list[int] = field(default_factory=list)
    acknowledged: dict[bytes, tuple[int, int, int]] = field(default_factory=dict)
    other_replies: list[WireCommand] = field(default_factory=list)
    is_closed: bool = False


class Bench:
    """A connection without a socket over a store without a disk."""

    def __init__(self) -> None:
        self.runtime = memory_runtime()
        self.logs = MemoryLogFactory(self.runtime)
        store_settings = SegmentStoreSettings(container_count=1, cache=SMALL_CACHE, container=QUIET)
        self.store: SegmentStore = memory_store(self.logs, FaultyChunks(), self.runtime, store_settings)
        self.server = SegmentStoreServer(self.store)
        self.server.loop = asyncio.get_running_loop()
        self.wire = Wire()

    async def __aenter__(self) -> Bench:
        await self.store.start()
        for segment in SEGMENTS:
            await self.store.create_segment(segment)
        self.connection = Connection(self.server)
        self.connection.connection_made(self.wire)
        self.feed(encode(Hello(17, 5)))
        for writer_id, segment in zip(WRITERS, SEGMENTS, strict=True):
            self.feed(encode(SetupAppend(1, writer_id, segment, "")))
        await turns(10)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.connection.connection_lost(None)
        await self.store.stop()
        await self.runtime.work.close()

    def feed(self, data: bytes) -> None:
        """One read."""
        while data and not self.wire.is_closed:
            buffer = self.connection.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            self.connection.buffer_updated(count)
            data = data[count:]

    async def outcome(self) -> Outcome:
        """Return how it stands when nothing continues any more."""
        await turns(20)
        found = Outcome(is_closed=self.wire.is_closed)
        before = dict.fromkeys(WRITERS, NO_VALUE)
        for reply in self.wire.replies:
            if isinstance(reply, DataAppended):
                assert reply.previous_event_number == before[reply.writer_id] < reply.event_number
                before[reply.writer_id] = reply.event_number
                found.acknowledged[reply.writer_id] = (
                    reply.event_number,
                    reply.request_id,
                    reply.current_segment_write_offset,
                )
            elif not isinstance(reply, KeepAlive):  # Waits for nothing: turns of the loop move it.
                found.other_replies.append(reply)
                if isinstance(reply, AppendSetup):
                    before[reply.writer_id] = reply.last_event_number
        for writer_id, name in zip(WRITERS, SEGMENTS, strict=True):
            segment = self.store.find(name)[1]
            found.stored.append((await self.store.read(name, 0, 1 << 20)).joined())
            found.event_counts.append(segment.event_count)
            found.last_numbers.append(segment.attribute(writer_id))
        return found


def pair(writer_id: bytes, block: bytes, whole: int, tail: bytes, count: int, number: int) -> bytes:
    end = AppendBlockEnd(writer_id, whole, tail, count, number, 100 + number)
    return encode(AppendBlock(writer_id, block)) + encode(end)


@st.composite
def appends(draw: st.DrawFn) -> list[bytes]:
    """A conversation of two writers: mostly right, in every form that clients use, now and then a wrong number."""
    frames = []
    numbers = dict.fromkeys(WRITERS, 0)
    lengths = dict.fromkeys(WRITERS, 0)
    for _ in range(draw(st.integers(1, 25))):
        writer_id = draw(st.sampled_from(WRITERS))
        step = draw(st.sampled_from([1, 1, 1, 1, 1, 1, 3, 3, 100, 0, -1]))
        number = numbers[writer_id] = max(0, numbers[writer_id] + step)
        count = draw(st.sampled_from([1, 1, 5, 0x7FFFFFFF])) if step > 3 else draw(st.integers(1, 4))
        data = bytes([65 + number % 26]) * draw(st.integers(0, 60))
        form = draw(st.sampled_from(FORMS))
        if form == "single":
            frames.append(encode(AppendBlockEnd(writer_id, len(data), data, count, number, 100 + number)))
        elif form == "pair":
            frames.append(pair(writer_id, data, len(data), b"", count, number))
        elif form == "padded":
            padding = encode(Padding(draw(st.integers(0, 40))))
            frames.append(pair(writer_id, data + padding, len(data), b"", count, number))
        elif form == "partial":
            split = draw(st.integers(0, len(data)))
            inner = encode(PartialEvent(data[split:]))
            data += b"tail"
            frames.append(pair(writer_id, data[:split] + inner, split, b"tail", count, number))
        elif form == "conditional":
            offset = lengths[writer_id] if draw(st.booleans()) else 7
            command = ConditionalBlockEnd(writer_id, number, offset, data, 100 + number)
            frames.append(encode(command))
            if offset != lengths[writer_id]:
                continue
        elif form == "keep":
            frames.append(encode(KeepAlive()))
            continue
        else:
            # A peer of an older version, which leaves the request id out, or of a newer one, which adds something.
            frame = encode(AppendBlockEnd(writer_id, len(data), data, count, number, -1))
            frame = frame[:-8] if draw(st.booleans()) else frame + b"more"
            frames.append(frame[:4] + struct.pack(">i", len(frame) - 8) + frame[8:])
        lengths[writer_id] += len(data)
    if draw(st.sampled_from([True, False, False])):
        stranger = AppendBlockEnd(b"?" * 16, 1, b"x", 1, 1, 1)
        frames.insert(draw(st.integers(0, len(frames))), encode(stranger))
    return frames


def cut(frames: list[bytes], positions: list[float]) -> list[bytes]:
    whole = b"".join(frames)
    borders = [0, *sorted(int(position * len(whole)) for position in positions), len(whole)]
    return [whole[start:end] for start, end in pairwise(borders)]


@settings(max_examples=120, deadline=None)
@given(appends(), st.lists(st.floats(0, 1), max_size=6), st.booleans())
def test_runs_have_the_outcome_of_one_block_at_a_time(
    frames: list[bytes], positions: list[float], is_turned: bool
) -> None:
    """Bytes, counts, numbers, acknowledgements, refusals, the end of the connection: the same for any cut."""

    async def play(reads: list[bytes], *, waits: bool) -> Outcome:
        async with Bench() as bench:
            for read in reads:
                bench.feed(read)
                if waits:
                    await turns(3)
            return await bench.outcome()

    async def both() -> tuple[Outcome, Outcome]:
        return await play(frames, waits=False), await play(cut(frames, positions), waits=is_turned)

    one_by_one, in_runs = asyncio.run(both())
    if is_turned and one_by_one.is_closed:
        # A refusal that ends the connection waits for what was accepted before it: turns of the loop move the end.
        for stored, expected in zip(in_runs.stored, one_by_one.stored, strict=True):
            assert stored[: len(expected)] == expected or expected[: len(stored)] == stored
        return
    assert in_runs == one_by_one


async def test_a_run_is_one_record_and_one_acknowledgement() -> None:
    """A hundred appends of two writers in one read: two records, two replies with the last numbers."""
    async with Bench() as bench:
        (container,) = bench.store.containers
        before, replies = container.pipeline.sequence_number, len(bench.wire.replies)
        frames = [pair(WRITERS[number % 2], b"data", 4, b"", 3, number + 1) for number in range(100)]
        bench.feed(b"".join(frames))
        assert container.pipeline.sequence_number == before + 2
        found = await bench.outcome()
        assert found.acknowledged == {WRITERS[0]: (99, 199, 200), WRITERS[1]: (100, 200, 200)}
        assert len(bench.wire.replies) == replies + 2
        assert found.event_counts == [150, 150]


def rejected(frame: bytes) -> bool:
    runs: dict[bytes, AppendRun] = {}
    return scan_appends(memoryview(frame), 0, len(frame), runs, lambda *_: True) == 0 and not runs


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame[:-1],
        lambda frame: frame[:4] + struct.pack(">i", -1) + frame[8:],
        lambda frame: frame[:4] + struct.pack(">i", 1 << 30) + frame[8:],
        lambda frame: struct.pack(">i", 5) + frame[4:],
        lambda frame: frame[:-20] + struct.pack(">i", 0) + frame[-16:],
        lambda frame: frame[:28] + struct.pack(">i", -5) + frame[32:],
        lambda frame: frame[:28] + struct.pack(">i", 1 << 30) + frame[32:],
    ],
)
def test_what_is_not_of_the_usual_form_is_left_alone(change: Callable[[bytes], bytes]) -> None:
    """Cut off, absurd lengths, another type, no events: for the way that says what is wrong."""
    frame = encode(AppendBlockEnd(WRITERS[0], 4, b"data", 1, 1, 1))
    assert not rejected(frame)
    assert rejected(change(frame))


@pytest.mark.parametrize(
    ("block", "whole", "tail"),
    [
        (b"short", 6, b""),
        (b"short", -1, b""),
        (b"short" + b"\0" * 4, 5, b""),
        (b"short" + encode(KeepAlive()), 5, b""),
        (b"short" + encode(Padding(3)), 5, b"more"),
        (b"short" + encode(Padding(3)) + b"x", 5, b""),
    ],
)
def test_pairs_that_contradict_themselves_are_left_alone(block: bytes, whole: int, tail: bytes) -> None:
    assert rejected(pair(WRITERS[0], block, whole, tail, 1, 1))
    assert rejected(pair(WRITERS[0], b"", 0, b"", 0, 1))


def test_little_of_a_long_block_is_copied_out_of_it() -> None:
    """What is kept of a padded block must not keep all of it alive."""

    async def play() -> None:
        async with Bench() as bench:
            for number, used in ((1, 20_000), (2, 250_000)):
                block = bytes(used) + encode(Padding(400_000 - used))
                frames = pair(WRITERS[0], block, used, b"", 1, number)
                for start in range(0, len(frames), 10_000):
                    bench.feed(frames[start : start + 10_000])
            await turns(10)
            (container,) = bench.store.containers
            segment = container.segment(SEGMENTS[0])
            kept = 0
            for entry in container.state.cache.entries():
                data = cast(memoryview, getattr(entry, "data", b""))
                kept += len(data.obj) if isinstance(data, memoryview) else len(data)  # type: ignore[arg-type]
            assert segment.length == 270_000
            assert kept < 1.25 * segment.index.cached_bytes + 1000

    asyncio.run(play())
