"""`ReaderGroup`: readers that share the segments of some streams. The thin shell around `reader_group_state`.

The state is one shared record: see `reader_group_record` for where it is, and `reader_group_state` for the rules. That
the group exists, and which streams it reads, is known to the controller.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final

from penstock.client import reader_group_state as rgs
from penstock.client.cluster import Cluster
from penstock.client.life_cycle import LifeCycle
from penstock.client.membership import OnChange
from penstock.client.opening import Opening
from penstock.client.reader import Positions, Reader
from penstock.client.reader_group_calls import RegisteredGroup
from penstock.client.reader_group_record import GroupRecord
from penstock.client.reader_group_state import GroupState
from penstock.client.starts import Start, checked_start, positions_in, start_cuts
from penstock.model.errors import InvalidArgumentError, NoSuchReaderGroupError, NoSuchSegmentError, PenstockError
from penstock.model.names import check_scope_name, check_user_name, parse_segment_name, split_scoped_name
from penstock.model.stream_cuts import StreamCut

if TYPE_CHECKING:
    from typing import Self


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


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A reader group at one moment, as of the positions stored last.

    Attributes:
        scope, name: of the group.
        id: other for each life of the name.
        streams: ``scope/stream`` each.
        readers: the segments that each reader holds, by full name.
        unassigned: segments that wait for a reader.
        positions: how far the group is in each stream.
        unread_bytes: per stream, how much the group has still to read in the segments it knows.
    """

    scope: str
    name: str
    id: str
    streams: Sequence[str]
    readers: Mapping[str, Sequence[str]]
    unassigned: Sequence[str]
    positions: Mapping[str, StreamCut]
    unread_bytes: Mapping[str, int]


