"""What ``penstock bench`` measures: a load for a while, with counts and latencies that can be read meanwhile.

Figures of a client and a server that share a machine are those of both together.
"""

from __future__ import annotations

import asyncio
import os
import resource
import struct
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

from penstock.cli.latencies import Latencies
from penstock.client.client import Client
from penstock.client.reading.event import EventBatch
from penstock.client.stream_events import StreamEvents
from penstock.client.writing.event_writer import EventWriter
from penstock.model.errors import PenstockError
from penstock.model.events import EVENT_HEADER_LENGTH
from penstock.model.policies import Scaling
from penstock.model.stream_cuts import StreamCut

#: Events given to the writer at once at full speed.
_BATCH_EVENT_COUNT = 1000
#: How often a load at a rate writes.
_STEP_S = 0.002
#: Different payloads, so that nothing on the way can make something of their being the same.
_PAYLOAD_COUNT = 64
#: When an event was written, on this process's finest clock, which loops' clocks are not: the begin of its payload.
_STAMP = struct.Struct(">d")
SIZE_BYTES_MIN = _STAMP.size


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked for.

    Attributes:
        size_bytes: of an event.
        count: events to write; None: as many as go into the time.
        seconds: how long to write; None: until `count` are written.
        rate: events per second; None: full speed.
    """

    size_bytes: int
    count: int | None
    seconds: float | None
    rate: float | None


@dataclass(slots=True)
class Run:
    """The progress of a measurement. Changed by the loop, read by the command.

    Attributes:
        events, length_bytes: done so far; bytes of payloads.
        elapsed_s: since the first of them was asked for.
        latencies: of all events, or of one in each step.
        cpu_s: of this process, while it was measured.
    """

    events: int = 0
    length_bytes: int = 0
    elapsed_s: float = 0.0
    latencies: Latencies = field(default_factory=Latencies)
    cpu_s: float = 0.0

    @property
    def events_per_s(self) -> float:
        """The mean so far."""
        return self.events / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def bytes_per_s(self) -> float:
        """The mean so far."""
        return self.length_bytes / self.elapsed_s if self.elapsed_s else 0.0


class _Meter:
    """Measures time and CPU of a block into a `Run`."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __enter__(self) -> _Meter:
        self._start_s = perf_counter()
        self._cpu_s = _cpu_s()
        return self

    def note(self, event_count: int, length_bytes: int) -> None:
        """Count events that are done."""
        self._run.events += event_count
        self._run.length_bytes += length_bytes
        self._run.elapsed_s = perf_counter() - self._start_s

    def __exit__(self, *exception: object) -> None:
        self._run.elapsed_s = perf_counter() - self._start_s
        self._run.cpu_s = _cpu_s() - self._cpu_s


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def write_events(client: Client, stream: str, load: Load, run: Run) -> None:
    """Write a load; latencies are those from the call to the acknowledgement, of one event in each step."""
    async with client.event_writer(stream) as writer:
        assert isinstance(writer, EventWriter)
        with _Meter(run) as meter:
            await _write(writer, load, run, meter)
            await writer.flush()
            rest = writer.acknowledged_event_count - run.events
            meter.note(rest, rest * load.size_bytes)


async def _write(writer: EventWriter, load: Load, run: Run, meter: _Meter | None) -> None:
    """Write a load. Without a `meter` events carry the time when they are written, and others measure."""
    payloads = [os.urandom(load.size_bytes) for _ in range(_PAYLOAD_COUNT)]
    batch = [payloads[index % _PAYLOAD_COUNT] for index in range(_BATCH_EVENT_COUNT)]
    start_s = perf_counter()
    written = 0

    def delivered(sent_s: float, error: PenstockError | None) -> None:
        if error is None:
            run.latencies.add(perf_counter() - sent_s)

    while load.seconds is None or perf_counter() - start_s < load.seconds:
        count = _BATCH_EVENT_COUNT
        if load.rate is not None:
            count = min(int((perf_counter() - start_s) * load.rate) + 1 - written, _BATCH_EVENT_COUNT)
        if load.count is not None:
            count = min(count, load.count - written)
            if written >= load.count:
                break
        if count > 0:
            sent_s = perf_counter()
            if meter is None:
                stamp = _STAMP.pack(sent_s)
                await writer.write_many([stamp + payload[_STAMP.size :] for payload in batch[:count]])
            else:
                if count > 1:
                    await writer.write_many(batch[: count - 1])
                await writer.write(batch[count - 1], on_delivery=partial(delivered, sent_s))
                new = writer.acknowledged_event_count - run.events
                meter.note(new, new * load.size_bytes)
            written += count
        # Others have their turn: what is written is sent.
        await asyncio.sleep(0 if load.rate is None else _STEP_S)


async def read_events(client: Client, start: StreamCut, end: StreamCut, run: Run) -> None:
    """Read what lies between two cuts; the one latency is that of the first events."""
    events = StreamEvents(client, start, end, on_truncated=_ignore_truncation)
    try:
        with _Meter(run) as meter:
            start_s = perf_counter()
            async for batch in events.batches():
                if not run.events:
                    run.latencies.add(perf_counter() - start_s)
                framed = batch.position - batch.offsets[0]
                meter.note(len(batch), framed - len(batch) * EVENT_HEADER_LENGTH)
    finally:
        await events.close()


async def follow_events(client: Client, stream: str, load: Load, run: Run) -> None:
    """Write a load and read it at the same time; latencies are those from the call to its being read, of all events."""
    events = StreamEvents(client, await client.tail(stream), None, on_truncated=_ignore_truncation)
    written = Run()
    async with client.event_writer(stream) as writer:
        assert isinstance(writer, EventWriter)

        async def write() -> int:
            await _write(writer, load, written, None)
            await writer.flush()
            return writer.acknowledged_event_count

        writing = asyncio.create_task(write())
        try:
            with _Meter(run) as meter:
                await _read(events, run, meter, writing)
        finally:
            writing.cancel()
            await asyncio.wait([writing])
            await events.close()


async def _read(events: StreamEvents, run: Run, meter: _Meter, writing: asyncio.Task[int]) -> None:
    """Read until everything is read that `writing` says it has written, or until it fails."""
    unpack = _STAMP.unpack_from
    batches = events.batches()
    coming: asyncio.Future[EventBatch] = asyncio.ensure_future(anext(batches))
    try:
        while not writing.done() or run.events < writing.result():
            waited_for: set[asyncio.Future[EventBatch] | asyncio.Task[int]] = {coming}
            if not writing.done():
                waited_for.add(writing)
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                continue
            batch = coming.result()
            now_s = perf_counter()
            for event in batch.events:
                run.latencies.add(now_s - unpack(event)[0])
            meter.note(len(batch), sum(map(len, batch.events)))
            coming = asyncio.ensure_future(anext(batches))
    finally:
        coming.cancel()
        await asyncio.wait([coming])


def _ignore_truncation(segment: str, offset: int, start_offset: int) -> None:
    """What retention deletes meanwhile is not measured."""


async def create_own_stream(client: Client, stream: str, segment_count: int) -> None:
    """Make a stream for one measurement."""
    await client.create_stream(stream, scaling=Scaling.fixed(segment_count))


async def delete_own_stream(client: Client, stream: str) -> None:
    """Delete it, and its scope if nothing else is in it."""
    await client.seal_stream(stream)
    await client.delete_stream(stream)
    try:
        await client.delete_scope(stream.partition("/")[0])
    except PenstockError:
        pass  # Another measurement is under way there.
