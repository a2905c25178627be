"""`ReaderGroup`: readers that share the segments of some streams. A thin shell around `reader_group_state`.

The state is one shared record: see `reader_group_record` for its location, and `reader_group_state` for the rules. The
controller stores that the group exists, and which streams it reads.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, overload

from penstock.client.common.deadline import within
from penstock.client.common.life_cycle import LifeCycle
from penstock.client.common.opening import Opening
from penstock.client.common.serializers import Serializer, Value
from penstock.client.common.tasks import start_watched
from penstock.client.controller.reader_group_calls import RegisteredGroup
from penstock.client.groups import reader_group_state as rgs
from penstock.client.groups.acknowledgement import Acknowledgement
from penstock.client.groups.group_checkpoint import interval_ms_of, interval_s_of
from penstock.client.groups.group_state import GroupState
from penstock.client.groups.group_watch import GroupWatch
from penstock.client.groups.membership import OnChange
from penstock.client.groups.positions import Positions
from penstock.client.groups.reader import Reader
from penstock.client.groups.reader_group_record import GroupRecord
from penstock.client.groups.reader_group_streams import GroupStreams, Sources, ends_of, recreated_in
from penstock.client.groups.value_reader import ValueReader
from penstock.client.streams.start_positions import (
    Start,
    checked_cuts,
    checked_start,
    cuts_of,
    end_cuts,
    positions_in,
    start_cuts,
)
from penstock.client.streams.stream_lives import recreated_error
from penstock.client.transport.cluster import Cluster
from penstock.client.transport.segment_extents import segment_infos
from penstock.model.errors import (
    InvalidArgumentError,
    NoSuchReaderGroupError,
    NoSuchSegmentError,
    PenstockError,
    UnsupportedOperationError,
)
from penstock.model.names import check_scope_name, check_user_name, parse_segment_name
from penstock.model.policies import GroupRetention
from penstock.model.stream_cuts import StreamCut

if TYPE_CHECKING:
    from typing import Self

_log = logging.getLogger(__name__)


def _split_group(group: str, scope: str | None, default_scope: str | None) -> tuple[str, str]:
    where, slash, name = group.partition("/")
    if slash:
        if scope is not None and scope != where:
            raise InvalidArgumentError(f"reader group {group!r} is in scope {where!r}, but scope={scope!r} was given")
        chosen: str | None = where
    else:
        chosen, name = scope or default_scope, group
    if chosen is None:
        raise InvalidArgumentError(f"reader group {group!r}: write it as 'scope/group', or give scope=")
    return check_scope_name(chosen), check_user_name("reader group", name)


def _reset_if(generation: int, positions: Mapping[str, int], reset_id: str, state: GroupState) -> GroupState:
    """Reset a group if it still reads the streams of `positions`, that is, if it has this generation."""
    return rgs.reset(state, positions, reset_id) if state.generation == generation else state


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A reader group at one moment, as of the positions stored last.

    Attributes:
        scope, name: of the group.
        id: unique for each life of the name.
        streams: ``scope/stream`` each.
        readers: the segments that each reader holds, by full name.
        unassigned: segments that no reader holds. Without readers, all segments; otherwise those that readers will take
            soon, or have no capacity for (`reader_segment_count_max`).
        positions: the group's position in each stream.
        unread_bytes: per stream, unread bytes in the segments that the group knows.
        patterns: new streams that match one of these are read, too.
        ends: the group's end in each stream that has one.
        retention: whether it subscribes to its streams, and how it releases data.
        acknowledged: the cut acknowledged in each stream that it subscribes to; None: nothing yet.
        checkpoint_interval_s: of its automatic checkpoints; 0: it takes none.
        checkpoint: the last automatic checkpoint, in each stream that has one.
        is_finished: every stream of the group was read to its end.
        recreated: streams that were deleted, and created again under the same name, since the group began to read them.
            It reads nothing of the new stream, and `unread_bytes` does not count it.
    """

    scope: str
    name: str
    id: str
    streams: Sequence[str]
    readers: Mapping[str, Sequence[str]]
    unassigned: Sequence[str]
    positions: Mapping[str, StreamCut]
    unread_bytes: Mapping[str, int]
    patterns: Sequence[str] = ()
    ends: Mapping[str, StreamCut] = field(default_factory=dict)
    retention: GroupRetention = GroupRetention.NONE
    acknowledged: Mapping[str, StreamCut | None] = field(default_factory=dict)
    checkpoint_interval_s: float = 0.0
    checkpoint: Mapping[str, StreamCut] = field(default_factory=dict)
    is_finished: bool = False
    recreated: Sequence[str] = ()


