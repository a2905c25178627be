"""The streams of a query, as one stream for the planner: a single stream, several named ones, or matches of patterns.

A segment's id is unique only in its stream. With several streams it gets a unique key; limits, shares and
batches are then those of all streams together, as if their segments belonged to one stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

from penstock.model.errors import (
    InvalidArgumentError,
    NoSuchSegmentError,
    NoSuchStreamError,
    PenstockError,
    UnsupportedOperationError,
)
from penstock.model.names import split_scoped_name
from penstock.model.stream_cuts import StreamCut
from penstock.runtime.bulk import all_ended
from penstock.spark.offsets import Cut, Cuts
from penstock.spark.options import SourceOptions, StoreSettings, is_pattern
from penstock.spark.planner import ByteRange, Extent
from penstock.spark.store import StoredStream, client_of, extents_of, give_back, layouts_of, run_in_client

if TYPE_CHECKING:
    from penstock import aio
    from penstock.client.transport.chunk_layouts import SegmentLayout

#: Maximum number of streams of one query. Each micro-batch requests the tail of each, and each is in every offset.
STREAM_COUNT_MAX = 1000

#: Maximum number of streams of a scope that are matched with patterns.
LISTED_COUNT_MAX = 100_000

#: Maximum number of streams queried concurrently.
_ASKED_COUNT_MAX = 16


class StreamKey(int):
    """A segment of one of several streams, with a unique key. Messages show the stream and the segment."""

    stream: str
    segment: int

    def __new__(cls, index: int, stream: str, segment: int) -> StreamKey:
        key = super().__new__(cls, index << 64 | segment)
        key.stream, key.segment = stream, segment
        return key

    def __str__(self) -> str:
        return f"{self.segment} of {self.stream}"

    __repr__ = __str__


class StreamSet:
    """Several streams of the store. Implements `planner.StreamView`, with keys for segment ids if there are several."""

    def __init__(self, settings: StoreSettings, names: Iterable[str]) -> None:
        self._settings = settings
        self._streams = {name: StoredStream(settings, *split_scoped_name(name)) for name in sorted(names)}
        self._indexes = {name: index for index, name in enumerate(self._streams)}

    @property
    def name(self) -> str:
        """The streams, for messages: the first ones of many."""
        names = list(self._streams)
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    def merge(self, cuts: Cuts) -> dict[int, int]:
        """Return the cuts of some of the streams as one."""
        return {self._key(name, segment): at for name, cut in cuts.items() for segment, at in cut.items()}

    def split(self, cut: Cut) -> dict[str, dict[int, int]]:
        """Return a joined cut as one for each stream."""
        cuts: dict[str, dict[int, int]] = {}
        for key, at in cut.items():
            stream, segment = self.stream_of(key)
            cuts.setdefault(stream.name, {})[segment] = at
        return cuts

    def stream_of(self, key: int) -> tuple[StoredStream, int]:
        """Return the stream of a key, and the segment's id in it."""
        if isinstance(key, StreamKey):
            return self._streams[key.stream], key.segment
        (only,) = self._streams.values()
        return only, key

    def extent(self, segment: int) -> Extent:
        """See `StreamView.extent`."""
        stream, segment = self.stream_of(segment)
        return stream.extent(segment)

    def extents(self, segments: Sequence[int]) -> Sequence[Extent | NoSuchSegmentError]:
        """See `StreamView.extents`."""
        return extents_of(self._settings, [self.segment_name(segment) for segment in segments])

    def successors(self, segment: int) -> Mapping[int, Sequence[int]]:
        """See `StreamView.successors`."""
        stream, segment = self.stream_of(segment)
        key = partial(self._key, stream.name)
        return {key(new): [*map(key, olds)] for new, olds in stream.successors(segment).items()}

    def boundaries(self, segment: int, start: int, targets: Sequence[int]) -> Sequence[int]:
        """See `StreamView.boundaries`."""
        stream, segment = self.stream_of(segment)
        return stream.boundaries(segment, start, targets)

    def boundary_behind(self, segment: int, start: int, end: int, event_count: int) -> tuple[int, int]:
        """See `StreamView.boundary_behind`."""
        stream, segment = self.stream_of(segment)
        return stream.boundary_behind(segment, start, end, event_count)

    def event_end(self, segment: int, start: int) -> int:
        """See `StreamView.event_end`."""
        stream, segment = self.stream_of(segment)
        return stream.event_end(segment, start)

    def segment_name(self, segment: int) -> str:
        """Return the full name of a segment."""
        stream, segment = self.stream_of(segment)
        return stream.segment_name(segment)

    def layouts(self, ranges: Sequence[ByteRange], lease_s: float) -> Sequence[SegmentLayout | PenstockError]:
        """See `LayoutView.layouts`."""
        wanted = [(self.segment_name(each.segment), each.start, each.end) for each in ranges]
        return layouts_of(self._settings, wanted, lease_s, self.name)

    def give_back(self, layout: SegmentLayout) -> None:
        """See `LayoutView.give_back`."""
        give_back(self._settings, layout)

    def is_of_now(self, name: str, cut: Cut) -> bool:
        """Return whether a cut belongs to the stream with this name now, and not to a deleted one."""
        stream = self._streams[name]
        return any(_is_known(stream, segment) for segment in cut)

    def _key(self, name: str, segment: int) -> int:
        return StreamKey(self._indexes[name], name, segment) if len(self._streams) > 1 else segment


