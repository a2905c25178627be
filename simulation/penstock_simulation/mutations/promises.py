"""Planted bugs in starts and ends of groups, in refusals and bounds, and in transactions that are resumed by id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from penstock.client.common.life_cycle import Life, LifeCycle
from penstock.client.controller import controller
from penstock.client.controller.reader_group_calls import RegisteredGroup
from penstock.client.groups import reader_group
from penstock.client.groups.group_heartbeats import GroupHeartbeats
from penstock.client.groups.group_state import GroupState
from penstock.client.groups.reader_group_record import GroupRecord
from penstock.client.groups.reader_group_streams import GroupStreams
from penstock.client.streams import start_positions, times
from penstock.client.streams.start_positions import CheckedStart, Start
from penstock.client.transactions.transaction import Transaction, _Fate
from penstock.client.transport.cluster import Cluster
from penstock.client.transport.read_ahead import ReadAhead
from penstock.client.writing.ack import Ack, OnDelivery
from penstock.client.writing.event_writer import EventWriter, is_full
from penstock.model.errors import ClosedError, InvalidArgumentError
from penstock.model.names import reader_group_table
from penstock.model.segments import SegmentInfo
from penstock.model.stream_cuts import StreamCut
from penstock_simulation.mutations.group_changes import GROUP_CHANGES
from penstock_simulation.mutations.mutation import Mutation, patched
from penstock_simulation.mutations.users import USERS
from penstock_simulation.workloads.users import UserHabits

#: No clock jumps: the stores' clocks give the times, which mean nothing after a jump.
PROMISES = replace(
    USERS,
    name="starts, ends, bounds and ids",
    workloads=("events", "user groups", "user calls", "handed transactions"),
    plan=replace(USERS.plan, kinds=tuple(kind for kind in USERS.plan.kinds if kind != "ClockJump")),
    habits=UserHabits(limits_s=(2.0, 60.0)),
)
"""Users that begin and end at cuts and times, ask for what is refused, and hand transactions on."""
_GROUPS = replace(PROMISES, name="starts and ends", workloads=("events", "user groups"))
_CALLS = replace(PROMISES, name="bounds", workloads=("events", "user calls"))
_IDS = replace(PROMISES, name="transactions by id", workloads=("events", "handed transactions"))

STREAMS_MADE_AGAIN = replace(GROUP_CHANGES, name="streams made again", habits=UserHabits(remakes_streams=True))
"""Streams that a group finds are deleted and made again."""


def _begin_at_the_head_if_in_doubt() -> AbstractContextManager[None]:
    original = start_positions.checked_start

    def checked_start(start: Start, streams: Sequence[str], what: str = "start") -> CheckedStart:
        try:
            return original(start, streams, what)
        except InvalidArgumentError:
            return "earliest"

    return patched(reader_group, "checked_start", checked_start)


def _begin_beyond_the_end() -> AbstractContextManager[None]:
    async def check_nothing(cluster: Cluster, stream: str, cut: StreamCut) -> None:
        """Accept any cut as one of the stream."""

    return patched(start_positions, "_check_cut", check_nothing)


def _end_at_the_tail() -> AbstractContextManager[None]:
    async def end_cuts(cluster: Cluster, until: CheckedStart, begin: Mapping[str, StreamCut]) -> dict[str, StreamCut]:
        return {stream: await cluster.tail(stream) for stream in begin}

    return patched(reader_group, "end_cuts", end_cuts)


def _round_times_to_the_wrong_side() -> AbstractContextManager[None]:
    original = times._offset_at

    async def offset_at(cluster: Cluster, info: SegmentInfo, start: int, at_ms: int, *, is_end: bool) -> int:
        return await original(cluster, info, start, at_ms, is_end=not is_end)

    return patched(times, "_offset_at", offset_at)


@contextmanager
def _keep_positions_by_the_name_of_a_group() -> Iterator[None]:
    original = GroupRecord.__init__

    def init(self: GroupRecord, cluster: Cluster, scope: str, name: str, group_id: str) -> None:
        original(self, cluster, scope, name, group_id)
        self._table = reader_group_table(scope, f"of-{name}")
        self._heartbeats = GroupHeartbeats(cluster, self._table)

    async def delete(self: GroupRecord) -> None:
        """Leave it to the controller, which knows the table of this incarnation of the group."""

    with patched(GroupRecord, "__init__", init), patched(GroupRecord, "delete", delete):
        yield


def _take_a_stream_made_again_for_the_old_one() -> AbstractContextManager[None]:
    async def made_again(
        self: GroupStreams, registered: RegisteredGroup, state: GroupState, streams: set[str]
    ) -> set[str]:
        return set()

    return patched(GroupStreams, "_made_again", made_again)


def _blame_the_controller_for_a_lease() -> AbstractContextManager[None]:
    return patched(controller, "_BAD_LEASE", "what no controller says")


def _write_for_as_long_as_there_is_room() -> AbstractContextManager[None]:
    async def write(
        self: EventWriter,
        event: bytes,
        routing_key: str | None = None,
        *,
        timeout_s: float | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Ack:
        if is_full(self):
            await self._has_space(timeout_s)
        return self._put_for_ack(event, routing_key, on_delivery)

    return patched(EventWriter, "write", write)


@contextmanager
def _let_each_segment_read_ahead_as_far_as_a_reader() -> Iterator[None]:
    def room(self: ReadAhead, holder: object, missing_bytes: int) -> int:
        return max(self.bytes_max - self._holders[holder], missing_bytes)

    with patched(ReadAhead, "room", room):
        yield


def _write_events_of_any_size() -> AbstractContextManager[None]:
    def check(self: EventWriter, size_bytes: int) -> None:
        if self._failure is not None:
            raise self._failure
        self._check_open()

    return patched(EventWriter, "_check", check)


def _refuse_a_second_close() -> AbstractContextManager[None]:
    original = LifeCycle._end

    async def end(self: LifeCycle, timeout_s: float | None) -> None:
        if self._life is Life.CLOSED and timeout_s is not None:
            raise ClosedError(f"the {self._what} is closed")
        await original(self, timeout_s)

    return patched(LifeCycle, "_end", end)


def _hand_on_before_it_is_stored() -> AbstractContextManager[None]:
    async def detach(self: Transaction) -> None:
        # Data in flight is dropped with the writer.
        self._fate = _Fate.DETACHED

    return patched(Transaction, "_detach", detach)


PROMISE_MUTATIONS = (
    Mutation(
        "begin at the head when a start is not understood", "a start that is none is refused, and nothing is made",
        _GROUPS, _begin_at_the_head_if_in_doubt,
    ),
    Mutation(
        "wait beyond the end of a stream", "a start beyond the end is refused",
        _GROUPS, _begin_beyond_the_end,
    ),
    Mutation(
        "end a group at the tail", "a group hands out what is before its end, and nothing else",
        _GROUPS, _end_at_the_tail,
    ),
    Mutation(
        "round times to the wrong side", "a start at a time leaves out nothing of then or later",
        _GROUPS, _round_times_to_the_wrong_side,
    ),
    Mutation(
        "keep positions by the name of a group", "a group created again restarts",
        _GROUPS, _keep_positions_by_the_name_of_a_group,
    ),
    Mutation(
        "take a stream made again for the old one", "a stream made again is read from its beginning",
        STREAMS_MADE_AGAIN, _take_a_stream_made_again_for_the_old_one,
    ),
    Mutation(
        "blame the controller for a lease", "a lease out of bounds is the caller's mistake",
        _CALLS, _blame_the_controller_for_a_lease,
    ),
    Mutation(
        "write for as long as there is room", "writing leaves others their turn",
        _CALLS, _write_for_as_long_as_there_is_room,
    ),
    Mutation(
        "let each segment read ahead as far as a reader", "read-ahead is one budget for all segments of a reader",
        _CALLS, _let_each_segment_read_ahead_as_far_as_a_reader,
    ),
    Mutation(
        "write events of any size", "an event above the limit is refused",
        _CALLS, _write_events_of_any_size,
    ),
    Mutation(
        "refuse a second close", "closing again is fine",
        _CALLS, _refuse_a_second_close,
    ),
    Mutation(
        "hand a transaction on before it is stored", "a detached transaction is whole for the program that resumes it",
        _IDS, _hand_on_before_it_is_stored,
    ),
)  # fmt: skip
"""Bugs of this kind."""