class ReaderGroup(LifeCycle):
    """A named set of readers. Made by `Client.reader_group`; its state outlives every reader and client.

    Each event goes to one reader. Events of one routing key are read in order, also across splits and merges. An event
    is read again after a crash or an exception, or when a reader that was declared dead was only slow (at least once);
    otherwise exactly once. For the guarantees and their tests see ``docs/reader-groups.md``.
    """

    #: The scope that the group lives in.
    scope: Final[str]
    #: The group's name in its scope.
    name: Final[str]

    def __init__(
        self, cluster: Cluster, group: str, streams: Sequence[str] | None = None, *, scope: str | None
    ) -> None:
        self._sources = None if streams is None else Sources.parse(streams)
        default_scope = None if streams is None else streams[0].partition("/")[0]
        self.scope, self.name = _split_group(group, scope, default_scope)
        timeout_s = cluster.settings.reader_close_timeout_s
        super().__init__(f"reader group {self.scope}/{self.name}", close_timeout_s=timeout_s)
        self._cluster = cluster
        self._open_record: GroupRecord | None = None
        self._open_watch: GroupWatch | None = None
        self._readers: dict[str, Reader] = {}

    async def _open(
        self,
        start: Start,
        until: Start,
        held: GroupRetention,
        *,
        reader_timeout_s: float,
        processing_time_max_s: float,
        interval_ms: int,
        owner: LifeCycle | None,
    ) -> None:
        """See `open_reader_group`."""
        settings = self._cluster.settings
        controller = self._cluster.controller
        registered = await controller.reader_group(self.scope, self.name)
        if registered is None:
            registered = await controller.create_reader_group(
                self.scope, self.name, await self._wanted(start, until, held, interval_ms)
            )
        self._check_sources(registered.starts, () if self._sources is None else self._sources.patterns)
        known = registered
        record = GroupRecord(self._cluster, self.scope, self.name, registered.id)
        streams = GroupStreams(self._cluster, record)

        async def first_state() -> GroupState:
            cuts = await streams.starts_of(known)
            return rgs.create(
                positions_in(cuts),
                list(cuts),
                group_id=known.id,
                generation=known.generation,
                retention=known.retention if known.starts else held,
                reader_timeout_s=reader_timeout_s,
                processing_time_max_s=processing_time_max_s,
                patterns=() if self._sources is None else self._sources.patterns,
                ends=positions_in(ends_of(known)),
                checkpoint_interval_s=interval_s_of(known.checkpoint_interval_ms),
            )

        state = await record.find_or_create(first_state)
        self._check_sources(registered.starts, state.patterns)
        # If the group was deleted meanwhile, no unregistered table with its state may remain.
        still = await controller.reader_group(self.scope, self.name)
        if still is None or still.id != registered.id:
            await record.delete()
            raise NoSuchReaderGroupError(f"reader group {self.scope}/{self.name} was deleted while it was being opened")
        if still.generation != state.generation or state.patterns:
            await streams.refresh()
        if self._sources is not None:
            # When opened without streams, removing a deleted stream must remain possible.
            await self._check_not_recreated(still, state)
        self._open_record, self._open_watch = record, GroupWatch(record, settings, state)
        self.open_life(owner)

    async def _wanted(
        self, start: Start, until: Start, retention: GroupRetention, checkpoint_interval_ms: int
    ) -> RegisteredGroup:
        """Return the group to create. All checks precede any creation."""
        if self._sources is None:
            raise NoSuchReaderGroupError(
                f"reader group {self.scope}/{self.name} does not exist: give the streams to read"
            )
        streams = await self._sources.all_streams(self._cluster)
        if until is not None and self._sources.patterns:
            raise InvalidArgumentError("until: streams found by a pattern have no end position; name the streams")
        begin = checked_start(start, streams)
        end = None if until is None else checked_start(until, streams, "until")
        starts = await start_cuts(self._cluster, begin, streams)
        ends = {} if end is None else await end_cuts(self._cluster, end, starts)
        return RegisteredGroup(
            str(uuid.UUID(int=self._cluster.rng.getrandbits(128), version=4)),
            0,
            {stream: dict(cut.positions) for stream, cut in starts.items()},
            retention,
            {stream: dict(cut.positions) for stream, cut in ends.items()},
            checkpoint_interval_ms,
        )

    def _check_sources(self, streams: Collection[str], patterns: Collection[str]) -> None:
        """Check that the group reads the streams it was opened for: `streams` are those it reads."""
        wanted = self._sources
        if wanted is None:
            return
        missing = set(wanted.streams).difference(streams)
        surplus = {stream for stream in streams if stream not in wanted.streams and not wanted.matches(stream)}
        if missing or surplus or set(patterns) != set(wanted.patterns):
            raise InvalidArgumentError(
                f"reader group {self.scope}/{self.name} exists and reads {', '.join(sorted({*streams, *patterns}))}, "
                f"not {', '.join(sorted({*wanted.streams, *wanted.patterns}))}: use another name, open it without "
                "streams and change them with add_streams and remove_streams, or delete it first"
            )

    async def _check_not_recreated(self, registered: RegisteredGroup, state: GroupState) -> None:
        """Raise `NoSuchStreamError` for a stream that was deleted and created again, except those found by patterns.

        Readers detect that at the end of a segment. Without unread segments they never would.
        """
        recreated = await recreated_in(self._cluster, registered, state)
        if recreated:
            raise recreated_error(recreated[0], f"{self.scope}/{self.name}")

    @property
    def _record(self) -> GroupRecord:
        if self._open_record is None:
            raise self._closed_error()
        return self._open_record

    @property
    def _watch(self) -> GroupWatch:
        if self._open_watch is None:
            raise self._closed_error()
        return self._open_watch

    @overload
    def reader(
        self,
        name: str | None = None,
        *,
        positions: Positions | str = Positions.AUTOMATIC,
        on_change: OnChange | None = None,
        serializer: None = None,
    ) -> Opening[Reader]: ...

    @overload
    def reader(
        self,
        name: str | None = None,
        *,
        positions: Positions | str = Positions.AUTOMATIC,
        on_change: OnChange | None = None,
        serializer: Serializer[Value],
    ) -> Opening[ValueReader[Value]]: ...

    def reader(
        self,
        name: str | None = None,
        *,
        positions: Positions | str = Positions.AUTOMATIC,
        on_change: OnChange | None = None,
        serializer: Serializer[Value] | None = None,
    ) -> Opening[Reader | ValueReader[Value]]:
        """Start a reader of events, or with a serializer of values. By `await` or `async with`.

        A reader resumes from the positions that the previous reader of the same name stored last.

        If the previous one still runs, it fails at its next step. Without a name, the reader gets a unique one. After a
        crash, the segments of an unnamed reader are released only when it is declared dead, after the group's
        `reader_timeout_s`.

        Args:
            name: of the reader in its group.
            positions: when its positions advance: "automatic", "manual" or "at_exit", see `Positions`.
            on_change: called in the client's event loop with the names of segments that were added, and of those
                removed. It must not block; an error in it ends the reader.
            serializer: deserializes the events' bytes, see `ValueReader`.
        """

        async def start() -> Reader | ValueReader[Value]:
            reader = await self._start_reader(name, positions, on_change)
            return reader if serializer is None else ValueReader(reader, serializer)

        return Opening(start)

    async def _start_reader(self, name: str | None, positions: Positions | str, on_change: OnChange | None) -> Reader:
        self._check_open()
        if name is None:
            name = f"reader-{self._cluster.rng.getrandbits(64):016x}"
        check_user_name("reader", name)
        try:
            mode = Positions(positions)
        except ValueError:
            known = ", ".join(repr(each.value) for each in Positions)
            raise InvalidArgumentError(f"positions={positions!r}: use one of {known}") from None
        reader = Reader(
            self._record, self._watch, name, f"{self._cluster.rng.getrandbits(64):016x}", self._cluster,
            positions=mode, on_change=on_change,
        )  # fmt: skip
        await reader._open(self)
        if reader.is_finished:
            try:
                await self._check_finished()
            except BaseException:
                start_watched(reader.close(), f"leave as reader {name}", lambda error: None)
                raise
        self._readers = {other: value for other, value in self._readers.items() if value.is_open}
        self._readers[name] = reader
        return reader

    async def _check_finished(self) -> None:
        """Raise `NoSuchStreamError` if this group reads nothing because a stream was deleted and created again."""
        registered = await self._cluster.controller.reader_group(self.scope, self.name)
        if registered is not None and registered.id == self._record.group_id:
            await self._check_not_recreated(registered, await self._record.state())

    async def _state(self) -> GroupState:
        """Return the shared record as it is now. Raises `NoSuchReaderGroupError` when the group was deleted."""
        return await self._record.state()

    async def stream_cuts(self) -> dict[str, StreamCut]:
        """Return the group's stored position in each stream: up to `position_interval_s` old."""
        return rgs.stream_cuts(await self._state())

    async def checkpoint(self) -> dict[str, StreamCut]:
        """Have the readers started here store their positions now, then return `stream_cuts`.

        Events that were returned and not yet followed by another read count as unread.
        """
        for reader in list(self._readers.values()):
            if reader.is_open:
                await reader.store_positions()
        return await self.stream_cuts()

    async def add_streams(self, streams: Sequence[str], *, start: Start = None, until: Start = None) -> None:
        """Read more streams: names, or patterns (``scope/*``). All readers take part, wherever they run.

        Positions in streams that the group already reads do not change. `start`, `until`: of the new streams, see
        `Client.reader_group`; a stream that a pattern finds later is read from its beginning. Safe to repeat.

        Raises `NoSuchStreamError`, `NoSuchScopeError`; `InvalidArgumentError` for an invalid start or end.
        """
        self._check_open()
        await GroupStreams(self._cluster, self._record).add(streams, start, until)
        await self._let_readers_follow()

    async def remove_streams(self, streams: Sequence[str]) -> None:
        """Read fewer streams: names, or patterns with the streams that only they matched. Their positions are dropped.

        An event already returned by a reader is not affected. Streams that the group does not read are ignored. Safe to
        repeat.

        Raises `InvalidArgumentError` if no stream would be left, or for a stream that a pattern would find again.
        """
        self._check_open()
        await GroupStreams(self._cluster, self._record).remove(streams)
        await self._let_readers_follow()

    async def set_retention(self, retention: GroupRetention | str) -> None:
        """Change which data the group retains in its streams: "none", "manual" or "automatic", see `GroupRetention`.

        Changing from "none" subscribes to all streams, and retains the data that exists now; changing to "none" retains
        nothing any more. Acknowledged cuts stay valid between the other two. With readers or without; safe to repeat.

        Raises `NoSuchReaderGroupError`, and `StreamError` if a stream to subscribe to was deleted.
        """
        held = GroupRetention.of(retention)
        self._check_open()
        await GroupStreams(self._cluster, self._record).set_retention(held)
        await self._let_readers_follow()

    async def set_checkpoint_interval(self, interval_s: float) -> None:
        """Set the interval of automatic checkpoints, in seconds from 0.001 to 1e9; 0: no checkpoints.

        With readers or without; safe to repeat. Raises `InvalidArgumentError`, `NoSuchReaderGroupError`.
        """
        interval_ms = interval_ms_of(interval_s)
        self._check_open()
        await GroupStreams(self._cluster, self._record).set_checkpoint_interval(interval_ms)
        await self._let_readers_follow()

    async def acknowledge(self, cuts: StreamCut | str | Mapping[str, StreamCut | str]) -> bool:
        """Acknowledge all data before a cut, or one cut for each of some streams. For groups with "manual" retention.

        Returns once the controller has stored it, so that the streams' retention may delete the data before the cuts.
        Returns False if at least one cut lies before the acknowledged one of its stream, which remains. No cut may be
        beyond the positions stored as read: see `stream_cuts`, `checkpoint` and `Reader.commit`. Safe to repeat.

        Raises:
            InvalidArgumentError: the group's retention is not "manual"; or it does not read the stream; or a cut is not
                a cut of its stream, or lies beyond what the group has read.
            StreamError: the stream was deleted, or created again under its name, and the group has not followed yet.
            NoSuchReaderGroupError: the group was deleted.
        """
        self._check_open()
        return await Acknowledgement(self._cluster, self._record).give(checked_cuts(cuts, "cuts"))

    async def reset(self, start: Start) -> None:
        """Move the group to new positions: "earliest", "latest", a time, or a stream cut for each stream.

        All its readers, also those that run elsewhere, release their segments and continue from there. An event already
        returned by a reader is not affected.

        Raises `InvalidArgumentError` for an invalid start, or one beyond the end of its stream.
        """
        self._check_open()
        reset_id = f"{self._cluster.rng.getrandbits(64):016x}"
        limit_s = self._cluster.settings.retry_time_max_s
        with within(f"reset reader group {self.scope}/{self.name}", limit_s, "retry_time_max_s"):
            while True:
                before = await self._state()
                cuts = await start_cuts(self._cluster, checked_start(start, before.streams), before.streams)
                step = partial(_reset_if, before.generation, positions_in(cuts), reset_id)
                if (await self._record.update(step)).generation == before.generation:
                    break
        await self._let_readers_follow()

    async def reset_cuts(self, start: Start) -> dict[str, StreamCut]:
        """Return the positions that `reset` would move to now. Nothing is changed. Raises as `reset`."""
        self._check_open()
        state = await self._state()
        return await start_cuts(self._cluster, checked_start(start, state.streams), state.streams)

    async def remove_reader(self, name: str) -> bool:
        """Remove a reader that ended without closing: other readers continue at its stored positions.

        A group does this by itself after `reader_timeout_s`, if it has another reader. A removed reader that still runs
        joins again, and its events since its stored positions are delivered twice.

        Returns False if the group has no reader of this name. Raises `NoSuchReaderGroupError` if the group was deleted.
        """
        self._check_open()
        was_member = False

        def step(state: GroupState) -> GroupState:
            nonlocal was_member
            was_member = name in state.readers
            return rgs.leave(state, name, handed_out={})

        await self._record.update(step)
        return was_member

    async def _let_readers_follow(self) -> None:
        """Have the readers started here reload the record; readers elsewhere do so at their next refresh."""
        for reader in list(self._readers.values()):
            if reader.is_open:
                try:
                    await reader.store_positions()
                except PenstockError as error:
                    # The requested change is done, and the reader's next call raises its own error.
                    _log.warning("reader %s has not adopted the new positions yet: %s", reader.name, error)

    async def unread_bytes(self) -> int:
        """Return the unread bytes in the segments that the group knows, as of the stored positions.

        The successors of a segment become known when a reader reaches its end, so 0 need not be the end of the stream.
        Raises `NoSuchStreamError` if a stream of the group was deleted, and created again under the same name.
        """
        unread, recreated = await self._unread(await self._state())
        if recreated:
            raise recreated_error(recreated[0], f"{self.scope}/{self.name}")
        return sum(unread.values())

    async def describe(self) -> GroupDescription:
        """Return the group's readers with their segments, its positions, and its unread bytes."""
        state = await self._state()
        unread, recreated = await self._unread(state)
        return GroupDescription(
            self.scope,
            self.name,
            state.group_id,
            state.streams,
            {name: sorted(reader.segments) for name, reader in state.readers.items()},
            sorted(state.unassigned),
            rgs.stream_cuts(state),
            unread,
            state.patterns,
            cuts_of(state.ends),
            state.retention,
            await self._acknowledged(state),
            state.checkpoint.interval_s,
            rgs.checkpoint_cuts(state),
            state.is_finished,
            recreated,
        )

    async def _acknowledged(self, state: GroupState) -> dict[str, StreamCut | None]:
        if state.retention is GroupRetention.NONE:
            return {}
        try:
            found = await self._cluster.controller.group_overview(self.scope, self.name)
        except UnsupportedOperationError:
            return {}  # Pravega's controller does not return it.
        return {stream: one.acknowledged for stream, one in found.streams.items() if one.is_subscribed}

    async def _unread(self, state: GroupState) -> tuple[Mapping[str, int], Sequence[str]]:
        """Return the unread bytes of each stream, and the streams that were deleted and created again."""
        unread = dict.fromkeys(state.streams, 0)
        there = set()
        positions = rgs.positions_of(state)
        infos = await segment_infos(self._cluster, list(positions))
        for (segment, offset), info in zip(positions.items(), infos, strict=True):
            if isinstance(info, NoSuchSegmentError):
                continue  # Truncated away as a whole.
            if isinstance(info, PenstockError):
                raise info
            scope, stream, _ = parse_segment_name(segment)
            end = min(info.length, state.ends.get(segment, info.length))
            unread[f"{scope}/{stream}"] += max(end - max(offset, info.start_offset), 0)
            there.add(f"{scope}/{stream}")
        if there.issuperset(state.streams):
            return unread, ()
        registered = await self._cluster.controller.reader_group(self.scope, self.name)
        if registered is None or registered.id != state.group_id:
            raise NoSuchReaderGroupError(f"reader group {self.scope}/{self.name} was deleted")
        return unread, await recreated_in(self._cluster, registered, state)

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the readers started here. After an exception, the events they returned last count as unread."""
        try:
            await self.close()
        except PenstockError as other:
            if error is None:
                raise
            error.add_note(f"then the {self._what} could not be closed: {other}")


async def open_reader_group(
    readers: ReaderGroup,
    start: Start,
    *,
    until: Start = None,
    reader_timeout_s: float | None = None,
    processing_time_max_s: float | None = None,
    retention: GroupRetention | str = GroupRetention.NONE,
    checkpoint_interval_s: float | None = None,
    owner: LifeCycle | None = None,
) -> None:
    """Create the group if it does not exist, and open it. A refused call creates nothing. See `Client.reader_group`."""
    settings = readers._cluster.settings
    timeout_s = settings.reader_timeout_s if reader_timeout_s is None else reader_timeout_s
    processing_s = settings.processing_time_max_s if processing_time_max_s is None else processing_time_max_s
    if min(timeout_s, processing_s) <= 0:
        raise InvalidArgumentError(f"reader group {readers.name}: time-outs must be above 0 s")
    if checkpoint_interval_s is None:
        checkpoint_interval_s = settings.reader_group_checkpoint_interval_s
    await readers._open(
        start,
        until,
        GroupRetention.of(retention),
        reader_timeout_s=timeout_s,
        processing_time_max_s=processing_s,
        interval_ms=interval_ms_of(checkpoint_interval_s),
        owner=owner,
    )


async def delete_reader_group(cluster: Cluster, group: str, *, scope: str | None) -> None:
    """Delete a group. Raises `NoSuchReaderGroupError`. Readers still running fail at their next step."""
    where, name = _split_group(group, scope, None)
    registered = await cluster.controller.reader_group(where, name)
    if registered is None:
        raise NoSuchReaderGroupError(f"reader group {where}/{name} does not exist")
    await cluster.controller.delete_reader_group(where, name, registered.id)
    # Controllers other than Penstock's do not have this table.
    await GroupRecord(cluster, where, name, registered.id).delete()