def _is_known(stream: StoredStream, segment: int) -> bool:
    try:
        stream.extent(segment)
    except NoSuchSegmentError:
        # A truncated segment still has recorded successors. A recreated stream does not reuse the numbers of segments.
        return bool(stream.successors(segment))
    return True


class QueriedStreams:
    """The streams that a query reads: the named ones, and those found periodically by its patterns."""

    def __init__(self, options: SourceOptions, clock: Callable[[], float]) -> None:
        self._settings = options.store
        self._named = [name for name in options.streams if not is_pattern(name)]
        self._patterns = [name for name in options.streams if is_pattern(name)]
        self._refresh_s = options.refresh_s
        self._clock = clock
        self._listed_s = float("-inf")
        self._listed: list[str] = []

    def is_named(self, name: str) -> bool:
        """Return whether a stream is named, and not only found by a pattern."""
        return name in self._named

    def is_wanted(self, name: str) -> bool:
        """Return whether the query reads a stream of this name, if it exists."""
        return name in self._named or any(fnmatchcase(name, pattern) for pattern in self._patterns)

    def names(self) -> list[str]:
        """Return the named streams, which may be missing, and those found at most `refresh_s` ago.

        Raises:
            InvalidArgumentError: there are too many.
            NoSuchScopeError: the scope of a pattern does not exist.
        """
        if self._patterns and self._clock() - self._listed_s >= self._refresh_s:
            self._listed = self._listing()
            self._listed_s = self._clock()
        found = sorted({*self._named, *self._listed})
        if len(found) > STREAM_COUNT_MAX:
            raise InvalidArgumentError(
                f"option 'stream' matches {len(found)} streams, more than the {STREAM_COUNT_MAX} of one query: split it"
            )
        return found

    def _listing(self) -> list[str]:
        found: list[str] = []
        for scope in dict.fromkeys(pattern.partition("/")[0] for pattern in self._patterns):
            for count, name in enumerate(client_of(self._settings).streams(scope), 1):
                if count > LISTED_COUNT_MAX:
                    raise InvalidArgumentError(
                        f"scope {scope} has more than {LISTED_COUNT_MAX} streams: name those to read, without a pattern"
                    )
                if self.is_wanted(f"{scope}/{name}"):
                    found.append(f"{scope}/{name}")
        return found

    def tails(self, names: Sequence[str], *, whole_transactions: bool) -> dict[str, Cut]:
        """Return the current tails of the streams that exist. See `StoredStream.tail`."""
        return run_in_client(self._settings, partial(_tails, names, whole_transactions))


async def _tails(names: Sequence[str], whole_transactions: bool, client: aio.Client) -> dict[str, Cut]:
    async def tail_of(name: str) -> StreamCut:
        try:
            return await client.tail(name, whole_transactions=whole_transactions)
        except UnsupportedOperationError:
            return await client.tail(name)

    async def tail(name: str) -> tuple[str, Cut] | None:
        try:
            return name, dict(sorted((await tail_of(name)).positions.items()))
        except NoSuchStreamError:
            return None
        except NoSuchSegmentError:
            if await client.stream_exists(name):
                raise
            return None  # Deleted in between.

    answers = await all_ended(names, tail, _ASKED_COUNT_MAX)
    return dict(answer for answer in answers if answer is not None)
