"""`EventPage`: a bounded number of events of a stream, from a position on, that a filter accepts.

Reading is bounded by events, bytes and time. A page that stops early has a token from which the next page continues.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec

from penstock import aio
from penstock.client.low_level import segments_of
from penstock.client.reading.batch_reads import BatchRange, BatchReader
from penstock.model.errors import NoSuchSegmentError
from penstock.model.names import segment_name, split_scoped_name
from penstock.web.console.positions import cut_at, last_count
from penstock.web.errors import BadRequestError
from penstock.web.filters import EventFilter

#: Bytes of one event that a page shows.
SHOWN_BYTES_MAX: int = 64 * 1024
#: What one page reads at most.
SCANNED_BYTES_MAX: int = 256 * 1024 * 1024
SCAN_TIME_MAX_S: float = 5.0
#: Ranges that a token names, so that it fits into a URL.
RANGES_MAX: int = 64
#: Segments of which the last events are read for one page.
LAST_SEGMENTS_MAX: int = 64
LAST_EPOCHS_MAX: int = 20
#: For a position such as ``last:100``: bytes read before the end of a segment, doubled until they have enough events.
_LAST_BYTES, _LAST_BYTES_MAX = 64 * 1024, 4 * 1024 * 1024
_LAST_SCANNED_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ShownEvent:
    """An event of a page. `data`: its first bytes; `length`: of all of it; `end`: where the next event starts."""

    segment_id: int
    offset: int
    end: int
    length: int
    data: bytes

    @property
    def is_cut(self) -> bool:
        """Whether `data` is not all of it."""
        return len(self.data) < self.length


@dataclass(frozen=True, slots=True)
class EventPage:
    """See the module.

    Attributes:
        events: in order within each segment, one segment after the other.
        scanned_bytes, left_bytes: read for this page, and not read yet, up to the end of the stream at this moment.
        stopped: why there may be more events: "events", "bytes" or "time"; "": there are none.
        token: of the next page; empty: there is none, or the rest has too many segments for a token.
        start: offsets of the cut that the page started at, of ``last:`` a cut before its events; empty for later pages.
    """

    events: Sequence[ShownEvent]
    scanned_bytes: int
    left_bytes: int
    stopped: str
    token: str
    start: dict[int, int]


class _Scan:
    """Reads ranges until a bound is reached. `left`: the ranges that are not read yet."""

    def __init__(self, ranges: Sequence[BatchRange], wanted: EventFilter, limit: int) -> None:
        self.left: deque[BatchRange] = deque(ranges)
        self.events: list[ShownEvent] = []
        self.scanned_bytes = 0
        self.stopped = ""
        self._wanted = wanted
        self._limit = limit

    async def run(self, batch: BatchReader) -> None:
        """Read. Raises as `BatchReader.read`."""
        bound = asyncio.timeout(SCAN_TIME_MAX_S)
        try:
            async with bound:
                while self.left and not self.stopped:
                    await self._range(batch, self.left[0])
        except TimeoutError:
            if not bound.expired():
                raise
            self.stopped = "time"

    async def _range(self, batch: BatchReader, part: BatchRange) -> None:
        async for events in batch.read(part):
            for data, offset, end in zip(events.events, events.offsets, events.offsets[1:], strict=False):
                self.scanned_bytes += end - offset
                self.left[0] = replace(part, start=end)
                if self._wanted.matches(data):
                    self.events.append(shown_event(part.segment_id, offset, end, data))
                if len(self.events) == self._limit:
                    self.stopped = "events"
                elif self.scanned_bytes >= SCANNED_BYTES_MAX:
                    self.stopped = "bytes"
                if self.stopped:
                    self._drop_read()
                    return
            # Conditions are evaluated for blocks of some hundreds of KiB; other requests and the time-out run between.
            await asyncio.sleep(0)
        self.left.popleft()

    def _drop_read(self) -> None:
        while self.left and self.left[0].start >= self.left[0].end:
            self.left.popleft()
        if not self.left:
            self.stopped = ""


def shown_event(segment_id: int, offset: int, end: int, data: bytes) -> ShownEvent:
    """Return an event as a page shows it."""
    return ShownEvent(segment_id, offset, end, len(data), data[:SHOWN_BYTES_MAX])


async def event_page(
    client: aio.Client,
    stream: str,
    *,
    at: str,
    token: str,
    segment: int | None,
    wanted: EventFilter,
    limit: int,
    now: datetime,
) -> EventPage:
    """Return a page. `token`: of the page before, in place of `at`. `segment`: only events of this one, by its id.

    Raises `BadRequestError`, and what the client raises.
    """
    count = None if token else last_count(at)
    if count is not None:
        return await _last_page(client, stream, count, segment, wanted)
    start: dict[int, int] = {}
    if token:
        opening = client.batch(stream, ranges=_ranges_of(stream, token))
    else:
        cut = await cut_at(client, stream, at, now)
        start = dict(cut.positions)
        opening = client.batch(stream, start=cut)
    async with opening as batch:
        ranges = [part for part in batch.ranges if segment is None or part.segment_id == segment]
        scan = _Scan(ranges, wanted, limit)
        await scan.run(batch)
    left_bytes = sum(part.length_bytes for part in scan.left)
    return EventPage(
        scan.events, scan.scanned_bytes, left_bytes, scan.stopped, _token(scan.left) if scan.stopped else "", start
    )


async def _last_page(
    client: aio.Client, stream: str, count: int, segment: int | None, wanted: EventFilter
) -> EventPage:
    """Return the last events of each segment, about the same number of each, from the latest epoch back to `count`."""
    history = await client.history(stream, epoch_count_max=LAST_EPOCHS_MAX)
    if len(history.epochs[-1].segments) > LAST_SEGMENTS_MAX and segment is None:
        raise BadRequestError(
            f"{len(history.epochs[-1].segments)} segments take events now: choose one of them, or another position"
        )
    events: list[ShownEvent] = []
    firsts: dict[int, int] = {}
    scanned = 0
    epoch = history.epochs[-1]
    for epoch in reversed(history.epochs):
        new = [each.segment_id for each in epoch.segments if each.segment_id not in firsts]
        chosen = [each for each in new if segment in (None, each)]
        left = count - len(events)
        lasts: dict[int, list[ShownEvent]] = {}
        segment_id: int
        for segment_id in new:
            wanted_count = left if segment_id in chosen else 0
            lasts[segment_id], read, firsts[segment_id] = await _last_of(
                client, stream, segment_id, wanted_count, wanted
            )
            scanned += read
        share = _share([len(found) for found in lasts.values()], left)
        older: list[ShownEvent] = []
        for segment_id, found in lasts.items():
            shown = found[max(len(found) - share, 0) :]
            firsts[segment_id] = shown[0].offset if shown else firsts[segment_id]
            older += shown
        events = older + events
        if len(events) >= count or len(firsts) >= LAST_SEGMENTS_MAX or scanned >= _LAST_SCANNED_BYTES_MAX:
            break
    start: dict[int, int] = {each.segment_id: firsts[each.segment_id] for each in epoch.segments}
    return EventPage(events, scanned, 0, "", "", start)


def _share(counts: Sequence[int], count: int) -> int:
    """Return how many of each segment are shown, so that all of them together are about `count`, and at least 1."""
    share = left = count
    for number, each in enumerate(sorted(counts)):
        share = max(left // (len(counts) - number), 1)
        if each >= share:
            break
        left -= each
    return share


async def _last_of(
    client: aio.Client, stream: str, segment_id: int, count: int, wanted: EventFilter
) -> tuple[list[ShownEvent], int, int]:
    """Return the last events of a segment, the bytes read, and its end. A deleted segment has none."""
    name = segment_name(*split_scoped_name(stream), segment_id)
    try:
        info = await segments_of(client).segment_info(name)
    except NoSuchSegmentError:
        return [], 0, 0
    first, end = info.start_offset, info.length
    window, scanned = _LAST_BYTES, 0
    while count:
        start = first
        if end - window > first:
            start = min(await segments_of(client).locate_offset(name, end - window), end)
        found: deque[ShownEvent] = deque(maxlen=count)
        if start < end:
            async with client.batch(stream, ranges=[BatchRange(stream, segment_id, start, end)]) as batch:
                async for events in batch.read(batch.ranges[0]):
                    for data, offset, after in zip(events.events, events.offsets, events.offsets[1:], strict=False):
                        scanned += after - offset
                        if wanted.matches(data):
                            found.append(shown_event(segment_id, offset, after, data))
        if len(found) == count or start <= first or window >= _LAST_BYTES_MAX:
            return list(found), scanned, end
        window *= 4
    return [], 0, end


async def whole_event(client: aio.Client, stream: str, segment_id: int, offset: int, end: int) -> bytes:
    """Return the bytes of the event in ``[offset, end)`` of a segment. Raises `BadRequestError` if it is not one."""
    part = BatchRange(stream, segment_id, offset, end)
    async with client.batch(stream, ranges=[part]) as batch:
        found = [data async for events in batch.read(part) for data in events.events]
    if len(found) != 1:
        raise BadRequestError(f"bytes {offset} to {end} of segment {segment_id} are not one event")
    return found[0]


def _token(left: Sequence[BatchRange]) -> str:
    if len(left) > RANGES_MAX:
        return ""
    rows = [[part.segment_id, part.start, part.end] for part in left]
    return base64.urlsafe_b64encode(msgspec.json.encode(rows)).decode()


def _ranges_of(stream: str, token: str) -> list[BatchRange]:
    try:
        rows = msgspec.json.decode(base64.urlsafe_b64decode(token), type=list[tuple[int, int, int]])
    except (binascii.Error, ValueError) as error:
        raise BadRequestError(f"token={token!r} is not one of a page before") from error
    if not 0 < len(rows) <= RANGES_MAX or any(not 0 <= start <= end for _, start, end in rows):
        raise BadRequestError("the token is not one of a page before")
    return [BatchRange(stream, segment, start, end) for segment, start, end in rows]
