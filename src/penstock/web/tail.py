"""New events of a stream as server-sent events, as long as the caller listens.

Messages are events (no name), ``gap`` (bytes that were truncated before they were sent), ``end`` (the stream is sealed
and read) and ``error``. The id of a message is the position after it, so a browser that connects again continues
there. Ids come once per batch: after a lost connection, the events of one batch may come again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec

from penstock import aio
from penstock.client.reading.event import EventBatch
from penstock.client.stream_events import StreamEvents
from penstock.model.errors import PenstockError
from penstock.model.stream_cuts import StreamCut
from penstock.web.errors import BadRequestError, refusal_of
from penstock.web.events import FILTERS, cut_of, filter_of, shown_event, start_of
from penstock.web.filters import EventFilter
from penstock.web.routes import Query, Reply, Request, Route

#: Without events, a comment this often: so that both sides, and proxies between them, notice a lost connection.
_KEEP_ALIVE_S = 15.0
#: A response ends after this time; browsers connect again. Rights are then checked again.
_TAIL_TIME_MAX_S = 3600.0
#: Wait of a browser before it connects again.
_RECONNECT_MS = 3000


async def tail_events(request: Request) -> Reply:
    """Follow a stream from a position on."""
    wanted_events = filter_of(request)
    wanted = request.number("segment", -1, least=-1)
    if request.last_event_id:
        try:
            positions = msgspec.json.decode(request.last_event_id, type=dict[int, int])
        except msgspec.DecodeError as error:
            raise BadRequestError(f"Last-Event-ID is not one of this server: {error}") from error
        if not positions:
            return Reply(stream=_only(_message("end", {})))
        start = await cut_of(request, positions)
    else:
        start = await start_of(request, request.query.get("at", "latest"))
    return Reply(stream=_followed(request.client, start, wanted_events, wanted))


async def _only(message: bytes) -> AsyncGenerator[bytes, None]:
    yield message


async def _followed(
    client: aio.Client, start: StreamCut, wanted_events: EventFilter, wanted: int
) -> AsyncGenerator[bytes, None]:
    gaps: list[dict[str, object]] = []
    is_gap = asyncio.Event()

    def note_gap(segment: str, begin: int, end: int) -> None:
        gaps.append({"segment": segment, "from": begin, "to": end})
        is_gap.set()

    events = StreamEvents(client, start, None, on_truncated=note_gap)
    batches = _with_pauses(events.batches(), is_gap)
    loop = asyncio.get_running_loop()
    until_s = loop.time() + _TAIL_TIME_MAX_S
    try:
        yield f"retry: {_RECONNECT_MS}\n\n".encode()
        async for batch in batches:
            for gap in gaps:
                yield _message("gap", gap)
            gaps.clear()
            message = b":\n\n" if batch is None else _events_of(batch, wanted_events, wanted, events.cut)
            if message:
                yield message
            if loop.time() > until_s:
                return
        yield _message("end", {}, StreamCut(start.scope, start.stream, {}))
    except PenstockError as error:
        yield _message("error", refusal_of(error).body)
    finally:
        await batches.aclose()
        await events.close()


async def _with_pauses(
    batches: AsyncIterator[EventBatch], is_gap: asyncio.Event
) -> AsyncGenerator[EventBatch | None, None]:
    """Yield the batches, and None after `is_gap` was set and whenever there was none for `_KEEP_ALIVE_S`."""

    async def following() -> EventBatch | None:
        return await anext(batches, None)

    coming = asyncio.ensure_future(following())
    gap = asyncio.ensure_future(is_gap.wait())
    try:
        while True:
            await asyncio.wait({coming, gap}, timeout=_KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED)
            if gap.done():
                is_gap.clear()
                gap = asyncio.ensure_future(is_gap.wait())
            if not coming.done():
                yield None
                continue
            batch = coming.result()
            if batch is None:
                return
            yield batch
            coming = asyncio.ensure_future(following())
    finally:
        coming.cancel()
        gap.cancel()
        await asyncio.wait({coming, gap})


def _events_of(batch: EventBatch, wanted_events: EventFilter, wanted: int, cut: StreamCut | None) -> bytes:
    """Return a message for each wanted event of a batch, the last one with the position after the batch."""
    found = [
        shown_event(batch.segment_id, offset, data)
        for data, offset in zip(batch.events, batch.offsets, strict=False)
        if wanted in (-1, batch.segment_id) and wanted_events.matches(data)
    ]
    if not found:
        return b"" if cut is None else b"id: " + _id(cut) + b"\n\n"
    messages = [_message(None, event) for event in found[:-1]]
    return b"".join([*messages, _message(None, found[-1], cut)])


def _message(name: str | None, content: object, cut: StreamCut | None = None) -> bytes:
    parts = [] if name is None else [b"event: " + name.encode()]
    if cut is not None:
        parts.append(b"id: " + _id(cut))
    return b"\n".join([*parts, b"data: " + msgspec.json.encode(content), b"\n"])


def _id(cut: StreamCut) -> bytes:
    return msgspec.json.encode({str(segment): offset for segment, offset in cut.positions.items()})


ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "/v1/scopes/{scope}/streams/{stream}/tail",
        "Follow a stream: its new events as server-sent events.",
        tail_events,
        queries=(
            Query("at", 'earliest, latest (the default), a time in ISO 8601, or a cut as {"segment": offset}.'),
            Query("segment", "Only events of this segment.", is_number=True),
            *FILTERS,
        ),
        needs="READ on the stream",
        is_stream=True,
    ),
)
