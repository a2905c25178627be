"""Users of a reader group: each processes events on its own machine, under the faults of real users.

They leave cleanly, fail while processing an event, are cancelled at any await of a call, are killed, or pause for
longer than the reader timeout. Each machine has its own clock.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import TypeVar

from penstock.client.client import Client
from penstock.client.groups.reader import Reader
from penstock.client.reading.event import Event
from penstock.client.settings import ClientSettings
from penstock.model.errors import PenstockError
from penstock.model.names import segment_name, split_scoped_name
from penstock_simulation.checks.history import EventDelivered, EventSeen, FullRead, PositionsStored, ReaderLost
from penstock_simulation.simulated.cancellation import CutShortError, cut_short
from penstock_simulation.simulated.errors import HostDownError
from penstock_simulation.simulated.host import Death, Host
from penstock_simulation.workloads.events import is_at_the_end, key_of
from penstock_simulation.workloads.world import Workload, World

T = TypeVar("T")

#: A member without heartbeats for this long is declared dead: longer than the faults of a profile with users.
READER_TIMEOUT_S = 15.0
#: Slack added to a limit, for turns of the event loop and slow hosts.
_SLACK_S = 0.5
_CLOCK_JUMP_MS_MAX = 3_600_000


class Fate(Enum):
    """How a life of a user ends."""

    LEAVES = "leaves"
    FAILS = "fails while it works on an event"
    CANCELLED = "is cancelled while it leaves"
    KILLED = "is killed"
    HANGS = "hangs, and is taken for dead"


class End(Enum):
    """How a user stops using a writer."""

    CLOSES = "close"
    CLOSES_WHILE_WRITING = "close while events are still written"
    CLOSES_THE_CLIENT = "client.close() with the writer open"
    IS_CANCELLED = "a close that is cancelled"
    ABANDONS = "abandon"


@dataclass(frozen=True, slots=True)
class UserHabits:
    """Behaviour of a profile's users.

    Attributes:
        fates: possible ends of readers.
        ends: possible ends of writers.
        reader_count: members of the group.
        cut_rate: probability that a call is cancelled at one of its awaits.
        limits_s: retry times of their clients.
        life_s_max: longest life of a reader.
        give_up_rate: probability that a user closes a reader after a failed read, instead of reading again.
        remakes_streams: streams that are deleted under a group are at times recreated under the same names.
    """

    fates: tuple[Fate, ...] = tuple(Fate)
    ends: tuple[End, ...] = tuple(End)
    reader_count: int = 3
    cut_rate: float = 0.1
    limits_s: tuple[float, ...] = (0.5, 2.0, 60.0)
    life_s_max: float = 12.0
    give_up_rate: float = 0.5
    remakes_streams: bool = False

    @property
    def loses_no_reader(self) -> bool:
        """Whether each reader works until it leaves its group, so that no other reader may declare it dead."""
        return set(self.fates) == {Fate.LEAVES} and not self.cut_rate


class _WorkFailedError(Exception):
    """Raised by a user's own code."""


@dataclass(slots=True)
class _Life:
    name: str
    fate: Fate
    ends_s: float
    delivered_count: int = 0
    #: The last returned event, until the next one is requested: it counts as unread.
    has_event_in_hand: bool = False
    is_lost: bool = False
    #: The last error of a read.
    error: PenstockError | None = None
    settings: ClientSettings = field(default_factory=ClientSettings)


def draw_user_settings(rng: random.Random, base: ClientSettings, habits: UserHabits) -> ClientSettings:
    """Return settings of a user's client: limits that outages exceed at times, and different buffer sizes."""
    drawn = replace(
        base,
        retry_time_max_s=rng.choice(habits.limits_s),
        request_timeout_s=rng.choice((1.0, 5.0)),
        controller_request_timeout_s=rng.choice((1.0, 5.0)),
        max_unacknowledged_bytes=rng.choice((2_000, 64 * 1024 * 1024)),
        reader_timeout_s=READER_TIMEOUT_S,
        position_interval_s=rng.uniform(0.5, 3.0),
    )
    # Derived from an earlier draw: half of them have short close time-outs.
    is_hasty = drawn.position_interval_s < 1.75
    return replace(drawn, reader_close_timeout_s=0.5 if is_hasty else 5.0, close_timeout_s=1.0 if is_hasty else 30.0)


def draw_suspension(rng: random.Random) -> int:
    """Return the number of the suspension at which a call is cancelled. Most calls have few."""
    return min(1 + int(rng.expovariate(0.6)), 10)


