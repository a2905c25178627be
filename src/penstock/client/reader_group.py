"""`ReaderGroup`: readers that share the segments of some streams. The thin shell around `reader_group_state`.

The state is one record in a table segment of its own, changed by compare-and-set; see there for the rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING

from penstock.client import reader_group_state as rgs
from penstock.client.reader import Reader
from penstock.client.reader_group_state import GroupState
from penstock.client.retry import Backoff
from penstock.model.errors import (
    InvalidArgumentError,
    MetadataConflictError,
    NoSuchReaderGroupError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    SegmentExistsError,
    TableKeyMissingError,
    TableKeyVersionError,
)
from penstock.model.names import (
    READER_GROUP_TABLE_SUFFIX,
    check_scope_name,
    check_user_name,
    segment_name,
    split_scoped_name,
)
from penstock.model.segments import VERSION_ABSENT, TableUpdate
from penstock.model.stream_cuts import OFFSET_FUTURE, StreamCut

if TYPE_CHECKING:
    from penstock.client.client import Client

_KEY = b"state"
#: Appended to the group's name: its table is the first segment of a stream nobody else can have.
TABLE_SUFFIX = READER_GROUP_TABLE_SUFFIX
_UPDATE_PAUSE_MAX_S = 0.02


def _table_name(scope: str, group: str) -> str:
    return segment_name(check_scope_name(scope), check_user_name("reader group", group) + TABLE_SUFFIX, 0)


def _split_group(group: str, scope: str | None, default_scope: str | None) -> tuple[str, str]:
    where, slash, name = group.partition("/")
    if slash:
        if scope is not None and scope != where:
            raise InvalidArgumentError(f"reader group {group!r} is in scope {where!r}, but scope={scope!r} was given")
        return where, name
    chosen = scope or default_scope
    if chosen is None:
        raise InvalidArgumentError(f"reader group {group!r}: write it as 'scope/group', or give scope=")
    return chosen, group


class ReaderGroup:
    """A named set of readers. Made by `Client.reader_group`; its state outlives every reader and client.

    Each event goes to one reader. Events of one routing key are read in order, also across splits and merges.
    An event is read again after a crash, or when a reader that was declared dead was only slow (at least once);
    otherwise exactly once.
    """

    def __init__(self, client: Client, group: str, streams: Sequence[str], *, scope: str | None, rng: Random) -> None:
        if not streams:
            raise InvalidArgumentError(f"reader group {group!r} needs at least one stream")
        self._streams = [f"{where}/{name}" for where, name in map(split_scoped_name, streams)]
        self.scope, self.name = _split_group(group, scope, split_scoped_name(streams[0])[0])
        self._table = _table_name(self.scope, self.name)
        self._client = client
        self._rng = rng
        self._readers: dict[str, Reader] = {}

    async def open(self, start: str | Mapping[str, StreamCut] | None) -> None:
        """Create the group's state if there is none. Called by `Client.reader_group`."""
        state = await self._find_or_create(start)
        if state.streams != sorted(self._streams):
            raise InvalidArgumentError(
                f"reader group {self.scope}/{self.name} exists and reads {', '.join(state.streams)}, not "
                f"{', '.join(sorted(self._streams))}: use another name, or delete it first"
            )

    async def _find_or_create(self, start: str | Mapping[str, StreamCut] | None) -> GroupState:
        segments = self._client.segments
        backoff = Backoff(self._client.settings, self._rng)
        while True:
            try:
                try:
                    await segments.create_table(self._table)
                except SegmentExistsError:
                    pass  # The group exists, or another client is creating it right now.
                (entry,) = await segments.table_get(self._table, [_KEY])
                if entry is not None:
                    return GroupState.decode(entry.value)
                state = rgs.create(await self._start_positions(start), self._streams)
                await segments.table_put(self._table, [TableUpdate(_KEY, state.encode(), VERSION_ABSENT)])
                return state
            except (OutcomeUnknownError, TableKeyVersionError) as error:
                # Each step may be taken again: look what is there, and go on from that.
                await backoff.pause(error)

    @classmethod
    async def delete(cls, client: Client, group: str, *, scope: str | None) -> None:
        """Delete a group's state. Raises `NoSuchReaderGroupError`. Readers still running fail at their next step."""
        where, name = _split_group(group, scope, None)
        try:
            await client.segments.delete_table(_table_name(where, name))
        except NoSuchSegmentError as error:
            raise NoSuchReaderGroupError(f"reader group {where}/{name} does not exist") from error

    async def reader(self, name: str | None = None) -> Reader:
        """Start a reader. One that ran before under the same name goes on where that one last stored its positions.

        If the older one still runs, it fails at its next step. Without a name the reader gets one of its own; after a
        crash its segments are then free only once it is found dead, after `reader_timeout_s`.
        """
        if name is None:
            name = f"reader-{self._rng.getrandbits(64):016x}"
        check_user_name("reader", name)
        reader = Reader(self, name, f"{self._rng.getrandbits(64):016x}", self._client)
        await reader.open()
        self._readers = {other: value for other, value in self._readers.items() if not value.is_closed}
        self._readers[name] = reader
        return reader

    async def stream_cuts(self) -> dict[str, StreamCut]:
        """Return how far the group is in each stream, as last stored: up to `position_interval_s` old."""
        return rgs.stream_cuts(await self.state())

    async def checkpoint(self) -> dict[str, StreamCut]:
        """Let the readers started here store their positions now, then return `stream_cuts`.

        Events handed out and not yet followed by another read count as unread.
        """
        for reader in list(self._readers.values()):
            await reader.store_positions()
        return await self.stream_cuts()

    async def unread_bytes(self) -> int:
        """Return how many bytes the group has still to read in the segments it knows, as of the stored positions."""
        positions = rgs.positions_of(await self.state())
        infos = await asyncio.gather(*map(self._client.segments.segment_info, positions))
        return sum(
            max(info.length - max(offset, info.start_offset), 0)
            for info, offset in zip(infos, positions.values(), strict=True)
        )

    async def close(self) -> None:
        """Close the readers started here. The group's state stays."""
        for reader in list(self._readers.values()):
            await reader.close()
        self._readers.clear()

    async def __aenter__(self) -> ReaderGroup:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # -- for readers --------------------------------------------------------------------------------------------

    async def state(self) -> GroupState:
        """Return the record as it is now. Raises `NoSuchReaderGroupError` when the group was deleted."""
        return (await self._read())[0]

    async def update(self, step: Callable[[GroupState], GroupState]) -> GroupState:
        """Take `step`, which must be idempotent, on the record; return the record after it.

        Raises `MetadataConflictError` after `reader_group_update_count_max` lost races.
        """
        attempt_count_max = self._client.settings.reader_group_update_count_max
        for _ in range(attempt_count_max):
            state, version = await self._read()
            changed = step(state)
            if changed == state:
                return state
            try:
                await self._client.segments.table_put(self._table, [TableUpdate(_KEY, changed.encode(), version)])
                return changed
            except (TableKeyVersionError, TableKeyMissingError, OutcomeUnknownError):
                # Lost a race, or the reply: look again. Repeating the step does no harm.
                await asyncio.sleep(_UPDATE_PAUSE_MAX_S * self._rng.random())
        raise MetadataConflictError(
            f"reader group {self.scope}/{self.name}: {attempt_count_max} updates in a row lost against other readers"
        )

    async def _read(self) -> tuple[GroupState, int]:
        try:
            (entry,) = await self._client.segments.table_get(self._table, [_KEY])
        except NoSuchSegmentError as error:
            raise NoSuchReaderGroupError(f"reader group {self.scope}/{self.name} does not exist any more") from error
        if entry is None:
            raise NoSuchReaderGroupError(f"reader group {self.scope}/{self.name} has no state")
        return GroupState.decode(entry.value), entry.version

    async def _start_positions(self, start: str | Mapping[str, StreamCut] | None) -> dict[str, int]:
        positions: dict[str, int] = {}
        for stream in self._streams:
            scope, name = split_scoped_name(stream)
            if isinstance(start, str) and start not in ("head", "tail"):
                raise InvalidArgumentError(f"start={start!r}: use 'head', 'tail' or a stream cut for each stream")
            if isinstance(start, Mapping) and stream in start:
                cut = start[stream]
                if (cut.scope, cut.stream) != (scope, name):
                    raise InvalidArgumentError(f"the stream cut given for {stream} is one of {cut.scope}/{cut.stream}")
            elif start == "tail":
                cut = await self._client.tail(stream)
            else:
                cut = await self._client.head(stream)
            for segment, offset in cut.positions.items():
                # A segment not reached yet comes in when its predecessors, which are in the cut, are read.
                if offset != OFFSET_FUTURE:
                    positions[segment_name(scope, name, segment)] = offset
        return positions
