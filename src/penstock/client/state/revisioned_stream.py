"""`RevisionedStream`: a stream of one segment that several clients write with conditional appends.

A *revision* is a place between two entries. A write conditional on the latest revision succeeds only if its client has
seen all earlier entries.

The stored format is that of Pravega's Java client (`RevisionedStreamClient`): entries are events, a mark is an
attribute of the segment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.client.common.deadline import within
from penstock.client.common.life_cycle import LifeCycle
from penstock.client.common.retry import Backoff
from penstock.client.common.serializers import Serializer
from penstock.client.transport.cluster import Cluster
from penstock.client.transport.connection_pool import ConnectionPool
from penstock.client.writing.byte_stream import only_segment
from penstock.client.writing.single_appender import SingleAppender
from penstock.model.errors import InvalidArgumentError, OutcomeUnknownError, SegmentTruncatedError
from penstock.model.events import EVENT_HEADER_LENGTH, EventAssembler, offsets_of
from penstock.model.segments import MARK_ATTRIBUTE, NO_VALUE

if TYPE_CHECKING:
    from typing import Self

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, order=True)
class Revision:
    """A place in a revisioned stream. In one stream, the later revision is the greater. ``str`` is as Java's.

    Attributes:
        segment: full name.
        offset: in bytes, after the entry.
        index: which of several updates in one entry.
    """

    segment: str
    offset: int
    index: int = 0

    def __str__(self) -> str:
        return f"{self.segment}:{self.offset}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> Revision:
        """Parse the text form of a revision. Raises `InvalidArgumentError`."""
        segment, _, rest = text.partition(":")
        offset, _, index = rest.partition(":")
        if not (segment and offset.isdecimal() and index.isdecimal()):
            raise InvalidArgumentError(f"{text!r} is not a revision: write segment:offset:index")
        return cls(segment, int(offset), int(index))


class RevisionedStream(LifeCycle, Generic[Value]):
    """See the module. Made by `Client.revisioned_stream`. Calls may be concurrent; writes are serialized."""

    def __init__(
        self, cluster: Cluster, pool: ConnectionPool, stream: str, segment: str, values: Serializer[Value]
    ) -> None:
        super().__init__(f"revisioned stream {stream}", close_timeout_s=cluster.settings.close_timeout_s)
        self._cluster = cluster
        self._stream = stream
        self._segment = segment
        self._values = values
        self._appender = SingleAppender(pool, segment, cluster.settings, cluster.rng)

    @property
    def name(self) -> str:
        """The stream as ``scope/stream``."""
        return self._stream

    async def __aenter__(self) -> Self:
        return self

    async def oldest(self) -> Revision:
        """Return the revision before the first entry that still exists."""
        self._check_open()
        return Revision(self._segment, (await self._cluster.segments.segment_info(self._segment)).start_offset)

    async def latest(self) -> Revision:
        """Return the revision after the last entry."""
        self._check_open()
        return Revision(self._segment, (await self._cluster.segments.segment_info(self._segment)).length)

    async def read(self, after: Revision) -> AsyncIterator[tuple[Revision, Value]]:
        """Iterate over the entries that now exist after a revision, each with the revision after it.

        Raises `SegmentTruncatedError` if some of them were truncated, `SerializationError`.
        """
        self._check_open()
        start = self._offset(after)
        info = await self._cluster.segments.segment_info(self._segment)
        if start < info.start_offset:
            raise SegmentTruncatedError(self._segment, start_offset=info.start_offset, offset=start)
        if start > info.length:
            raise InvalidArgumentError(f"revision {after} is after the end of stream {self._stream}: {info.length}")
        events = EventAssembler(self._segment, start)
        async with self._cluster.segment_reader(self._segment, start, info.length) as reader:
            async for block in reader:
                events.feed(block)
                found, at = events.take()
                for event, end in zip(found, offsets_of(found, at)[1:], strict=True):
                    yield Revision(self._segment, end), self._values.deserialize(event)
        events.check_end("the segment")

    async def write(self, value: Value) -> None:
        """Append an entry unconditionally.

        Stored exactly once, even if replies are lost. Raises `SerializationError`, `OutcomeUnknownError` when the time
        limit expires.
        """
        self._check_open()
        await self._appender.append_event(self._values.serialize(value))

    async def write_if(self, latest: Revision, value: Value) -> Revision | None:
        """Append an entry if `latest` is the latest revision; return the new one, None if there was a newer.

        The result is exact, even if replies are lost. Raises `SerializationError`, `OutcomeUnknownError` when the time
        limit expires.
        """
        self._check_open()
        start = self._offset(latest)
        data = self._values.serialize(value)
        if not await self._appender.append_event(data, start):
            return None
        return Revision(self._segment, start + EVENT_HEADER_LENGTH + len(data))

    async def mark(self) -> Revision | None:
        """Return the mark, a revision agreed on by the clients, such as where to begin reading; or None."""
        self._check_open()
        value = await self._cluster.segments.get_attribute(self._segment, MARK_ATTRIBUTE)
        return None if value == NO_VALUE else Revision(self._segment, value)

    async def set_mark(self, expected: Revision | None, mark: Revision | None) -> bool:
        """Replace the mark if it is `expected`; return whether it was. None means no mark.

        Raises `OutcomeUnknownError` if the reply was lost: the mark may be replaced or not.
        """
        self._check_open()
        old = NO_VALUE if expected is None else self._offset(expected)
        new = NO_VALUE if mark is None else self._offset(mark)
        try:
            return await self._cluster.segments.update_attribute(self._segment, MARK_ATTRIBUTE, value=new, expected=old)
        except OutcomeUnknownError as error:
            raise OutcomeUnknownError(
                f"stream {self._stream}: setting the mark to {mark} got no answer; it may or may not be set: {error}"
            ) from error

    async def truncate(self, revision: Revision) -> None:
        """Delete the entries before a revision; no effect if they are deleted. The controller has no record of it."""
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
                    raise InvalidArgumentError(f"revision {revision} is after the end of {self._stream}") from error
                except OutcomeUnknownError as error:
                    # Idempotent: a repeated or late request truncates nothing more.
                    await backoff.pause(error)

    def _offset(self, revision: Revision) -> int:
        if revision.segment != self._segment:
            raise InvalidArgumentError(f"revision {revision} does not belong to {self._stream}")
        return revision.offset


async def open_revisioned_stream(
    cluster: Cluster, pool: ConnectionPool, stream: str, values: Serializer[Value], owner: LifeCycle
) -> RevisionedStream[Value]:
    """Look up a stream. Raises `NoSuchStreamError`, `StreamSealedError`, `UnsupportedOperationError`."""
    opened = RevisionedStream(cluster, pool, stream, await only_segment(cluster, stream, "revisioned stream"), values)
    opened.open_life(owner)
    return opened


def segment_of(stream: RevisionedStream[Value]) -> str:
    """Return the full name of the segment of a stream."""
    return stream._segment
