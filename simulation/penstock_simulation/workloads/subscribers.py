"""Two groups that subscribe to a stream which is truncated as far as allowed, all the time, while their readers die.

One has automatic retention, the other acknowledges by hand; calls that are cancelled at times switch the latter between
both modes. No event is truncated before both groups have processed it: their readers never get `SegmentTruncatedError`,
the stream never begins after a group's stored position, nor after the last checkpoint of the automatic group. At the
end each group has processed everything that was written, and takes checkpoints.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial

from penstock.client.client import Client
from penstock.client.groups.reader import Reader
from penstock.client.groups.reader_group import ReaderGroup
from penstock.client.reading.event import Event
from penstock.client.settings import ClientSettings
from penstock.model.errors import InvalidArgumentError, PenstockError, SegmentTruncatedError
from penstock.model.policies import Retention, RetentionKind, Scaling
from penstock_simulation.simulated.cancellation import CutShortError
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.events import is_at_the_end, scale_somehow
from penstock_simulation.workloads.users import UserHabits, maybe_cut
from penstock_simulation.workloads.world import SCOPE, Workload, World

_STREAM = f"{SCOPE}/held"
_ITSELF = "acknowledges-itself"
_BY_HAND = "is-acknowledged"
_KEYS = ("a", "b", "c", "d")
#: Less than any event: everything that no group holds is truncated.
_KEPT_BYTES = 1
#: A member without heartbeats for this long is declared dead.
_READER_TIMEOUT_S = 4.0


class Subscribers(Workload):
    """See the module."""

    verifies_again = False  # The groups are finished.

    def __init__(self, world: World, host: Host, name: str, rng: random.Random, *, habits: UserHabits) -> None:
        super().__init__(world, host, name, rng)
        self._habits = habits
        self._event_count = 0
        self._life_count = 0
        #: Events that were certainly stored.
        self._stored: list[bytes] = []
        self._worked_off: Mapping[str, set[bytes]] = {_ITSELF: set(), _BY_HAND: set()}

    def make_client(self) -> Client:
        """See `Workload.make_client`."""
        return self.world.cluster.client(self.host, self._settings())

    def _settings(self) -> ClientSettings:
        return replace(
            self.world.cluster.settings.client,
            reader_timeout_s=_READER_TIMEOUT_S,
            position_interval_s=0.3,
            reader_group_publish_interval_s=0.4,
            reader_group_checkpoint_interval_s=0.6,
            reader_group_stream_refresh_s=1.0,
        )

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        insist, client = self.world.insist, self.client
        policy = Retention(RetentionKind.BY_SIZE, _KEPT_BYTES)
        make = partial(client.create_stream, _STREAM, scaling=Scaling.fixed(2), retention=policy, exist_ok=True)
        await insist(f"create {_STREAM}", make)
        for group, retention in ((_ITSELF, "automatic"), (_BY_HAND, "manual")):
            await insist(f"create {group}", partial(client.reader_group, group, [_STREAM], retention=retention))

    async def run(self) -> None:
        """See `Workload.run`."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write())
            tasks.create_task(self._scale())
            tasks.create_task(self._watch())
            for group in (_ITSELF, _ITSELF, _BY_HAND):
                tasks.create_task(self._consume(group))

    async def verify(self) -> None:
        """See `Workload.verify`."""
        world = self.world
        for name, found in self._worked_off.items():
            group: ReaderGroup = await world.insist(f"join {name}", partial(self._join, name))
            reader: Reader = await world.insist(f"read as {name}", partial(group.reader, "last"))
            while True:
                event = await self._next(name, partial(world.insist, "read on", partial(reader.read, 0.5)))
                if event is not None:
                    found.add(event.data)
                    continue
                await world.insist("store positions", reader.store_positions)
                if await world.insist("how much is unread", partial(is_at_the_end, self.client, group, _STREAM)):
                    await self._see_a_checkpoint(name, group)
                    break
                if world.now_s > world.give_up_s:
                    world.problem(f"group {name} does not get to the end of {_STREAM}")
                    break
            await world.insist(f"leave {name}", reader.close)
            if missing := [event for event in self._stored if event not in found]:
                world.problem(f"group {name} never got {len(missing)} events, the first of them {missing[:3]}")

    async def _see_a_checkpoint(self, name: str, group: ReaderGroup) -> None:
        """Check that the group's position becomes its checkpoint: it does not wait for dead members."""
        while True:
            found = await self.world.insist("describe a group", group.describe)
            if found.checkpoint.get(_STREAM) == found.positions[_STREAM]:
                return
            if self.world.now_s > self.world.give_up_s:
                self.world.problem(f"group {name} is at {found.positions}, its last checkpoint at {found.checkpoint}")
                return
            await asyncio.sleep(0.2)

    async def _join(self, name: str) -> ReaderGroup:
        return await self.client.reader_group(name, scope=SCOPE)

    # -- the stream ---------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        world, rng = self.world, self.rng
        while world.is_writing:
            await self.rest(0.3)
            key = rng.choice(_KEYS)
            events = []
            for _ in range(rng.randrange(1, 6)):
                self._event_count += 1
                events.append(b"%s %d " % (key.encode(), self._event_count) + world.padding(rng))
            try:
                async with self.client.event_writer(_STREAM) as writer:
                    await writer.write_many(events, key)
            except PenstockError as error:
                self._check_passing("writes", error)
                continue
            # A writer that was closed without an error has stored everything.
            self._stored += events

    async def _scale(self) -> None:
        while self.world.is_writing:
            await self.rest(6.0)
            await scale_somehow(self, _STREAM)

    async def _watch(self) -> None:
        """Check that no position is truncated. Positions are fetched after the head, since they only advance."""
        world = self.world
        groups: dict[str, ReaderGroup] = {}
        last: Mapping[int, int] = {}
        last_taken: Mapping[int, int] = {}
        while world.is_writing:
            await self.rest(0.5)
            try:
                head = (await self.client.head(_STREAM)).positions
                world.counts["heads of held streams"] += head != last
                last = head
                for name in self._worked_off:
                    if name not in groups:
                        groups[name] = await self._join(name)
                    found = await groups[name].describe()
                    place = found.positions[_STREAM].positions
                    if behind := _behind(head, place):
                        world.problem(f"{_STREAM} begins at {head}, group {name} is at {place}: lost in {behind}")
                    if name == _ITSELF and _STREAM in found.checkpoint:
                        taken = found.checkpoint[_STREAM].positions
                        world.counts["checkpoints of held streams"] += taken != last_taken
                        last_taken = taken
                        if behind := _behind(head, taken):
                            world.problem(f"{_STREAM} begins at {head}, the checkpoint of {name} is {taken}: {behind}")
            except PenstockError as error:
                self._check_passing("watches", error)

    # -- the readers --------------------------------------------------------------------------------------------

    async def _consume(self, name: str) -> None:
        """Run life after life, through all faults; most lives end with an unprocessed event in hand."""
        world, rng = self.world, self.rng
        while world.is_writing:
            self._life_count += 1
            reader_name = f"reader-{self._life_count}"
            try:
                async with world.cluster.client(self.host, self._settings()) as client:
                    group = await client.reader_group(name, scope=SCOPE)
                    if name == _BY_HAND:
                        await self._change(group)
                    reader = await maybe_cut(rng, self._habits.cut_rate, group.reader(reader_name, positions="manual"))
                    try:
                        await self._live(name, group, reader)
                    finally:
                        if rng.random() < 0.7:
                            await reader.abandon()
                            world.counts["deaths of subscribers"] += 1
                        else:
                            await reader.close()
            except CutShortError:
                world.counts["subscribers cut short"] += 1
            except PenstockError as error:
                self._check_passing(f"reads as {name}", error)
                await self.rest(0.2)

    async def _change(self, group: ReaderGroup) -> None:
        """Switch the group between automatic retention and acknowledging by hand."""
        if self.rng.random() < 0.5:
            retention = self.rng.choice(("automatic", "manual"))
            await maybe_cut(self.rng, 0.5, group.set_retention(retention))
            self.world.counts["retention of groups changed"] += 1

    async def _live(self, name: str, group: ReaderGroup, reader: Reader) -> None:
        world, rng = self.world, self.rng
        until_s = world.now_s + rng.uniform(1.0, 8.0)
        while world.is_writing:
            event = await self._next(name, partial(reader.read, 0.5))
            # Processing an event takes a while; positions are stored meanwhile.
            if event is not None and rng.random() < 0.2:
                await self.rest(0.5)
            if world.now_s > until_s:
                return  # It dies with an unprocessed event in hand.
            if event is None:
                continue
            self._worked_off[name].add(event.data)
            if rng.random() < 0.4:
                await reader.commit()
                if name == _BY_HAND and rng.random() < 0.5:
                    await self._acknowledge(group)

    async def _acknowledge(self, group: ReaderGroup) -> None:
        try:
            if not (cut := (await group.stream_cuts())[_STREAM]).positions:
                return
            await group.acknowledge(cut)
        except InvalidArgumentError as error:
            # The group has automatic retention at the moment, or its position covers some keys twice.
            if "retention 'automatic'" not in str(error) and "does not cover every key exactly once" not in str(error):
                raise
        else:
            self.world.counts["cuts acknowledged"] += 1

    async def _next(self, name: str, read: Callable[[], Awaitable[Event | None]]) -> Event | None:
        """Read. A subscriber must never get `SegmentTruncatedError`."""
        try:
            return await read()
        except SegmentTruncatedError as error:
            self.world.problem(f"group {name} has lost what it had not worked off: {error}")
            return None

    def _check_passing(self, what: str, error: PenstockError) -> None:
        if not self.world.is_passing(error):
            self.world.problem(f"{self.name} {what}: {error!r}")


def _behind(head: Mapping[int, int], place: Mapping[int, int]) -> set[int]:
    """Return the segments in which a stream begins after a position."""
    return {one for one, offset in head.items() if offset > place.get(one, offset)}
