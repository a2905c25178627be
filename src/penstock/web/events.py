"""Events of a stream over REST: a page from a position, and writing.

The contents of events are bytes of unknown origin: they are returned as text if they are UTF-8, otherwise in base64.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

import msgspec

from penstock.client.low_level import controller_of
from penstock.client.reading.batch_reads import BatchRange, BatchReader
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import split_scoped_name
from penstock.model.stream_cuts import StreamCut, is_cut_text
from penstock.web.errors import BadRequestError
from penstock.web.filters import EventFilter, event_filter
from penstock.web.replies import ListedEvent, ListedEvents, Stored
from penstock.web.routes import Query, Reply, Request, Route

#: Events of a page, bytes of one event that are returned, and bytes that a page scans.
_EVENTS_MAX = 1000
_SHOWN_BYTES_MAX = 64 * 1024
_SCANNED_BYTES_MAX = 64 * 1024 * 1024
#: Ranges that a token names, so that it fits into a URL; a stream with more segments is read one segment at a time.
_RANGES_MAX = 100
#: Lines of one request to write.
_LINES_MAX = 1000


class NewEvent(msgspec.Struct, forbid_unknown_fields=True):
    """An event to write: one of ``text``, ``json`` and ``base64``; and its routing key."""

    key: str | None = None
    text: str | None = None
    json: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b""))
    base64: str | None = None

    def data(self) -> bytes:
        """Return the content. Raises `BadRequestError`."""
        json = bytes(self.json)
        if (self.text is not None) + (self.base64 is not None) + bool(json) != 1:
            raise BadRequestError("an event has one of text, json and base64")
        if json:
            return json
        if self.text is not None:
            return self.text.encode("utf-8", "surrogatepass")
        try:
            return base64.b64decode(self.base64 or "", validate=True)
        except binascii.Error as error:
            raise BadRequestError(f"base64 is not understood: {error}") from error


async def read_events(request: Request) -> Reply:
    """Return events from a position on, segment by segment."""
    limit = request.number("limit", 100, least=1, most=_EVENTS_MAX)
    wanted_events = filter_of(request)
    found: list[ListedEvent] = []
    scanned = 0
    async with _batch(request, request.query.get("token")) as batch:
        wanted = request.number("segment", -1, least=-1)
        left = [part for part in batch.ranges if wanted in (-1, part.segment_id)]
        while left and len(found) < limit and scanned < _SCANNED_BYTES_MAX:
            part = left[0]
            async for events in batch.read(part):
                for data, offset, end in zip(events.events, events.offsets, events.offsets[1:], strict=False):
                    scanned += len(data)
                    left[0] = replace(part, start=end)
                    if wanted_events.matches(data):
                        found.append(shown_event(part.segment_id, offset, data))
                    if len(found) == limit or scanned >= _SCANNED_BYTES_MAX:
                        break
                if len(found) == limit or scanned >= _SCANNED_BYTES_MAX:
                    break
            if left[0].start >= left[0].end or left[0] is part:
                del left[0]
    return Reply(content=ListedEvents(found, scanned, not left, _token(left) if left else None))


def _batch(request: Request, token: str | None) -> AbstractAsyncContextManager[BatchReader]:
    """Open the data from the position of a request on, or what the page before has left."""
    if token is not None:
        return request.client.batch(request.stream, ranges=_ranges(request.stream, token))
    return _open_at(request)


@asynccontextmanager
async def _open_at(request: Request) -> AsyncIterator[BatchReader]:
    start = await start_of(request, request.query.get("at", "earliest"))
    async with request.client.batch(request.stream, start=start) as batch:
        yield batch


def _token(left: Sequence[BatchRange]) -> str | None:
    """Return the ranges that are left as text; None if they are too many for one."""
    if len(left) > _RANGES_MAX:
        return None
    rows = [[part.segment_id, part.start, part.end] for part in left]
    return base64.urlsafe_b64encode(msgspec.json.encode(rows)).decode()


def _ranges(stream: str, token: str) -> list[BatchRange]:
    try:
        rows = msgspec.json.decode(base64.urlsafe_b64decode(token), type=list[tuple[int, int, int]])
    except (binascii.Error, ValueError) as error:
        raise BadRequestError(f"token={token!r} is not one of a page before") from error
    if not 0 < len(rows) <= _RANGES_MAX or any(not 0 <= start <= end for _, start, end in rows):
        raise BadRequestError("the token is not one of a page before")
    return [BatchRange(stream, segment, start, end) for segment, start, end in rows]


def filter_of(request: Request) -> EventFilter:
    """Return which events a request wants. Raises `BadRequestError`."""
    return event_filter(request.query.get("contains", ""), request.query.get("where", ""))


def shown_event(segment: int, offset: int, data: bytes) -> ListedEvent:
    """Return an event for people: its place, and its first bytes as text, or in base64 if they are not UTF-8."""
    part = data[:_SHOWN_BYTES_MAX]
    shown = ListedEvent(segment, offset, len(data), isCut=len(part) < len(data))
    try:
        shown.text = part.decode()
    except UnicodeDecodeError:
        shown.base64 = base64.b64encode(part).decode()
    return shown


async def start_of(request: Request, at: str) -> StreamCut:
    """Return the cut of the request's stream that `at` names. Raises `BadRequestError`."""
    client, stream = request.client, request.stream
    scope, name = split_scoped_name(stream)
    if at == "earliest":
        return await client.head(stream)
    if at == "latest":
        return await client.tail(stream)
    positions = _positions_of(at)
    if positions is not None:
        return await cut_of(request, positions)
    if not is_cut_text(at):
        return await client.cut_at_time(stream, at)
    cut = StreamCut.from_text(at)
    if (cut.scope, cut.stream) != (scope, name):
        raise BadRequestError(f"the cut belongs to {cut.scope}/{cut.stream}, not to {stream}")
    return await cut_of(request, cut.positions)