async def in_time(world: World, host: Host, what: str, limit_s: float, call: Awaitable[T]) -> T:
    """Make a call from a host, which must end within `limit_s` with any outcome, however many layers retry.

    Time during which the host is paused does not count.
    """
    began_s, held_s = world.now_s, host.held_s
    try:
        answer = await call
    except Exception:
        _judge_time(world, what, limit_s, world.now_s - began_s - (host.held_s - held_s))
        raise
    _judge_time(world, what, limit_s, world.now_s - began_s - (host.held_s - held_s))
    return answer


def _judge_time(world: World, what: str, limit_s: float, took_s: float) -> None:
    if took_s > limit_s + _SLACK_S:
        world.problem(f"{what} took {took_s:.3g} s, its limit is {limit_s:g} s")


async def close_client(world: World, host: Host, client: Client) -> None:
    """Close a client within its limit. Events that could not be stored have failed acknowledgements."""
    try:
        await in_time(world, host, "closing a client", client.settings.close_timeout_s, client.close())
    except PenstockError:
        pass  # It is closed in any case.


async def maybe_cut(rng: random.Random, rate: float, call: Awaitable[T]) -> T:
    """Make a call, cancelled at a drawn await with probability `rate`. Raises `CutShortError` then."""
    if rng.random() < rate:
        return await cut_short(call, draw_suspension(rng))
    return await call


