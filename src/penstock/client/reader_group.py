"""`ReaderGroup`: readers that share the segments of some streams. The thin shell around `reader_group_state`.

The state is one shared record: see `reader_group_record` for where it is, and `reader_group_state` for the rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType

from penstock.client import reader_group_state as rgs
from penstock.client.cluster import Cluster
from penstock.client.reader import Reader
from penstock.client.reader_group_record import GroupRecord
from penstock.client.reader_group_state import GroupState
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import check_user_name, segment_name, split_scoped_name
from penstock.model.stream_cuts import OFFSET_FUTURE, StreamCut


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

    def __init__(self, cluster: Cluster, group: str, streams: Sequence[str], *, scope: str | None) -> None:
        if not streams:
            raise InvalidArgumentError(f"reader group {group!r} needs at least one stream")
        self._streams = [f"{where}/{name}" for where, name in map(split_scoped_name, streams)]
        self.scope, self.name = _split_group(group, scope, split_scoped_name(streams[0])[0])
        self._record = GroupRecord(cluster, self.scope, self.name)
        self._cluster = cluster
        self._readers: dict[str, Reader] = {}

    async def open(self, start: str | Mapping[str, StreamCut] | None) -> None:
        """Create the group's state if there is none. Called by `Client.reader_group`."""
        state = await self._record.find_or_create(partial(self._new_state, start))
        if state.streams != sorted(self._streams):
            raise InvalidArgumentError(
                f"reader group {self.scope}/{self.name} exists and reads {', '.join(state.streams)}, not "
                f"{', '.join(sorted(self._streams))}: use another name, or delete it first"
            )

    @classmethod
    async def delete(cls, cluster: Cluster, group: str, *, scope: str | None) -> None:
        """Delete a group's state. Raises `NoSuchReaderGroupError`. Readers still running fail at their next step."""
        await GroupRecord(cluster, *_split_group(group, scope, None)).delete()

    async def reader(self, name: str | None = None) -> Reader:
        """Start a reader. One that ran before under the same name goes on where that one last stored its positions.

        If the older one still runs, it fails at its next step. Without a name the reader gets one of its own; after a
        crash its segments are then free only once it is found dead, after `reader_timeout_s`.
        """
        if name is None:
            name = f"reader-{self._cluster.rng.getrandbits(64):016x}"
        check_user_name("reader", name)
        reader = Reader(self._record, name, f"{self._cluster.rng.getrandbits(64):016x}", self._cluster)
        await reader.open()
        self._readers = {other: value for other, value in self._readers.items() if not value.is_closed}
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
            await reader.store_positions()
        return await self.stream_cuts()

    async def unread_bytes(self) -> int:
        """Return how many bytes the group has still to read in the segments it knows, as of the stored positions."""
        positions = rgs.positions_of(await self.state())
        infos = await asyncio.gather(*map(self._cluster.segments.segment_info, positions))
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

    async def _new_state(self, start: str | Mapping[str, StreamCut] | None) -> GroupState:
        return rgs.create(await self._start_positions(start), self._streams)

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
                cut = await self._cluster.tail(stream)
            else:
                cut = await self._cluster.head(stream)
            for segment, offset in cut.positions.items():
                # A segment not reached yet comes in when its predecessors, which are in the cut, are read.
                if offset != OFFSET_FUTURE:
                    positions[segment_name(scope, name, segment)] = offset
        return positions
