"""The blocking `ReaderGroup`. Generated from `penstock.client.reader_group`: do not edit.

`python -m penstock.client.generate_sync` makes it anew; see ``docs/sync-client.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

from penstock.client import reader_group as aio
from penstock.client.membership import OnChange
from penstock.client.reader import Positions
from penstock.client.reader import Reader as AsyncReader
from penstock.client.reader_group import GroupDescription
from penstock.client.serializers import Serializer, Value
from penstock.client.starts import Start
from penstock.client.sync.handle import Handle
from penstock.client.sync.reader import Reader
from penstock.client.sync.value_reader import ValueReader
from penstock.client.value_reader import ValueReader as AsyncValueReader
from penstock.model.policies import GroupRetention
from penstock.model.stream_cuts import StreamCut


class ReaderGroup(Handle[aio.ReaderGroup]):
    """A named set of readers. Made by `Client.reader_group`; its state outlives every reader and client.

    Each event goes to one reader. Events of one routing key are read in order, also across splits and merges.
    An event is read again after a crash or an exception, or when a reader that was declared dead was only slow (at
    least once); otherwise exactly once. What is promised, and what shows it, is in ``docs/reader-groups.md``.
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

        One that ran before under the same name goes on where that one last stored its positions.

        If the older one still runs, it fails at its next step. Without a name the reader gets one of its own; after a
        crash its segments are then free only once it is found dead, after the group's `reader_timeout_s`.

        Args:
            name: of the reader in its group.
            positions: when its positions move: "automatic", "manual" or "at_exit", see `Positions`.
            on_change: called in the client's own thread with the names of segments that came, and of those that went.
                It must not block; an error in it ends the reader.
            serializer: makes values of the events' bytes, see `ValueReader`.
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
        """Return how far the group is in each stream, as last stored: up to `position_interval_s` old."""
        return self._portal.call(self._part.stream_cuts())

    def checkpoint(self) -> dict[str, StreamCut]:
        """Let the readers started here store their positions now, then return `stream_cuts`.

        Events handed out and not yet followed by another read count as unread.
        """
        return self._portal.call(self._part.checkpoint())

    def add_streams(self, streams: Sequence[str], *, start: Start = None, until: Start = None) -> None:
        """Read more streams: names, or patterns (``scope/*``). All readers take part, wherever they run.

        Streams that the group reads already stay where they are. `start`, `until`: of those that are new, see
        `Client.reader_group`; what a pattern finds later is read from its beginning. Safe to repeat.

        Raises `NoSuchStreamError`, `NoSuchScopeError`; `InvalidArgumentError` for a start or an end that is none.
        """
        self._portal.call(self._part.add_streams(streams, start=start, until=until))

    def remove_streams(self, streams: Sequence[str]) -> None:
        """Read fewer streams: names, or patterns, with all that only they have found. Its places in them are forgotten.

        An event that a reader has in hand is one of before. Streams that it does not read are no matter. Safe to
        repeat.

        Raises `InvalidArgumentError` when nothing would be left, or for a stream that a pattern would find again.
        """
        self._portal.call(self._part.remove_streams(streams))

    def set_retention(self, retention: GroupRetention | str) -> None:
        """Change what the group holds of its streams: "none", "manual" or "automatic", see `GroupRetention`.

        From "none" it subscribes to all of them, and holds what is there; to "none" it holds nothing any more. What it
        has acknowledged counts on between the others. With readers or without; safe to repeat.

        Raises `NoSuchReaderGroupError`, and `StreamError` when a stream to subscribe to was deleted.
        """
        self._portal.call(self._part.set_retention(retention))

    def set_checkpoint_interval(self, interval_s: float) -> None:
        """Have one of the readers take a checkpoint every so many seconds, 0.001 to 1e9; 0: none any more.

        With readers or without; safe to repeat. Raises `InvalidArgumentError`, `NoSuchReaderGroupError`.
        """
        self._portal.call(self._part.set_checkpoint_interval(interval_s))

    def acknowledge(self, cuts: StreamCut | str | Mapping[str, StreamCut | str]) -> bool:
        """Say that the group, whose retention is "manual", needs nothing before a cut, or one for each of some streams.

        Returns once the controller has stored it, so that the streams' retention may delete what lies before. False: at
        least one lies before what was acknowledged there already, which stays. No cut may be beyond what is stored as
        read: see `stream_cuts`, `checkpoint` and `Reader.commit`. Safe to repeat.

        Raises:
            InvalidArgumentError: the group's retention is another; or it does not read the stream; or a cut is none of
                its stream, or lies beyond what the group has read.
            StreamError: the stream was deleted, or made again under its name, and the group has not followed yet.
            NoSuchReaderGroupError: the group was deleted.
        """
        return self._portal.call(self._part.acknowledge(cuts))

    def reset(self, start: Start) -> None:
        """Let the group go on somewhere else: "earliest", "latest", at a time, or at a stream cut for each stream.

        Its readers lose what they hold and go on there, also those that run elsewhere. An event that a reader has in
        hand by then is one of before.

        Raises `InvalidArgumentError` for a start that is none, or lies beyond the end of its stream.
        """
        self._portal.call(self._part.reset(start))

    def unread_bytes(self) -> int:
        """Return how many bytes the group has still to read in the segments it knows, as of the stored positions.

        What follows a segment is known once a reader has asked for it at the segment's end, so 0 need not be the end.
        Raises `NoSuchStreamError` when a stream of the group was deleted, and created again under the same name.
        """
        return self._portal.call(self._part.unread_bytes())

    def describe(self) -> GroupDescription:
        """Return who reads what, how far the group is, and how much it has still to read."""
        return self._portal.call(self._part.describe())
