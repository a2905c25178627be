"""Planted bugs in the promises of group readers. See ``docs/reader-groups.md`` for the rules that they break."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from weakref import WeakKeyDictionary

import msgspec

from penstock.client.groups import reader_group_state as rgs
from penstock.client.groups.delivery import Delivery
from penstock.client.groups.group_state import GroupState
from penstock.client.groups.group_watch import GroupWatch
from penstock.client.groups.membership import GroupMembership
from penstock.client.groups.reader import Reader, chunk_in_hand
from penstock.client.groups.segment_events import SegmentEvents
from penstock.client.reading.event import EventChunk
from penstock_simulation.mutations.mutation import Mutation, patched
from penstock_simulation.mutations.users import LONG_OUTAGES, USERS
from penstock_simulation.workloads.profile import Profile
from penstock_simulation.workloads.users import Fate, UserHabits


def _count_what_failed_as_read() -> AbstractContextManager[None]:
    def position_of(self: Delivery, source: SegmentEvents, *, is_leaving: bool) -> int | None:
        # The check whether the application finished the event is left out.
        return self.positions()[source.segment]

    return patched(Delivery, "position_of", position_of)


def _give_away_what_is_in_hand() -> AbstractContextManager[None]:
    def is_settled(self: Delivery, source: SegmentEvents) -> bool:
        return True

    return patched(Delivery, "is_settled", is_settled)


@contextmanager
def _keep_the_error_of_an_outage() -> Iterator[None]:
    original = SegmentEvents.restart

    def restart(self: SegmentEvents, offset: int) -> None:
        if self._fetch.has_failed and offset == self.offset:
            # The error is raised at each read, while the reader's heartbeats continue.
            self._on_ready(self)
        else:
            original(self, offset)

    with patched(SegmentEvents, "restart", restart):
        yield


@contextmanager
def _take_segments_in_the_callers_task() -> Iterator[None]:
    """Acquire free segments in `read` itself: first in the record, then for reading. Cancellation skips the second."""
    acquire, next_chunk, follow = rgs.acquire, Reader._next_chunk, GroupMembership._follow
    taken: WeakKeyDictionary[GroupMembership, set[tuple[str, int]]] = WeakKeyDictionary()

    def held(membership: GroupMembership, state: GroupState) -> set[tuple[str, int]]:
        me = state.readers.get(membership._name)
        return set() if me is None else {(segment, held.turn) for segment, held in me.segments.items()}

    async def take_and_read(self: Reader, timeout_s: float | None = None) -> EventChunk | None:
        membership = self._membership
        before: set[tuple[str, int]] = set()

        def step(state: GroupState) -> GroupState:
            nonlocal before
            before = held(membership, state)
            # One at a time, so that each step may be cancelled.
            return acquire(state, membership._name, len(before) + 1)

        if membership._state is not None and membership._state.unassigned:
            state = await membership._record.update(step)
            taken.setdefault(membership, set()).update(held(membership, state) - before)
            membership.wake()
        return await next_chunk(self, timeout_s)

    def follow_what_was_taken(self: GroupMembership, state: GroupState) -> None:
        me = state.readers.get(self._name)
        if me is not None:
            known = taken.get(self, set())
            mine = {segment: each for segment, each in me.segments.items() if (segment, each.turn) in known}
            state = msgspec.structs.replace(
                state, readers={**state.readers, self._name: msgspec.structs.replace(me, segments=mine)}
            )
        follow(self, state)

    def acquire_nothing(state: GroupState, name: str, count_max: int) -> GroupState:
        return state

    with (
        patched(rgs, "acquire", acquire_nothing),
        patched(Reader, "_next_chunk", take_and_read),
        patched(GroupMembership, "_follow", follow_what_was_taken),
    ):
        yield


@contextmanager
def _balance_in_the_time_of_a_read() -> Iterator[None]:
    original = Reader._next_chunk

    async def next_chunk(self: Reader, timeout_s: float | None = None) -> EventChunk | None:
        if chunk_in_hand(self) is None:
            await self._membership.store()
        return await original(self, timeout_s)

    with patched(Reader, "_next_chunk", next_chunk):
        yield


@contextmanager
def _leave_for_as_long_as_it_takes() -> Iterator[None]:
    original = Reader.close

    async def close(self: Reader, timeout_s: float | None = None, *, is_done: bool | None = None) -> None:
        await original(self, self._cluster.settings.retry_time_max_s, is_done=is_done)

    with patched(Reader, "close", close):
        yield


def _trying(name: str, limit_s: float) -> Profile:
    """Return a profile of users whose clients retry up to these limits, and who keep reading after an error."""
    return replace(USERS, name=name, habits=UserHabits(fates=(Fate.LEAVES,), cut_rate=0.0, limits_s=(limit_s,)))


def _take_a_poll_for_a_heartbeat() -> AbstractContextManager[None]:
    original = GroupWatch._poll

    async def poll(self: GroupWatch) -> None:
        await original(self)
        for reader in self._readers():
            # So no heartbeat is ever due.
            self.shown(reader)

    return patched(GroupWatch, "_poll", poll)


#: More readers than segments, and each lives for several times the reader timeout: those without a segment store no
#: positions, so that only their heartbeats show that they are alive.
_IDLE_USERS = replace(
    LONG_OUTAGES,
    name="idle users",
    workloads=("events", "user writers", "users"),
    habits=UserHabits(
        fates=(Fate.LEAVES,), cut_rate=0.0, limits_s=(60.0,), reader_count=5, life_s_max=60.0, give_up_rate=0.0
    ),
)

READER_MUTATIONS = (
    Mutation(
        "count what failed as read", "an exception never counts events as read",
        replace(USERS, name="failing users", habits=UserHabits(fates=(Fate.FAILS,))), _count_what_failed_as_read,
    ),
    Mutation(
        "give away what is in hand", "a segment moves when nothing of it is with the application",
        replace(USERS, name="many users", habits=UserHabits(fates=(Fate.LEAVES,), reader_count=4)),
        _give_away_what_is_in_hand,
    ),
    Mutation(
        "keep the error of an outage", "after an outage the next read succeeds",
        _trying("users after outages", 0.5), _keep_the_error_of_an_outage,
    ),
    Mutation(
        "take segments in the task of the reader", "a cancelled read changes nothing",
        replace(
            USERS, name="users that give up", habits=UserHabits(fates=(Fate.LEAVES,), cut_rate=0.5, reader_count=2)
        ),
        _take_segments_in_the_callers_task,
    ),
    Mutation(
        "balance in the time of a read", "a read ends in its time",
        _trying("users in a hurry", 60.0), _balance_in_the_time_of_a_read,
    ),
    Mutation(
        "leave for as long as it takes", "a reader is closed in its time",
        replace(USERS, name="users that leave in a hurry", habits=UserHabits(fates=(Fate.LEAVES,), cut_rate=0.0)),
        _leave_for_as_long_as_it_takes,
    ),
    Mutation(
        "take a poll for a heartbeat", "no reader that is alive is declared dead",
        _IDLE_USERS, _take_a_poll_for_a_heartbeat,
    ),
)  # fmt: skip
