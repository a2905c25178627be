"""`DemoLoad`: writers and a reader of the demonstration. Every event is checked, every wait measured.

There is one lane for each segment. A lane writes an event, waits until it is acknowledged, and writes the next one. The
longest time without an acknowledgement is what users see of a fail-over. The reader checks that the events of each lane
arrive once, in order, without a gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from penstock import aio
from penstock.client.settings import ClientSettings
from penstock.demo.errors import DemoLoadError
from penstock.model.errors import PenstockError
from penstock.model.policies import Scaling
from penstock.model.routing import container_of, routing_key_hash

STREAM = "demo/events"
GROUP = "demo/readers"
#: Time for one call, longer than any fail-over.
_RETRY_TIME_S = 300.0
#: Time for the events at the end, after the last one was written.
_READ_REST_S = 60.0
_READ_TIMEOUT_S = 0.5
_EVENT_BYTES = 100


@dataclass(slots=True)
class Lane:
    """The events of one key.

    Attributes:
        key: routing key.
        container: of its segment.
        written: events that were acknowledged.
        read: events that were read.
        last_ack_s: when the last acknowledgement came.
        gap_s: longest time without one since `DemoLoad.begin_measurement`.
        longest_gap_s: longest time without one at all.
    """

    key: str
    container: int
    written: int = 0
    read: int = 0
    last_ack_s: float = 0.0
    gap_s: float = 0.0
    longest_gap_s: float = 0.0

    def waiting_s(self, now_s: float) -> float:
        """Return the time since the last acknowledgement."""
        return now_s - self.last_ack_s


@dataclass(slots=True)
class DemoLoad:
    """See the module. `events_per_s`: of all lanes together. `container_count`: of the cluster.

    Attributes:
        lanes: by segment.
        error: why the load has ended; None: it runs.
    """

    uri: str
    container_count: int
    events_per_s: float
    lanes: Sequence[Lane] = ()
    error: BaseException | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _is_stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _exits: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def written(self) -> int:
        """Events that were acknowledged."""
        return sum(lane.written for lane in self.lanes)

    @property
    def read(self) -> int:
        """Events that were read."""
        return sum(lane.read for lane in self.lanes)

    @property
    def gap_s(self) -> float:
        """The longest time without an acknowledgement, of any lane, since `begin_measurement`; also one that lasts."""
        now_s = asyncio.get_running_loop().time()
        return max((max(lane.gap_s, lane.waiting_s(now_s)) for lane in self.lanes), default=0.0)

    @property
    def longest_gap_s(self) -> float:
        """The longest time without an acknowledgement, of any lane, at all."""
        return max((max(lane.longest_gap_s, lane.gap_s) for lane in self.lanes), default=0.0)

    def begin_measurement(self) -> None:
        """Forget the gaps before now."""
        for lane in self.lanes:
            lane.longest_gap_s = max(lane.longest_gap_s, lane.gap_s)
            lane.gap_s = 0.0

    async def start(self, segment_count: int) -> None:
        """Make the stream and begin. Raises `PenstockError`."""
        settings = ClientSettings(retry_time_max_s=_RETRY_TIME_S, first_contact_timeout_s=10.0)
        client = await self._exits.enter_async_context(aio.connect(self.uri, settings))
        await client.create_stream(STREAM, scaling=Scaling.fixed(segment_count))
        segments = await client.segments_of(STREAM)
        now_s = asyncio.get_running_loop().time()
        self.lanes = [
            Lane(_key_in(each.key_low, each.key_high), container_of(each.name, self.container_count), last_ack_s=now_s)
            for each in segments
        ]
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._guarded(self._write(client))),
            loop.create_task(self._guarded(self._read(client))),
        ]

    async def _guarded(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except PenstockError as error:
            self.error = self.error or error

    async def _write(self, client: aio.Client) -> None:
        async with client.event_writer(STREAM) as writer:
            await asyncio.gather(*(self._write_lane(writer, lane) for lane in self.lanes))

    async def _write_lane(self, writer: aio.EventWriter, lane: Lane) -> None:
        loop = asyncio.get_running_loop()
        pause_s = len(self.lanes) / self.events_per_s
        lane.last_ack_s = loop.time()
        while not self._is_stopping.is_set():
            began_s = loop.time()
            event = f"{lane.key} {lane.written} ".encode().ljust(_EVENT_BYTES, b".")
            await (await writer.write(event, routing_key=lane.key))
            now_s = loop.time()
            lane.written += 1
            lane.gap_s = max(lane.gap_s, now_s - lane.last_ack_s)
            lane.last_ack_s = now_s
            if (rest_s := began_s + pause_s - now_s) > 0:
                await asyncio.sleep(rest_s)

    async def _read(self, client: aio.Client) -> None:
        lanes = {lane.key: lane for lane in self.lanes}
        async with client.reader_group(GROUP, [STREAM]) as group, group.reader() as reader:
            until_s: float | None = None
            while True:
                event = await reader.read(_READ_TIMEOUT_S)
                if event is not None:
                    _note(lanes, bytes(event.data))
                if not self._is_stopping.is_set() or not self._tasks[0].done():
                    continue
                if self.read >= self.written:
                    return
                now_s = asyncio.get_running_loop().time()
                until_s = now_s + _READ_REST_S if until_s is None else until_s
                if now_s > until_s:
                    raise DemoLoadError(f"{self.written - self.read} events were not read within {_READ_REST_S:g} s")

    async def stop(self) -> None:
        """Write no more, read what was written, and check all of it. Raises `DemoLoadError`."""
        self._is_stopping.set()
        try:
            await asyncio.gather(*self._tasks)
        finally:
            await self.cancel()
        if isinstance(self.error, DemoLoadError):
            raise self.error
        if self.error is not None:
            raise DemoLoadError(f"the load has ended: {self.error}") from self.error

    async def cancel(self) -> None:
        """End at once, without a check."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._exits.aclose()


def _note(lanes: dict[str, Lane], data: bytes) -> None:
    """Note an event that was read. Raises `DemoLoadError` if it is not the next one of its lane."""
    key, number, _ = data.decode().split(" ", 2)
    lane = lanes[key]
    if int(number) != lane.read:
        what = "twice or out of order" if int(number) < lane.read else f"before event {lane.read}"
        raise DemoLoadError(f"event {number} of key {key} was read {what}")
    lane.read += 1


def _key_in(low: float, high: float) -> str:
    """Return a routing key of a range."""
    number = 0
    while not low <= routing_key_hash(f"key-{number}") < high:
        number += 1
    return f"key-{number}"
