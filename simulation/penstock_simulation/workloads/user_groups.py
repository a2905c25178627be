"""A user of groups that begin and end at a cut or a time, and of groups whose start is invalid.

It is the only writer of its stream, so it knows the events between two of its marks. A group from one mark to another
returns exactly those, each once, and then ends; rounding never loses events. An invalid start is refused and leaves
nothing behind. A group that is deleted and recreated starts over; while it exists its scope cannot be deleted.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from penstock.client.client import Client
from penstock.client.groups.reader import Reader
from penstock.client.streams.start_positions import Start
from penstock.model.errors import InvalidArgumentError, PenstockError, ScopeNotEmptyError
from penstock.model.policies import Scaling
from penstock.model.stream_cuts import StreamCut
from penstock_simulation.simulated.cancellation import CutShortError
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.users import UserHabits, close_client, draw_user_settings, maybe_cut
from penstock_simulation.workloads.world import SCOPE, Workload, World

_STREAM = f"{SCOPE}/marked"
#: A scope that contains only a group.
_GROUP_SCOPE = f"{SCOPE}-groups"
_KEYS = ("a", "b", "c")
#: Pause between a mark and the writes before and after it: the compared clocks have millisecond resolution.
_BESIDE_A_MARK_S = 0.01


@dataclass(frozen=True, slots=True)
class _Mark:
    """A mark: the number of events written so far, the stream's tail, and the clock."""

    count: int
    cut: StreamCut
    at_ms: int