class ReaderGroup(LifeCycle):
    """A named set of readers. Made by `Client.reader_group`; its state outlives every reader and client.

    Each event goes to one reader. Events of one routing key are read in order, also across splits and merges.
    An event is read again after a crash or an exception, or when a reader that was declared dead was only slow (at
    least once); otherwise exactly once. What is promised, and what shows it, is in ``docs/reader-groups.md``.
    """

    #: The scope that the group lives in.
    scope: Final[str]
    #: The group's name in its scope.
    name: Final[str]

    def __init__(self, cluster: Cluster, group: str, streams: Sequence[str], *, scope: str | None) -> None:
        if isinstance(streams, str) or not streams:
            raise InvalidArgumentError(f"reader group {group!r} needs at least one stream, in a list")
        self._streams = list(dict.fromkeys(f"{where}/{name}" for where, name in map(split_scoped_name, streams)))
        self.scope, self.name = _split_group(group, scope, split_scoped_name(streams[0])[0])
        timeout_s = cluster.settings.reader_close_timeout_s
        super().__init__(f"reader group {self.scope}/{self.name}", close_timeout_s=timeout_s)
        self._cluster = cluster
        self._open_record: GroupRecord | None = None
        self._readers: dict[str, Reader] = {}

    async def open(
        self,
        start: Start,
        *,
        reader_timeout_s: float | None = None,
        processing_time_max_s: float | None = None,
        holds_data: bool = False,
        owner: LifeCycle | None = None,
    ) -> None:
        """Create the group if there is none. Called by `Client.reader_group`. A refused one leaves nothing behind."""
        settings = self._cluster.settings
        timeout_s = settings.reader_timeout_s if reader_timeout_s is None else reader_timeout_s
        processing_s = settings.processing_time_max_s if processing_time_max_s is None else processing_time_max_s
        if min(timeout_s, processing_s) <= 0:
            raise InvalidArgumentError(f"reader group {self.name}: time-outs must be above 0 s")
        wanted = checked_start(start, self._streams)
        controller = self._cluster.controller
        registered = await controller.reader_group(self.scope, self.name)
        if registered is None:
            cuts = await start_cuts(self._cluster, wanted, self._streams)
            group_id = str(uuid.UUID(int=self._cluster.rng.getrandbits(128), version=4))
            starts = {stream: dict(cut.positions) for stream, cut in cuts.items()}
            new = RegisteredGroup(group_id, 0, starts, holds_data)
            registered = await controller.create_reader_group(self.scope, self.name, new)
        if set(registered.starts) != set(self._streams):
            raise InvalidArgumentError(
                f"reader group {self.scope}/{self.name} exists and reads {', '.join(sorted(registered.starts))}, not "
                f"{', '.join(sorted(self._streams))}: use another name, or delete it first"
            )
        known = registered

        async def first_state() -> GroupState:
            return rgs.create(
                positions_in(await self._registered_cuts(known)),
                self._streams,
                group_id=known.id,
                generation=known.generation,
                holds_data=known.holds_data,
                reader_timeout_s=timeout_s,
                processing_time_max_s=processing_s,
            )

        record = GroupRecord(self._cluster, self.scope, self.name, registered.id)
        await record.find_or_create(first_state)
        # Deleted meanwhile, it must not live on in a table that nobody knows.
        still = await controller.reader_group(self.scope, self.name)
        if still is None or still.id != registered.id:
            await record.delete()
            raise NoSuchReaderGroupError(f"reader group {self.scope}/{self.name} was deleted while it was opened")
        self._open_record = record
        self._open_life(owner)

    async def _registered_cuts(self, registered: RegisteredGroup) -> dict[str, StreamCut]:
        cuts = {}
        for stream, positions in registered.starts.items():
            scope, name = split_scoped_name(stream)
            cuts[stream] = StreamCut(scope, name, positions) if positions else await self._cluster.head(stream)
        return cuts

    @classmethod
    async def delete(cls, cluster: Cluster, group: str, *, scope: str | None) -> None:
        """Delete a group. Raises `NoSuchReaderGroupError`. Readers still running fail at their next step."""
        where, name = _split_group(group, scope, None)
        registered = await cluster.controller.reader_group(where, name)
        if registered is None:
            raise NoSuchReaderGroupError(f"reader group {where}/{name} does not exist")
        await cluster.controller.delete_reader_group(where, name, registered.id)
        # Controllers other than Penstock's do not know of it.
        await GroupRecord(cluster, where, name, registered.id).delete()

    @property
    def _record(self) -> GroupRecord:
        if self._open_record is None:
            raise self._closed_error()
        return self._open_record

    def reader(
        self,
        name: str | None = None,
        *,
        positions: Positions | str = Positions.AUTOMATIC,
        on_change: OnChange | None = None,
    ) -> Opening[Reader]:
        """Start a reader. By `await` or `async with`.

        One that ran before under the same name goes on where that one last stored its positions.

        If the older one still runs, it fails at its next step. Without a name the reader gets one of its own; after a
        crash its segments are then free only once it is found dead, after the group's `reader_timeout_s`.

        Args:
            name: of the reader in its group.
            positions: when its positions move: "automatic", "manual" or "at_exit", see `Positions`.
            on_change: called in the client's event loop with the names of segments that came, and of those that went.
                It must not block; an error in it ends the reader.
        """
        return Opening(lambda: self._start_reader(name, positions, on_change))

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
            self._record, name, f"{self._cluster.rng.getrandbits(64):016x}", self._cluster,
            positions=mode, on_change=on_change,
        )  # fmt: skip
        await reader.open(self)
        self._readers = {other: value for other, value in self._readers.items() if value.is_open}
        self._readers[name] = reader
        return reader

    async def state(self) -> GroupState:
        """Return the shared record as it is now. Raises `NoSuchReaderGroupError` when the group was deleted."""
        return await self._record.state()

    async def stream_cuts(self) -> dict[str, StreamCut]:
        """Return how far the group is in each stream, as last stored: up to `position_interval_s` old."""
        return rgs.stream_cuts(await self.state())

    async def checkpoint(self) -> dict[str, StreamCut]:
        """Let the readers started here store their positions now, then return `stream_cuts`.

        Events handed out and not yet followed by another read count as unread.
        """
        for reader in list(self._readers.values()):
            if reader.is_open:
                await reader.store_positions()
        return await self.stream_cuts()

    async def reset(self, start: Start) -> None:
        """Let the group go on somewhere else: "earliest", "latest" or at a stream cut for each stream.

        Its readers lose what they hold and go on there, also those that run elsewhere. An event that a reader has in
        hand by then is one of before.

        Raises `InvalidArgumentError` for a start that is none, or lies beyond the end of its stream.
        """
        self._check_open()
        cuts = await start_cuts(self._cluster, checked_start(start, self._streams), self._streams)
        reset_id = f"{self._cluster.rng.getrandbits(64):016x}"
        await self._record.update(lambda state: rgs.reset(state, positions_in(cuts), reset_id))

    async def unread_bytes(self) -> int:
        """Return how many bytes the group has still to read in the segments it knows, as of the stored positions."""
        return sum((await self._unread(await self.state())).values())

    async def describe(self) -> GroupDescription:
        """Return who reads what, how far the group is, and how much it has still to read."""
        state = await self.state()
        return GroupDescription(
            self.scope,
            self.name,
            state.group_id,
            state.streams,
            {name: sorted(reader.segments) for name, reader in state.readers.items()},
            sorted(state.unassigned),
            rgs.stream_cuts(state),
            await self._unread(state),
        )

    async def _unread(self, state: GroupState) -> dict[str, int]:
        unread = dict.fromkeys(state.streams, 0)
        positions = rgs.positions_of(state)
        infos = await self._cluster.segments.segment_infos(list(positions))
        for (segment, offset), info in zip(positions.items(), infos, strict=True):
            if isinstance(info, NoSuchSegmentError):
                continue  # Truncated away as a whole.
            if isinstance(info, PenstockError):
                raise info
            scope, stream, _ = parse_segment_name(segment)
            unread[f"{scope}/{stream}"] += max(info.length - max(offset, info.start_offset), 0)
        return unread

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the readers started here. After an exception, what they handed out last counts as unread."""
        try:
            await self.close()
        except PenstockError as other:
            if error is None:
                raise
            error.add_note(f"then the {self._what} could not be closed: {other}")
