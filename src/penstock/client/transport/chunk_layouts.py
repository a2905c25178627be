"""`ChunkLayouts`: requests the chunks of segments from segment stores, for clients that read chunks directly.

A failure here only loses the optimization: the store has the same bytes. So retries are short. See
docs/direct-reads.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from penstock.client.common.deadline import within
from penstock.client.common.retry import Backoff
from penstock.client.settings import ClientSettings
from penstock.client.transport.connection_pool import ConnectionPool, Purpose
from penstock.client.transport.exchanges import in_time
from penstock.client.transport.replies import error_of, expect, unexpected
from penstock.model.errors import ConnectionLostError, OutcomeUnknownError, PenstockError, ProtocolError
from penstock.runtime.bulk import for_each
from penstock.wire.chunk_layouts import (
    HOLDER_LENGTH_MAX,
    PAGE_CHUNKS_MAX,
    ChunkRow,
    LayoutLease,
    LayoutPage,
    LayoutQuery,
    StorageTold,
    decode_layout_page,
    encode_layout,
)
from penstock.wire.commands import (
    ChunkLayoutTold,
    ChunkLeaseReturned,
    GetChunkLayout,
    Request,
    ReturnChunkLease,
    WireCommand,
    WrongHost,
)

#: Segments requested at the same time.
_ASKED_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """The place of the bytes ``[start, end)`` of a segment in long-term storage. A value: it may be pickled.

    Attributes:
        segment: full name.
        start: first byte, as requested.
        end: after the last one: the requested end, or the end of the data in storage, or of the rows that fit.
        storage: where the chunks are.
        chunks: in order and without a gap. They may begin before `start` and end after `end`.
        lease: protects all of them from deletion; None: no lease was requested, or there are no chunks.
    """

    segment: str
    start: int
    end: int
    storage: StorageTold
    chunks: Sequence[ChunkRow]
    lease: LayoutLease | None = None

    def clipped(self, start: int, end: int) -> SegmentLayout:
        """Return the part of it for ``[start, end)``; empty if they do not overlap."""
        start = min(max(start, self.start), self.end)
        end = min(max(end, start), self.end)
        chunks = [_clipped(chunk, start, end) for chunk in self.chunks]
        return replace(self, start=start, end=end, chunks=tuple(chunk for chunk in chunks if chunk is not None))


def _clipped(chunk: ChunkRow, start: int, end: int) -> ChunkRow | None:
    """Return the part of the row for blocks that overlap [`start`, `end`); None: there are none."""
    block_length, count = chunk.block_length, len(chunk.checksums) // 4
    first = max((start - chunk.start_offset) // block_length, chunk.first_block)
    behind = min(-(-(end - chunk.start_offset) // block_length), chunk.first_block + count)
    if first >= behind or start >= min(end, chunk.start_offset + chunk.length):
        return None
    checksums = chunk.checksums[4 * (first - chunk.first_block) : 4 * (behind - chunk.first_block)]
    return ChunkRow(chunk.name, chunk.start_offset, chunk.length, block_length, first, checksums)


class ChunkLayouts:
    """Requests of one client, over separate connections. `token`: that of all requests; empty: from the pool."""

    def __init__(self, pool: ConnectionPool, settings: ClientSettings, rng: Random, *, token: str = "") -> None:
        self._pool = pool
        self._settings = settings
        self._rng = rng
        self._fixed_token = token

    async def ask(self, segment: str, start: int, end: int, *, lease_s: float = 0.0, holder: str = "") -> SegmentLayout:
        """Return the chunks of ``[start, end)``, leased for up to `lease_s` (0: not leased) on behalf of `holder`.

        Return the lease with `give_back`; otherwise it expires. While it lasts, data that is truncated, merged or
        deleted later still exists.

        Raises:
            NoSuchSegmentError, SegmentTruncatedError: about the segment.
            TooManyLeasesError, ContainerNotFoundError: not possible at present.
            ConnectionLostError: the store cannot be reached, or does not support the request, as earlier releases and
                Pravega's, which close the connection.
            UnsupportedOperationError, InvalidArgumentError: the request is rejected.
            OutcomeUnknownError: no reply in `layout_timeout_s`; there may be a lease, which expires.
            ProtocolError: the reply is invalid.
        """
        chunks: list[ChunkRow] = []
        lease: LayoutLease | None = None
        at, count_max = start, self._settings.layout_chunk_count_max
        with within(f"find the chunks of {segment}", self._settings.layout_timeout_s, "layout_timeout_s"):
            while True:
                query = LayoutQuery(
                    at,
                    end,
                    lease_s=lease_s if lease is None else 0.0,
                    holder=holder,
                    chunk_count_max=min(PAGE_CHUNKS_MAX, count_max - len(chunks)),
                )
                page = await self._page(segment, query)
                lease = lease or page.lease
                chunks += page.chunks
                if page.next_offset >= page.stored_end or len(chunks) >= count_max:
                    return SegmentLayout(segment, start, page.next_offset, page.storage, tuple(chunks), lease)
                at = page.next_offset

    async def ask_all(
        self, ranges: Sequence[tuple[str, int, int]], *, lease_s: float = 0.0, holder: str = ""
    ) -> Sequence[SegmentLayout | PenstockError]:
        """Return for each segment, start and end the result or error of `ask`, in the time of one."""

        async def ask(wanted: tuple[str, int, int]) -> SegmentLayout:
            return await self.ask(*wanted, lease_s=lease_s, holder=holder[:HOLDER_LENGTH_MAX])

        with within("find the chunks of segments", self._settings.layout_timeout_s, "layout_timeout_s"):
            return await for_each(ranges, ask, _ASKED_AT_ONCE)

    async def give_back(self, layout: SegmentLayout) -> None:
        """End the lease of a layout, if it has one. Raises as `ask` does; then the lease expires."""
        lease, segment = layout.lease, layout.segment
        if lease is None:
            return
        with within(f"release the chunks of {segment}", self._settings.layout_timeout_s, "layout_timeout_s"):
            reply = await self._exchange(segment, ReturnChunkLease(0, segment, "", lease.epoch, lease.number))
        expect(reply, ChunkLeaseReturned, segment)

    async def _page(self, segment: str, query: LayoutQuery) -> LayoutPage:
        reply = await self._exchange(segment, GetChunkLayout(0, segment, "", encode_layout(query)))
        page = decode_layout_page(expect(reply, ChunkLayoutTold, segment).page)
        _check(segment, query, page)
        return page

    async def _exchange(self, segment: str, request: GetChunkLayout | ReturnChunkLease) -> WireCommand:
        """Send a request to the right store; retry once if the connection turns out to be dead."""
        backoff = Backoff(self._settings, self._rng)
        is_again = False
        while True:
            try:
                connection = await self._pool.connection(segment, Purpose.LAYOUTS)
                token = self._fixed_token or self._pool.tokens.of(segment)
                numbered = _numbered(request, connection.next_request_id(), token)
                reply = await in_time(segment, connection.request(numbered.request_id, numbered))
            except (ConnectionLostError, OutcomeUnknownError) as error:
                # The connection was idle since the last request, so its loss is detected only now.
                self._pool.forget(segment)
                if is_again:
                    error.add_note("segment stores without support for chunk layouts close the connection like this")
                    raise
                is_again = True
                continue
            if not isinstance(reply, WrongHost):
                return reply
            self._pool.forget(segment)
            await backoff.pause(error_of(reply, segment) or unexpected(reply, segment))


def _numbered(request: GetChunkLayout | ReturnChunkLease, request_id: int, token: str) -> Request:
    if isinstance(request, GetChunkLayout):
        return GetChunkLayout(request_id, request.segment, token, request.query)
    return ReturnChunkLease(request_id, request.segment, token, request.epoch, request.number)


def _check(segment: str, query: LayoutQuery, page: LayoutPage) -> None:
    """Raise `ProtocolError` unless a page covers the bytes from `query.start` to its `next_offset`."""
    at = query.start
    for chunk in page.chunks:
        first, count = chunk.first_block, len(chunk.checksums) // 4
        begin = chunk.start_offset + first * chunk.block_length
        end = chunk.start_offset + min((first + count) * chunk.block_length, chunk.length)
        if chunk.block_length < 1 or chunk.first_block < 0 or not begin <= at < end:
            raise ProtocolError(f"{segment}: chunk {chunk.name} at {chunk.start_offset} does not hold byte {at}")
        at = end
    if not query.start <= page.next_offset <= min(at, page.stored_end) or not page.stored_end <= query.end:
        raise ProtocolError(f"{segment}: the reported chunks end at {at}, not at {page.next_offset}")
    if page.next_offset == query.start < page.stored_end:
        raise ProtocolError(f"{segment}: no chunk was reported for byte {at}")