def _positions_of(at: str) -> dict[int, int] | None:
    """Return the offsets of a cut as ``{"0": 123}``; None for another form, of which the text of a cut is one."""
    try:
        return msgspec.json.decode(at.encode("utf-8", "surrogatepass"), type=dict[int, int])
    except msgspec.DecodeError:
        return None


async def cut_of(request: Request, positions: Mapping[int, int]) -> StreamCut:
    """Return a cut of the request's stream. Raises `BadRequestError` unless it covers every key exactly once."""
    cut = StreamCut(*split_scoped_name(request.stream), positions)
    if not cut.positions or not await controller_of(request.client).is_valid_cut(cut):
        raise BadRequestError("not a valid cut: its segments do not cover every key exactly once")
    return cut


async def write_events(request: Request) -> Reply:
    """Write events; answer when all are stored."""
    events = _events(request.body)
    if request.query.get("transaction") == "1":
        async with request.client.begin_transaction(request.stream) as transaction:
            for data, key in events:
                await transaction.write(data, routing_key=key)
            await transaction.commit()
        return Reply(201, Stored(len(events)))
    async with request.client.event_writer(request.stream) as writer:
        for data, key in events:
            await writer.write(data, routing_key=key)
        await writer.flush()
    return Reply(201, Stored(len(events)))


def _events(body: bytes) -> Sequence[tuple[bytes, str | None]]:
    """Return data and key of each line. Raises `BadRequestError` before any event is written."""
    found: list[tuple[bytes, str | None]] = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if not line.strip():
            continue
        if len(found) == _LINES_MAX:
            raise BadRequestError(f"a request has at most {_LINES_MAX} events")
        try:
            event = msgspec.json.decode(line, type=NewEvent)
            found.append((event.data(), event.key))
        except (msgspec.DecodeError, UnicodeDecodeError, InvalidArgumentError) as error:
            raise BadRequestError(f"line {number}: {error}") from error
    if not found:
        raise BadRequestError("the body has no events: one JSON object per line")
    return found


FILTERS = (
    Query("contains", "Only events that contain this text."),
    Query("where", "Only events in JSON that fulfil conditions, for example total > 100 and id ~ x."),
)
_EVENTS = "/v1/scopes/{scope}/streams/{stream}/events"
ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        _EVENTS,
        "Return events from a position on.",
        read_events,
        queries=(
            Query("at", 'earliest, latest, a time in ISO 8601, or a cut as {"segment": offset}.'),
            Query("token", "The token of the page before, in place of at."),
            Query("segment", "Only events of this segment.", is_number=True),
            Query("limit", "Number of events, at most 1000.", is_number=True),
            *FILTERS,
        ),
        reply=(ListedEvents,),
        needs="READ on the stream",
    ),
    Route(
        "POST",
        _EVENTS,
        "Write events, one JSON object per line.",
        write_events,
        201,
        body=NewEvent,
        body_is_lines=True,
        queries=(Query("transaction", "1: all of them or none."),),
        reply=(Stored,),
        needs="READ_UPDATE on the stream",
    ),
)
