"""The blocking `ReaderGroup`. Generated from `penstock.client.groups.reader_group`: do not edit.

`python -m penstock_tools.generate_sync` regenerates it; see ``docs/sync-client.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

from penstock.client.common.serializers import Serializer, Value
from penstock.client.groups import reader_group as aio
from penstock.client.groups.membership import OnChange
from penstock.client.groups.positions import Positions
from penstock.client.groups.reader import Reader as AsyncReader
from penstock.client.groups.reader_group import GroupDescription
from penstock.client.groups.value_reader import ValueReader as AsyncValueReader
from penstock.client.streams.start_positions import Start
from penstock.client.sync.handle import Handle
from penstock.client.sync.reader import Reader
from penstock.client.sync.value_reader import ValueReader
from penstock.model.policies import GroupRetention
from penstock.model.stream_cuts import StreamCut


class ReaderGroup(Handle[aio.ReaderGroup]):
    """A named set of readers. Made by `Client.reader_group`; its state outlives every reader and client.

    Each event goes to one reader. Events of one routing key are read in order, also across splits and merges. An event
    is read again after a crash or an exception, or when a reader that was declared dead was only slow (at least once);
    otherwise exactly once. For the guarantees and their tests see ``docs/reader-groups.md``.
    """

    @property
    def scope(self) -> str:
        """The scope that the group lives in."""
        return self._part.scope

    @property
    def name(self) -> str:
        """The group's name in its scope."""
        return self._part.name

    @overload
    def reader(
        self,
        name: str | None = None,
        *,
        positions: Positions | str = Positions.AUTOMATIC,
        on_change: OnChange | None = None,
        serializer: None = None,
    ) -> Reader: ...

    @overload
    def reader(
        self,
        name: str | None = None,
        *,
        positions: Positions | str = Positions.AUTOMATIC,
        on_change: OnChange | None = None,
        serializer: Serializer[Value],
    ) -> ValueReader[Value]: ...

    def reader(
        self,
        name: str | None = None,
        *,
        positions: Positions | str = Positions.AUTOMATIC,
        on_change: OnChange | None = None,
        serializer: Serializer[Value] | None = None,
    ) -> Reader | ValueReader[Value]:
        """Start a reader of events, or with a serializer of values. Use it as a context manager.

        A reader resumes from the positions that the previous reader of the same name stored last.

        If the previous one still runs, it fails at its next step. Without a name, the reader gets a unique one. After a
        crash, the segments of an unnamed reader are released only when it is declared dead, after the group's
        `reader_timeout_s`.

        Args:
            name: of the reader in its group.
            positions: when its positions advance: "automatic", "manual" or "at_exit", see `Positions`.
            on_change: called in the client's own thread with the names of segments that were added, and of those
                removed. It must not block; an error in it ends the reader.
            serializer: deserializes the events' bytes, see `ValueReader`.
        """
        async def opening() -> AsyncReader | AsyncValueReader[Value]:
            return await self._part.reader(
            name, positions=positions, on_change=on_change, serializer=serializer
        )

        opened = self._portal.call(opening())
        if isinstance(opened, AsyncValueReader):
            return ValueReader(self, self._portal, opened)
        return Reader(self, self._portal, opened)

    def stream_cuts(self) -> dict[str, StreamCut]:
        """Return the group's stored position in each stream: up to `position_interval_s` old."""
        return self._portal.call(self._part.stream_cuts())

    def checkpoint(self) -> dict[str, StreamCut]:
        """Have the readers started here store their positions now, then return `stream_cuts`.

        Events that were returned and not yet followed by another read count as unread.
        """
        return self._portal.call(self._part.checkpoint())

    def add_streams(self, streams: Sequence[str], *, start: Start = None, until: Start = None) -> None:
        """Read more streams: names, or patterns (``scope/*``). All readers take part, wherever they run.

        Positions in streams that the group already reads do not change. `start`, `until`: of the new streams, see
        `Client.reader_group`; a stream that a pattern finds later is read from its beginning. Safe to repeat.

        Raises `NoSuchStreamError`, `NoSuchScopeError`; `InvalidArgumentError` for an invalid start or end.
        """
        self._portal.call(self._part.add_streams(streams, start=start, until=until))

    def remove_streams(self, streams: Sequence[str]) -> None:
        """Read fewer streams: names, or patterns with the streams that only they matched. Their positions are dropped.

        An event already returned by a reader is not affected. Streams that the group does not read are ignored. Safe to
        repeat.

        Raises `InvalidArgumentError` if no stream would be left, or for a stream that a pattern would find again.
        """
        self._portal.call(self._part.remove_streams(streams))

    def set_retention(self, retention: GroupRetention | str) -> None:
        """Change which data the group retains in its streams: "none", "manual" or "automatic", see `GroupRetention`.

        Changing from "none" subscribes to all streams, and retains the data that exists now; changing to "none" retains
        nothing any more. Acknowledged cuts stay valid between the other two. With readers or without; safe to repeat.

        Raises `NoSuchReaderGroupError`, and `StreamError` if a stream to subscribe to was deleted.
        """
        self._portal.call(self._part.set_retention(retention))

    def set_checkpoint_interval(self, interval_s: float) -> None:
        """Set the interval of automatic checkpoints, in seconds from 0.001 to 1e9; 0: no checkpoints.

        With readers or without; safe to repeat. Raises `InvalidArgumentError`, `NoSuchReaderGroupError`.
        """
        self._portal.call(self._part.set_checkpoint_interval(interval_s))

    def acknowledge(self, cuts: StreamCut | str | Mapping[str, StreamCut | str]) -> bool:
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
        return self._portal.call(self._part.acknowledge(cuts))

    def reset(self, start: Start) -> None:
        """Move the group to new positions: "earliest", "latest", a time, or a stream cut for each stream.

        All its readers, also those that run elsewhere, release their segments and continue from there. An event already
        returned by a reader is not affected.

        Raises `InvalidArgumentError` for an invalid start, or one beyond the end of its stream.
        """
        self._portal.call(self._part.reset(start))

    def reset_cuts(self, start: Start) -> dict[str, StreamCut]:
        """Return the positions that `reset` would move to now. Nothing is changed. Raises as `reset`."""
        return self._portal.call(self._part.reset_cuts(start))

    def remove_reader(self, name: str) -> bool:
        """Remove a reader that ended without closing: other readers continue at its stored positions.

        A group does this by itself after `reader_timeout_s`, if it has another reader. A removed reader that still runs
        joins again, and its events since its stored positions are delivered twice.

        Returns False if the group has no reader of this name. Raises `NoSuchReaderGroupError` if the group was deleted.
        """
        return self._portal.call(self._part.remove_reader(name))

    def unread_bytes(self) -> int:
        """Return the unread bytes in the segments that the group knows, as of the stored positions.

        The successors of a segment become known when a reader reaches its end, so 0 need not be the end of the stream.
        Raises `NoSuchStreamError` if a stream of the group was deleted, and created again under the same name.
        """
        return self._portal.call(self._part.unread_bytes())

    def describe(self) -> GroupDescription:
        """Return the group's readers with their segments, its positions, and its unread bytes."""
        return self._portal.call(self._part.describe())
