"""A group whose streams change while it reads: by patterns, by name, by calls that are cancelled at any await.

One consumer reads, life after life, while another client changes the group's streams. At the end every event that was
acknowledged in a stream that matches the patterns has been processed, in order, and repeatedly only after a crash; and
the group reads exactly the existing streams.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial

from penstock.client.groups.reader import Reader
from penstock.client.groups.reader_group import ReaderGroup
from penstock.client.reading.event import Event
from penstock.model.errors import NoSuchStreamError, PenstockError
from penstock_simulation.simulated.cancellation import CutShortError
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.users import UserHabits, draw_user_settings, maybe_cut
from penstock_simulation.workloads.world import SCOPE, Workload, World

_GROUP = "changes"
_READER = "consumer"
_PATTERN = f"{SCOPE}/found-*"
_NAMED = f"{SCOPE}/named"
#: Most streams per run that match the pattern.
_STREAM_COUNT_MAX = 6


class GroupChanges(Workload):
    """See the module."""

    verifies_again = False  # The group is finished.

    def __init__(self, world: World, host: Host, name: str, rng: random.Random, *, habits: UserHabits) -> None:
        super().__init__(world, host, name, rng)
        self._habits = habits
        self._life_count = 0
        self._stream_count = 0
        self._event_count = 0
        #: Stream -> events that were certainly stored, in order.
        self._stored: dict[str, list[bytes]] = defaultdict(list)
        self._deleted: set[str] = set()
        #: Event -> the lives in which it was returned, and all events in order.
        self._delivered: dict[bytes, list[int]] = defaultdict(list)
        self._order: list[bytes] = []
        self._lost: set[int] = set()

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        insist, client = self.world.insist, self.client
        await insist(f"create {_NAMED}", partial(client.create_stream, _NAMED, exist_ok=True))
        await self._make_stream()
        await insist(f"create group {_GROUP}", partial(client.reader_group, _GROUP, [_PATTERN]))

    async def run(self) -> None:
        """See `Workload.run`."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._consume())
            tasks.create_task(self._change())

    async def verify(self) -> None:
        """See `Workload.verify`."""
        world = self.world
        life = self._next_life()
        join = partial(self.client.reader_group, _GROUP, scope=SCOPE)
        group: ReaderGroup = await world.insist(f"join {_GROUP}", join)
        reader: Reader = await world.insist(f"{self.name} reads to the end", partial(group.reader, _READER))
        while True:
            event = await world.insist(f"{self.name} reads", partial(reader.read, 0.5))
            if event is not None:
                self._deliver(event, life)
                continue
            await world.insist("store positions", reader.store_positions)
            if not await world.insist("unread bytes", group.unread_bytes):
                break
            if world.now_s > world.give_up_s:
                world.problem(f"group {_GROUP} does not get to the end of its streams")
                break
        state = await world.insist("read the group", group._state)
        await world.insist(f"{self.name} leaves", reader.close)
        self._judge(set(state.streams))

    # -- reading ------------------------------------------------------------------------------------------------

    def _next_life(self) -> int:
        self._life_count += 1
        return self._life_count

    async def _consume(self) -> None:
        """Run life after life, through all faults."""
        world, rng = self.world, self.rng
        while world.is_writing:
            life = self._next_life()
            ends_s = world.now_s + rng.uniform(1.0, 10.0)
            settings = draw_user_settings(rng, world.cluster.settings.client, self._habits)
            try:
                async with world.cluster.client(self.host, settings) as client:
                    group = await maybe_cut(rng, self._habits.cut_rate, client.reader_group(_GROUP, scope=SCOPE))
                    reader = await maybe_cut(rng, self._habits.cut_rate, group.reader(_READER))
                    try:
                        await self._read(reader, life, ends_s)
                        if rng.random() < 0.5:
                            self._lost.add(life)
                        else:
                            await reader.close()
                    finally:
                        if not reader.is_closed:
                            self._lost.add(life)
                            await reader.abandon()
            except CutShortError:
                self._lost.add(life)
            except PenstockError as error:
                self._lost.add(life)
                self._check_passing("reads", error)
                await self.rest(0.2)

    async def _read(self, reader: Reader, life: int, ends_s: float) -> None:
        world, rng = self.world, self.rng
        while world.now_s < ends_s and world.is_writing:
            try:
                event = await maybe_cut(rng, self._habits.cut_rate, reader.read(0.5))
            except CutShortError:
                continue
            if event is not None:
                self._deliver(event, life)

    def _deliver(self, event: Event, life: int) -> None:
        self._delivered[event.data].append(life)
        self._order.append(event.data)
        self.world.counts["events of changing groups"] += 1

    # -- changes ------------------------------------------------------------------------------------------------

    async def _change(self) -> None:
        """Change the group's streams, and the existing streams; about half of the calls are cancelled midway."""
        world, rng = self.world, self.rng
        while world.is_writing:
            settings = draw_user_settings(rng, world.cluster.settings.client, self._habits)
            try:
                async with world.cluster.client(self.host, settings) as client:
                    group = await maybe_cut(rng, 0.2, client.reader_group(_GROUP, scope=SCOPE))
                    for _ in range(rng.randrange(1, 6)):
                        await self.rest(0.5)
                        await self._change_once(group)
            except CutShortError:
                world.counts["changes of groups cut short"] += 1
            except PenstockError as error:
                self._check_passing("changes its group", error)

    async def _change_once(self, group: ReaderGroup) -> None:
        rng = self.rng
        kind = rng.choice(("add", "remove", "write", "write", "make", "delete"))
        if kind == "make" and self._stream_count < _STREAM_COUNT_MAX:
            await self._make_stream()
        elif kind == "delete" and rng.random() < 0.3 and self._living():
            stream = rng.choice(self._living())
            await self._delete_stream(stream)
            if self._habits.remakes_streams and stream in self._deleted:
                await self._remake_stream(stream)
        elif kind == "add":
            await maybe_cut(rng, 0.5, group.add_streams([_NAMED], start=rng.choice(("earliest", "latest"))))
        elif kind == "remove":
            await maybe_cut(rng, 0.5, group.remove_streams([_NAMED]))
        else:
            await self._write(rng.choice([*self._living(), _NAMED]))
        self.world.counts[f"changes of groups: {kind}"] += 1

    def _living(self) -> list[str]:
        streams = (f"{SCOPE}/found-{number}" for number in range(self._stream_count))
        return [stream for stream in streams if stream not in self._deleted]

    async def _make_stream(self) -> None:
        stream = f"{SCOPE}/found-{self._stream_count}"
        await self.world.insist(f"create {stream}", partial(self.client.create_stream, stream, exist_ok=True))
        self._stream_count += 1
        await self._write(stream)

    async def _delete_stream(self, stream: str) -> None:
        """Delete a stream; events that have not been read are deleted with it."""
        if len(self._living()) < 2:
            return
        self._deleted.add(stream)
        await self._insist_on_stream(f"seal {stream}", partial(self.client.seal_stream, stream))
        await self._insist_on_stream(f"delete {stream}", partial(self.client.delete_stream, stream))

    async def _remake_stream(self, stream: str) -> None:
        """Recreate a stream: the events of the old one no longer count, those of the new one do."""
        await self.world.insist(f"create {stream}", partial(self.client.create_stream, stream, exist_ok=True))
        self._deleted.discard(stream)
        del self._stored[stream]
        self.world.counts["streams made again under a group"] += 1
        await self._write(stream)

    async def _insist_on_stream(self, what: str, attempt: Callable[[], Awaitable[None]]) -> None:
        is_repeated = False

        async def once_more() -> None:
            nonlocal is_repeated
            if await self.client.stream_exists(what.partition(" ")[2]):
                was_tried, is_repeated = is_repeated, True
                try:
                    await attempt()
                except NoSuchStreamError:
                    # An earlier attempt without an answer took effect after the check.
                    if not was_tried:
                        raise

        await self.world.insist(what, once_more)

    async def _write(self, stream: str) -> None:
        events = []
        for _ in range(self.rng.randrange(1, 8)):
            self._event_count += 1
            events.append(b"%s %d" % (stream.encode(), self._event_count))
        async with self.client.event_writer(stream) as writer:
            await writer.write_many(events, "k")
        # A writer that was closed without an error has stored everything.
        self._stored[stream] += events

    def _check_passing(self, what: str, error: PenstockError) -> None:
        if not self.world.is_passing(error):
            self.world.problem(f"{self.name} {what}: {error!r}")

    # -- checks -------------------------------------------------------------------------------------------------

    def _judge(self, streams: set[str]) -> None:
        problem = self.world.problem
        living = set(self._living())
        if streams - {_NAMED} != living:
            problem(f"group {_GROUP} reads {sorted(streams)}, there are {sorted(living)}")
        for stream in sorted(living):
            missing = [event for event in self._stored[stream] if event not in self._delivered]
            if missing:
                problem(f"group {_GROUP} never got {missing[:5]} of {stream}")
            prefix = stream.encode() + b" "
            first = [int(event[len(prefix) :]) for event in dict.fromkeys(self._order) if event.startswith(prefix)]
            if first != sorted(first):
                problem(f"group {_GROUP} got events of {stream} out of order: {first}")
        for event, lives in self._delivered.items():
            lost_count = sum(life in self._lost for life in lives)
            # A stream that is added again may be read from its head again.
            if not event.startswith(_NAMED.encode()) and len(lives) > 1 + lost_count:
                problem(f"group {_GROUP} got {event!r} in lives {lives}, of which {lost_count} were lost")
