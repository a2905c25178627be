"""`RevisionedStream`: a stream of one segment that several clients write in turn, each knowing what is there.

A *revision* is a place between two entries. Who writes on condition of the latest revision has seen everything before.

What is stored is what Pravega's Java client stores (`RevisionedStreamClient`): entries are events, a mark is an
attribute of the segment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar
from uuid import UUID

from penstock.client.byte_stream import only_segment
from penstock.client.cluster import Cluster
from penstock.client.connection_pool import ConnectionPool
from penstock.client.deadline import within
from penstock.client.life_cycle import LifeCycle
from penstock.client.retry import Backoff
from penstock.client.segment_appender import SegmentAppender
from penstock.client.serializers import Serializer
from penstock.model.errors import InvalidArgumentError, OutcomeUnknownError, SegmentTruncatedError
from penstock.model.events import EVENT_HEADER_LENGTH, EventAssembler, offsets_of
from penstock.model.segments import NO_VALUE

if TYPE_CHECKING:
    from typing import Self

Value = TypeVar("Value")

#: Java's ``SegmentAttribute.RevisionStreamClientMark``.
MARK_ATTRIBUTE = UUID("7df9a874-246c-c9d6-9397-cdd19ead68c5").bytes


@dataclass(frozen=True, slots=True, order=True)
class Revision:
    """A place in a revisioned stream. Of one stream, the later is the greater. ``str`` is as Java's.

    Attributes:
        segment: full name.
        offset: in bytes, behind the entry.
        index: of several updates in one entry, which one.
    """

    segment: str
    offset: int
    index: int = 0

    def __str__(self) -> str:
        return f"{self.segment}:{self.offset}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> Revision:
        """Return the revision that `text` stands for. Raises `InvalidArgumentError`."""
        segment, _, rest = text.partition(":")
        offset, _, index = rest.partition(":")
        if not (segment and offset.isdecimal() and index.isdecimal()):
            raise InvalidArgumentError(f"{text!r} is no revision: it is written as segment:offset:index")
        return cls(segment, int(offset), int(index))


class RevisionedStream(LifeCycle, Generic[Value]):
    """See the module. Made by `Client.revisioned_stream`. Calls at the same time are fine; writes take their turns."""

    def __init__(
        self, cluster: Cluster, pool: ConnectionPool, stream: str, segment: str, values: Serializer[Value]
    ) -> None:
        super().__init__(f"revisioned stream {stream}", close_timeout_s=cluster.settings.close_timeout_s)
        self._cluster = cluster
        self._stream = stream
        self._segment = segment
        self._values = values
        self._appender = SegmentAppender(pool, segment, cluster.settings, cluster.rng)

    @classmethod
    async def _open(
        cls, cluster: Cluster, pool: ConnectionPool, stream: str, values: Serializer[Value], owner: LifeCycle
    ) -> RevisionedStream[Value]:
        """Look a stream up. Raises `NoSuchStreamError`, `StreamSealedError`, `UnsupportedOperationError`."""
        opened = cls(cluster, pool, stream, await only_segment(cluster, stream, "revisioned stream"), values)
        opened._open_life(owner)
        return opened

    @property
    def name(self) -> str:
        """The stream as ``scope/stream``."""
        return self._stream

    async def __aenter__(self) -> Self:
        return self

    async def oldest(self) -> Revision:
        """Return the revision before the first entry that is still there."""
        self._check_open()
        return Revision(self._segment, (await self._cluster.segments.segment_info(self._segment)).start_offset)

    async def latest(self) -> Revision:
        """Return the revision behind the last entry."""
        self._check_open()
        return Revision(self._segment, (await self._cluster.segments.segment_info(self._segment)).length)

    async def read(self, after: Revision) -> AsyncIterator[tuple[Revision, Value]]:
        """Iterate over the entries after a revision that are there now, each with the revision behind it.

        Raises `SegmentTruncatedError` if some of them are gone, `SerializationError`.
        """
        self._check_open()
        start = self._offset(after)
        info = await self._cluster.segments.segment_info(self._segment)
        if start < info.start_offset:
            raise SegmentTruncatedError(self._segment, start_offset=info.start_offset, offset=start)
        if start > info.length:
            raise InvalidArgumentError(f"revision {after} lies behind the end of stream {self._stream}: {info.length}")
        events = EventAssembler(self._segment, start)
        async with self._cluster.segment_reader(self._segment, start, info.length) as reader:
            async for block in reader:
                events.feed(block)
                found, at = events.take()
                for event, end in zip(found, offsets_of(found, at)[1:], strict=True):
                    yield Revision(self._segment, end), self._values.deserialize(event)
        events.check_end("the segment")

    async def write(self, value: Value) -> None:
        """Append an entry, whatever is there.

        Stored once, though replies be lost. Raises `SerializationError`, `OutcomeUnknownError` when the time is up.
        """
        self._check_open()
        await self._appender.append_event(self._values.serialize(value))

    async def write_if(self, latest: Revision, value: Value) -> Revision | None:
        """Append an entry if `latest` is the latest revision; return the new one, None if there was a newer.

        The answer is exact, though replies be lost. Raises `SerializationError`, `OutcomeUnknownError` when the time
        is up.
        """
        self._check_open()
        start = self._offset(latest)
        data = self._values.serialize(value)
        if not await self._appender.append_event(data, start):
            return None
        return Revision(self._segment, start + EVENT_HEADER_LENGTH + len(data))

    async def mark(self) -> Revision | None:
        """Return the mark: a revision that clients have agreed on, as where to begin to read. None if there is none."""
        self._check_open()
        value = await self._cluster.segments.get_attribute(self._segment, MARK_ATTRIBUTE)
        return None if value == NO_VALUE else Revision(self._segment, value)

    async def set_mark(self, expected: Revision | None, mark: Revision | None) -> bool:
        """Replace the mark if it is `expected`; return whether it was. None stands for no mark.

        Raises `OutcomeUnknownError` when the reply was lost: the mark may be replaced or not.
        """
        self._check_open()
        old = NO_VALUE if expected is None else self._offset(expected)
        new = NO_VALUE if mark is None else self._offset(mark)
        try:
            return await self._cluster.segments.update_attribute(
                self._segment, MARK_ATTRIBUTE, value=new, expected=old
            )
        except OutcomeUnknownError as error:
            raise OutcomeUnknownError(
                f"stream {self._stream}: setting the mark to {mark} got no answer; it may be set or not: {error}"
            ) from error

    async def truncate(self, revision: Revision) -> None:
        """Forget the entries before a revision; nothing happens if they are gone. The controller is not told."""
        self._check_open()
        offset = self._offset(revision)
        settings = self._cluster.settings
        backoff = Backoff(settings, self._cluster.rng)
        with within(f"truncate revisioned stream {self._stream}", settings.retry_time_max_s, "retry_time_max_s"):
            while True:
                try:
                    await self._cluster.segments.truncate_segment(self._segment, offset)
                    return
                except SegmentTruncatedError as error:
                    if offset <= error.start_offset:
                        return
                    raise InvalidArgumentError(f"revision {revision} lies behind the end of {self._stream}") from error
                except OutcomeUnknownError as error:
                    # Twice is no more than once, and a late copy takes nothing more.
                    await backoff.pause(error)

    def _offset(self, revision: Revision) -> int:
        if revision.segment != self._segment:
            raise InvalidArgumentError(f"revision {revision} is one of another stream than {self._stream}")
        return revision.offset