class UserReader(Workload):
    """One user of a group, life after life. All members record one pass, in which events may repeat.

    `is_leader`: reads at the end until nothing is left.
    """

    verifies_again = False  # The group is finished.

    def __init__(
        self, world: World, host: Host, name: str, rng: random.Random, *, stream: str, group: str, is_leader: bool,
        machine: str, habits: UserHabits,
    ) -> None:  # fmt: skip
        super().__init__(world, host, name, rng)
        self._stream = stream
        self._group = group
        self._is_leader = is_leader
        self._read = f"group-{group}"
        self._machine = world.cluster.add_client(machine)
        self._habits = habits
        self._cut_rate = habits.cut_rate
        self._life_count = 0

    def make_client(self) -> Client:
        """See `Workload.make_client`."""
        base = self.world.cluster.settings.client
        return self.world.cluster.client(self.host, replace(base, reader_timeout_s=READER_TIMEOUT_S))

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        if self._is_leader:
            await self.client.reader_group(self._group, [self._stream])

    async def run(self) -> None:
        """See `Workload.run`: start a new life after each end."""
        world, machine = self.world, self._machine
        while world.is_writing:
            life = self._draw_life()
            machine.jump_clock(self.rng.randint(-_CLOCK_JUMP_MS_MAX, _CLOCK_JUMP_MS_MAX))
            machine.set_clock_drift(self.rng.uniform(-0.01, 0.01))
            strike = asyncio.create_task(self._strike(life))
            try:
                await machine.run(self._live(life))
            except HostDownError:
                self._lose(life, "killed")
                machine.restart()
            finally:
                strike.cancel()
                await asyncio.wait([strike])
            world.counts[f"users: {life.fate.value}"] += 1

    async def verify(self) -> None:
        """See `Workload.verify`."""
        world = self.world
        if not self._is_leader:
            return
        invocation = world.history.invoke(self.name, FullRead(self._stream, self._read))
        life = self._draw_life()
        life.fate = Fate.LEAVES
        join = partial(self.client.reader_group, self._group, [self._stream])
        group = await world.insist(f"join {self._group}", join)
        reader = await world.insist(f"{self.name} starts to read", partial(group.reader, life.name))
        while True:
            event = await world.insist(f"{self.name} reads", partial(self._read_on, reader))
            if event is not None:
                self._deliver(event, life)
                self._work_off(event)
                continue
            await world.insist("store positions", reader.store_positions)
            if await world.insist("how much is unread", partial(is_at_the_end, self.client, group, self._stream)):
                break
            if world.now_s > world.give_up_s:
                world.problem(f"group {self._group} does not get to the end of {self._stream}")
                break
        await world.insist(f"{self.name} leaves", reader.close)
        world.history.ok(invocation)

    async def _read_on(self, reader: Reader) -> Event | None:
        try:
            return await maybe_cut(self.rng, self._cut_rate, reader.read(0.5))
        except CutShortError:
            return None

    # -- one life -----------------------------------------------------------------------------------------------

    def _draw_life(self) -> _Life:
        rng = self.rng
        self._life_count += 1
        # Now and then under a previous name.
        name = f"{self.name}-{self._life_count if rng.random() < 0.7 else max(self._life_count - 1, 1)}"
        return _Life(
            f"{name}.{self._life_count}",
            rng.choice(self._habits.fates),
            self.world.now_s + rng.uniform(0.5, self._habits.life_s_max),
            settings=draw_user_settings(rng, self.world.cluster.settings.client, self._habits),
        )

    async def _strike(self, life: _Life) -> None:
        """Crash the machine, or pause it for longer than the reader timeout."""
        machine = self._machine
        if life.fate not in (Fate.KILLED, Fate.HANGS):
            return
        await asyncio.sleep(max(life.ends_s - self.world.now_s, 0.0))
        if life.fate is Fate.KILLED:
            machine.crash(Death.KILL)
            return
        self._lose(life, "hung")
        machine.pause()
        try:
            await asyncio.sleep(READER_TIMEOUT_S * self.rng.uniform(1.5, 2.5))
        finally:
            machine.resume()

    async def _live(self, life: _Life) -> None:
        """Use the machine until the drawn end."""
        world = self.world
        client = world.cluster.client(self._machine, life.settings)
        client._open()
        try:
            await self._be_a_member(client, life)
        except (CutShortError, _WorkFailedError) as error:
            self._lose(life, str(error))
        except PenstockError as error:
            self._lose(life, repr(error))
            if not world.is_passing(error):
                world.problem(f"{life.name} cannot continue: {error!r}")
        await close_client(world, self._machine, client)

    async def _be_a_member(self, client: Client, life: _Life) -> None:
        limit_s = life.settings.retry_time_max_s
        join = maybe_cut(self.rng, self._cut_rate, client.reader_group(self._group, [self._stream]))
        group = await self._in_time("joining a group", limit_s, join)
        start = maybe_cut(self.rng, self._cut_rate, group.reader(life.name.rpartition(".")[0]))
        reader = await self._in_time("starting a reader", limit_s, start)
        try:
            await self._work(reader, life)
            await self._leave(reader, life)
        finally:
            if life.fate is not Fate.LEAVES or not reader.is_closed:
                await self._in_time("abandoning a reader", 0.0, reader.abandon())

    async def _in_time(self, what: str, limit_s: float, call: Awaitable[T]) -> T:
        return await in_time(self.world, self._machine, what, limit_s, call)

    async def _work(self, reader: Reader, life: _Life) -> None:
        world, rng = self.world, self.rng
        while world.now_s < life.ends_s and world.is_writing and not life.is_lost:
            event = await self._next(reader, life)
            if event is None:
                continue
            self._deliver(event, life)
            if rng.random() < 0.1:
                await self.rest(0.4)
            if life.fate is Fate.FAILS and world.now_s > life.ends_s - 1.0:
                async with reader:
                    raise _WorkFailedError("the user's own code failed")
            self._work_off(event)
            if rng.random() < 0.05:
                await self._store(reader, life)

    async def _next(self, reader: Reader, life: _Life) -> Event | None:
        """Read the next event; after a cancelled read the same user reads again from the same reader."""
        life.has_event_in_hand = False
        try:
            return await self._in_time("read(1.0)", 1.0, maybe_cut(self.rng, self._cut_rate, reader.read(1.0)))
        except CutShortError:
            self.world.counts["user calls cut short"] += 1
            return None
        except PenstockError as error:
            if error is life.error:
                self.world.problem(f"{life.name}: a read raised {error!r} though the one before had told it")
            life.error = error
            if not self.world.is_passing(error) or self.rng.random() < self._habits.give_up_rate:
                raise
            self.world.counts["user reads after an outage"] += 1
            return None

    async def _store(self, reader: Reader, life: _Life) -> None:
        count = life.delivered_count - life.has_event_in_hand
        try:
            storing = maybe_cut(self.rng, self._cut_rate, reader.store_positions())
            await self._in_time("storing positions", life.settings.retry_time_max_s, storing)
        except (CutShortError, PenstockError):
            return  # Stored or not.
        if not life.is_lost:
            self.world.history.see(self.name, PositionsStored(self._group, life.name, count))

    async def _leave(self, reader: Reader, life: _Life) -> None:
        closing: Awaitable[None] = reader.close()
        if life.fate is Fate.CANCELLED:
            closing = cut_short(closing, draw_suspension(self.rng))
        await self._in_time("closing a reader", life.settings.reader_close_timeout_s, closing)
        if not life.is_lost:
            self.world.history.see(self.name, PositionsStored(self._group, life.name, life.delivered_count))

    def _deliver(self, event: Event, life: _Life) -> None:
        life.delivered_count += 1
        life.has_event_in_hand = True
        self.world.history.see(self.name, EventDelivered(self._group, life.name, event.data))

    def _work_off(self, event: Event) -> None:
        segment = segment_name(*split_scoped_name(event.stream), event.segment_id)
        seen = EventSeen(
            self._stream, self._read, segment, event.offset, event.data, key_of(event.data), may_repeat=True
        )
        self.world.history.see(self.name, seen)
        self.world.counts["events worked off by users"] += 1

    def _lose(self, life: _Life, how: str) -> None:
        if not life.is_lost:
            life.is_lost = True
            self.world.history.see(self.name, ReaderLost(self._group, life.name, how))