class UserGroups(Workload):
    """See the module."""

    verifies_again = False  # Everything is checked while it runs.

    def __init__(self, world: World, host: Host, name: str, rng: random.Random, *, habits: UserHabits) -> None:
        super().__init__(world, host, name, rng)
        self._habits = habits
        #: All events in write order, and those for which it is unknown whether, or when, they were stored.
        self._events: list[bytes] = []
        self._uncertain: set[bytes] = set()
        self._marks: list[_Mark] = []
        self._group_count = 0

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        insist, client = self.world.insist, self.client
        make = partial(client.create_stream, _STREAM, scaling=Scaling.fixed(2), exist_ok=True)
        await insist(f"create {_STREAM}", make)
        await insist(f"create {_GROUP_SCOPE}", partial(client.create_scope, _GROUP_SCOPE))
        await self._mark()

    async def run(self) -> None:
        """See `Workload.run`."""
        world, rng = self.world, self.rng
        while world.is_writing:
            await self.rest(0.3)
            settings = draw_user_settings(rng, world.cluster.settings.client, self._habits)
            client = world.cluster.client(self.host, settings)
            client._open()
            try:
                for _ in range(rng.randrange(1, 4)):
                    await self._write(client)
                await rng.choice((self._read_between, self._read_between, self._ask_for_nonsense, self._begin_again))(
                    client
                )
            except CutShortError:
                world.counts["groups of users cut short"] += 1
            except PenstockError as error:
                if not world.is_passing(error):
                    world.problem(f"{self.name}: {error!r}")
            finally:
                await close_client(world, self.host, client)

    # -- writes -------------------------------------------------------------------------------------------------

    async def _write(self, client: Client) -> None:
        events = [
            b"%06d %s " % (len(self._events) + number, self.rng.choice(_KEYS).encode()) + self.world.padding(self.rng)
            for number in range(self.rng.randrange(1, 8))
        ]
        self._events += events
        self._uncertain.update(events)
        async with client.event_writer(_STREAM) as writer:
            await writer.write_many(events, [_key_of(event) for event in events])
        # A writer that was closed without an error has stored everything.
        self._uncertain.difference_update(events)
        await self._mark()

    async def _mark(self) -> None:
        await asyncio.sleep(_BESIDE_A_MARK_S)
        at_ms = self.host.wall_clock_ms()
        await asyncio.sleep(_BESIDE_A_MARK_S)
        cut = await self.world.insist(f"tail of {_STREAM}", partial(self.client.tail, _STREAM))
        self._marks.append(_Mark(len(self._events), cut, at_ms))

    # -- groups between marks -----------------------------------------------------------------------------------

    async def _read_between(self, client: Client) -> None:
        rng = self.rng
        low, high = sorted(rng.choices(range(len(self._marks)), k=2))
        first, last = self._marks[low], self._marks[high]
        start, is_exact_at_start = self._place(first)
        until, is_exact_at_end = self._place(last)
        self._group_count += 1
        name = f"between-{self._group_count}"
        opening = client.reader_group(name, [_STREAM], start=start, until=until)
        group = await maybe_cut(rng, self._habits.cut_rate, opening)
        reader = await maybe_cut(rng, self._habits.cut_rate, group.reader("r"))
        found = await self._read_to_the_end(reader, name)
        await self.world.insist(f"{name}: close", reader.close)
        # Events that may have been stored after the mark are not checked.
        wanted = [event for event in self._events[first.count : last.count] if event not in self._uncertain]
        beyond = {
            *(self._events[: first.count] if is_exact_at_start else ()),
            *(self._events[last.count :] if is_exact_at_end else ()),
        }.difference(self._uncertain)
        self._judge(f"{name} from {start!r} to {until!r}", found, wanted, beyond)
        self.world.counts["groups between two marks"] += 1
        self.world.counts["events between two marks"] += len(wanted)
        await self.world.insist(f"delete {name}", partial(self._delete, name, SCOPE))

    def _place(self, mark: _Mark) -> tuple[Start, bool]:
        """Return how to express a mark's place, and whether that is exact."""
        kind = self.rng.choice(("cut", "text", "time"))
        if kind == "time":
            return datetime.fromtimestamp(mark.at_ms / 1000, UTC), False
        return mark.cut if kind == "cut" else mark.cut.to_text(), True

    async def _read_to_the_end(self, reader: Reader, name: str) -> list[bytes]:
        world, found = self.world, list[bytes]()
        while not reader.is_finished:
            try:
                event = await maybe_cut(self.rng, self._habits.cut_rate, reader.read(1.0))
            except CutShortError:
                continue
            except PenstockError as error:
                if not world.is_passing(error):
                    raise
                continue
            if event is not None:
                found.append(event.data)
            elif world.now_s > world.give_up_s:
                world.problem(f"group {name} does not come to its end")
                break
        return found

    def _judge(self, group: str, found: Sequence[bytes], wanted: Sequence[bytes], beyond: set[bytes]) -> None:
        problem = self.world.problem
        if missing := sorted(set(wanted).difference(found)):
            problem(f"group {group} left out {missing[:3]}")
        if surplus := sorted(beyond.intersection(found)):
            problem(f"group {group} handed out {surplus[:3]}, which lie outside")
        if again := [event for event, count in Counter(found).items() if count > 1]:
            problem(f"group {group} handed out {again[:3]} more than once")
        for key in _KEYS:
            mine = [event for event in found if _key_of(event) == key and event not in self._uncertain]
            if mine != sorted(mine):
                problem(f"group {group} got events of key {key} out of order: {mine[:9]}")

    # -- invalid starts -----------------------------------------------------------------------------------------

    async def _ask_for_nonsense(self, client: Client) -> None:
        """Create a group with an invalid start: it must be refused, and must not exist afterwards."""
        world, rng = self.world, self.rng
        self._group_count += 1
        name = f"nonsense-{self._group_count}"
        tail = self._marks[-1].cut
        beyond = replace(tail, positions={segment: offset + 1_000_000 for segment, offset in tail.positions.items()})
        start = rng.choice(("beginning", "2026-99-99", beyond, replace(tail, stream="other"), {_STREAM: "here"}))
        try:
            await client.reader_group(name, [_STREAM], start=start)
            world.problem(f"group {name} was made with start={start!r}")
        except InvalidArgumentError:
            world.counts["groups refused"] += 1
        read = partial(self.client._controller_client.reader_group, SCOPE, name)
        if await world.insist(f"find {name}", read) is not None:
            world.problem(f"group {name} was refused, and is there")

    # -- recreated groups ---------------------------------------------------------------------------------------

    async def _begin_again(self, client: Client) -> None:
        """Read a little in a group, delete it and recreate it: it must start at the head, and keep its scope."""
        world = self.world
        await world.insist("delete the group", partial(self._delete, "again", _GROUP_SCOPE))
        make = partial(client.reader_group, "again", [_STREAM], scope=_GROUP_SCOPE)
        group = await make()
        head = await client.head(_STREAM)
        if _positions(await group.stream_cuts()) != head.positions:
            world.problem(f"group again was created again, and is at {_positions(await group.stream_cuts())}")
        reader = await group.reader("r")
        for _ in range(self.rng.randrange(1, 4)):
            await maybe_cut(self.rng, self._habits.cut_rate, reader.read(1.0))
        await reader.close()
        try:
            await client.delete_scope(_GROUP_SCOPE)
            world.problem(f"scope {_GROUP_SCOPE} was deleted under its group")
        except ScopeNotEmptyError:
            world.counts["groups created again"] += 1

    async def _delete(self, name: str, scope: str) -> None:
        if await self.client._controller_client.reader_group(scope, name) is not None:
            await self.client.delete_reader_group(name, scope=scope)


def _key_of(event: bytes) -> str:
    return event.split(b" ", 2)[1].decode()


def _positions(cuts: Mapping[str, StreamCut]) -> Mapping[int, int]:
    return cuts[_STREAM].positions
