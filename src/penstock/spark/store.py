"""The store for the Spark source and sink: the only module here that uses `penstock.client`.

Spark runs this code in many short-lived or reused Python processes, forked from a daemon. So a client is created after
the fork, on first use, and kept for the life of the process: one per process and `StoreSettings`.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.client.low_level import chunk_layouts_of, direct_reader, direct_reads, parts_of, run, segments_of
from penstock.model.errors import (
    InvalidArgumentError,
    NoSuchScopeError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    PenstockError,
    SegmentTruncatedError,
    StreamSealedError,
    UnsupportedOperationError,
)
from penstock.model.events import EVENT_HEADER_LENGTH, framed_length_at
from penstock.model.names import segment_name
from penstock.model.segments import READ_LENGTH_MAX, Buffer
from penstock.spark.boundaries import boundaries_at, boundary_behind
from penstock.spark.options import SinkOptions, StoreSettings
from penstock.spark.planner import TRUNCATED, ByteRange, Extent

if TYPE_CHECKING:
    from penstock import Client, ClientSettings, EventWriter, SegmentInfo, SegmentRange, aio
    from penstock.client.reading.direct_reads import DirectReads
    from penstock.client.transport.chunk_layouts import SegmentLayout
    from penstock.runtime.portal import Portal
    from penstock.spark.direct import DirectPart

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: The longest walk for an event boundary, in bytes: segment stores index a border about every MiB.
WALK_BYTES_MAX = 4 * 1024 * 1024

#: Distance before a target at which a border is searched for first: a little more than the usual distance of borders.
BORDER_BYTES_FIRST = 3 * 512 * 1024

#: Maximum number of open clients in one process. More than one only when a session uses several stores.
CLIENT_COUNT_MAX = 8


def outage_settings(outage_s: float) -> ClientSettings:
    """Return the settings of a client whose calls, reads and writes outlast outages of `outage_s` seconds."""
    # Not at the top: Spark imports this package in processes that never use a store.
    from penstock import ClientSettings

    usual = ClientSettings()
    return ClientSettings(
        retry_time_max_s=outage_s,
        # The outage may begin before the first call of a new task or of a restarted query.
        first_contact_timeout_s=outage_s,
        # A connection attempt that hangs is given up early enough to try another.
        connect_timeout_s=min(usual.connect_timeout_s, outage_s),
        request_timeout_s=min(usual.request_timeout_s, outage_s),
        controller_request_timeout_s=min(usual.controller_request_timeout_s, outage_s),
        # The time decides, not the number of attempts: pauses between them are at least half of the longest one.
        controller_attempt_count_max=usual.controller_attempt_count_max
        + math.ceil(2 * outage_s / usual.retry_delay_max_s),
        keepalive_interval_s=min(usual.keepalive_interval_s, outage_s / 4),
        # Leaves time to read from the store instead of from long-term storage.
        layout_timeout_s=min(usual.layout_timeout_s, outage_s / 4),
        direct_read_timeout_s=min(usual.direct_read_timeout_s, outage_s / 4),
        # Ranges are long and read whole: request the maximum that a server returns at once.
        read_bytes=READ_LENGTH_MAX,
    )


def open_client(settings: StoreSettings) -> Client:
    """Return a new client of a store, with limits derived from the options of a query."""
    from penstock import connect

    return connect(settings.uri, outage_settings(settings.outage_s_max))


# The key contains the process id: a forked child must never use its parent's sockets.
_clients: OrderedDict[tuple[int, StoreSettings], Client] = OrderedDict()


def client_of(settings: StoreSettings) -> Client:
    """Return this process's client for `settings`, created at the first call. Do not close it."""
    key = (os.getpid(), settings)
    client = _clients.get(key)
    if client is None:
        client = _clients[key] = open_client(settings)
        while len(_clients) > CLIENT_COUNT_MAX:
            (pid, _), oldest = _clients.popitem(last=False)
            if pid == os.getpid():
                oldest.close()
    _clients.move_to_end(key)
    return client


def run_in_client(settings: StoreSettings, step: Callable[[aio.Client], Coroutine[object, object, T]]) -> T:
    """Run `step` with the async client of this process's client, in its loop; return its result."""
    client = client_of(settings)
    return run(client, step)


def extents_of(settings: StoreSettings, segments: Sequence[str]) -> Sequence[Extent | NoSuchSegmentError]:
    """Return the extent of each of many segments, given by full names, or that it does not exist."""

    async def extents(client: aio.Client) -> Sequence[Extent | NoSuchSegmentError]:
        found: list[Extent | NoSuchSegmentError] = []
        for name, answer in zip(segments, await segments_of(client).segment_infos(segments), strict=True):
            if isinstance(answer, NoSuchSegmentError):
                found.append(answer)
                continue
            if isinstance(answer, PenstockError):
                # Bulk requests are not retried.
                try:
                    answer = await client.segment_info(name)
                except NoSuchSegmentError as error:
                    found.append(error)
                    continue
            found.append(Extent(answer.start_offset, answer.length, answer.is_sealed))
        return found

    return run_in_client(settings, extents) if segments else []


async def _locate(segment: str, offset: int, client: aio.Client) -> int:
    return await segments_of(client).locate_offset(segment, offset)


def kept_segments(client: Client, stream: str) -> Iterator[tuple[SegmentRange, SegmentInfo]]:
    """Yield the segments of a stream that hold data or may do so, each once.

    From the latest epoch backwards, until one page of epochs has no kept data. Raises `NoSuchStreamError`.
    """
    seen: set[int] = set()
    before: int | None = None
    while True:
        history = client.history(stream, before=before)
        kept_count = 0
        for life in history.lives():
            segment = life.segment
            if segment.segment_id in seen:
                kept_count += 1
                continue
            try:
                info = client.segment_info(segment.name)
            except NoSuchSegmentError:
                continue  # Deleted by truncation.
            seen.add(segment.segment_id)
            kept_count += 1
            yield segment, info
        before = history.epochs[0].number
        if not before or not kept_count:
            return


def chunks_of(settings: StoreSettings, segment: str, start: int, end: int) -> Iterator[tuple[str, int, int, str]]:
    """Yield the chunks of a range of a segment, as far as long-term storage has it.

    Name, offset of the first byte in the segment, length, place.

    Data truncated since are left out. Raises what `ChunkLayouts.ask` raises.
    """
    at, last = start, ""
    while at < end:
        try:
            layout = run_in_client(settings, partial(_ask_chunks, segment, at, end))
        except SegmentTruncatedError as error:
            if error.start_offset <= at:
                raise
            at = error.start_offset
            continue
        except NoSuchSegmentError:
            return
        if layout.end == at:
            return
        for chunk in layout.chunks:
            if chunk.name != last:
                yield chunk.name, chunk.start_offset, chunk.length, layout.storage.place
            last = chunk.name
        at = layout.end


async def _ask_chunks(segment: str, start: int, end: int, client: aio.Client) -> SegmentLayout:
    return await chunk_layouts_of(client).ask(segment, start, end)


async def _ask_layouts(
    ranges: Sequence[tuple[str, int, int]], lease_s: float, holder: str, client: aio.Client
) -> Sequence[SegmentLayout | PenstockError]:
    return await chunk_layouts_of(client).ask_all(ranges, lease_s=lease_s, holder=holder)


def layouts_of(
    settings: StoreSettings, ranges: Sequence[tuple[str, int, int]], lease_s: float, streams: str
) -> Sequence[SegmentLayout | PenstockError]:
    """Return the leased layout of each range of a segment in long-term storage, or why it is unknown."""
    return run_in_client(settings, partial(_ask_layouts, ranges, lease_s, f"a Spark query of {streams}"))


def give_back(settings: StoreSettings, layout: SegmentLayout) -> None:
    """End the lease of a layout; if that fails, the lease expires."""
    try:
        run_in_client(settings, lambda client: chunk_layouts_of(client).give_back(layout))
    except PenstockError as error:
        _log.info("the lease of chunks of %s was not released and will expire: %s", layout.segment, error)


class _BlockReader(Protocol):
    """The used part of a segment reader's interface."""

    def read(self, timeout_s: float | None = None) -> bytes:
        """See `SegmentReader.read`."""


class _InPortal:
    """An async reader, for blocking callers."""

    def __init__(self, portal: Portal, reader: aio.SegmentReader) -> None:
        self._portal = portal
        self._reader = reader

    def read(self, timeout_s: float | None = None) -> bytes:
        """See `SegmentReader.read`."""
        return self._portal.call(self._reader.read(timeout_s))


def prepare_target(options: SinkOptions) -> None:
    """Check in the driver, before any task, that the target exists; create its ledger if it needs one.

    Raises `NoSuchStreamError`, `StreamSealedError`, `NoSuchScopeError`.
    """
    from penstock.spark.ledger import create_ledger

    client = client_of(options.store)
    if options.stream is None:
        if options.scope not in client.scopes():
            raise NoSuchScopeError(f"scope {options.scope} does not exist: create it and its streams first")
    elif not client.segments_of(options.target):
        raise StreamSealedError(f"stream {options.target} is sealed and takes no more events")
    if options.is_exactly_once:
        run_in_client(options.store, lambda aio_client: create_ledger(aio_client, options.target))


def close_clients() -> None:
    """Close the clients of this process; the next use connects again."""
    while _clients:
        (pid, _), client = _clients.popitem()
        if pid == os.getpid():
            client.close()


atexit.register(close_clients)


class StoredStream:
    """One stream of the store: its cuts, its segments' bytes. Implements `planner.StreamView`."""

    def __init__(self, settings: StoreSettings, scope: str, stream: str) -> None:
        self.settings = settings
        self.scope = scope
        self.stream = stream

    @property
    def name(self) -> str:
        """The stream, as ``scope/stream``."""
        return f"{self.scope}/{self.stream}"

    def segment_name(self, segment: int) -> str:
        """Return the full name of a segment of this stream."""
        return segment_name(self.scope, self.stream, segment)

    def head(self) -> dict[int, int]:
        """Return the cut before the first event that is still kept."""
        return dict(sorted(client_of(self.settings).head(self.name).positions.items()))

    def tail(self) -> dict[int, int]:
        """Return a cut after the last acknowledged event; not inside a transaction, if the controller supports that."""
        client = client_of(self.settings)
        try:
            cut = client.tail(self.name, whole_transactions=True)
        except UnsupportedOperationError:
            cut = client.tail(self.name)
        return dict(sorted(cut.positions.items()))

    def at_time(self, time: str, *, is_end: bool) -> dict[int, int]:
        """Return the cut at a time, slightly early, or with `is_end` slightly late; see `Client.cut_at_time`."""
        cut = client_of(self.settings).cut_at_time(self.name, time, is_end=is_end)
        return dict(sorted(cut.positions.items()))

    def extent(self, segment: int) -> Extent:
        """See `StreamView.extent`."""
        info = client_of(self.settings).segment_info(self.segment_name(segment))
        return Extent(info.start_offset, info.length, info.is_sealed)

    def extents(self, segments: Sequence[int]) -> Sequence[Extent | NoSuchSegmentError]:
        """See `StreamView.extents`."""
        return extents_of(self.settings, [self.segment_name(segment) for segment in segments])

    def successors(self, segment: int) -> Mapping[int, Sequence[int]]:
        """See `StreamView.successors`."""
        return client_of(self.settings).successors(self.name, segment)

    def boundaries(self, segment: int, start: int, targets: Sequence[int]) -> Sequence[int]:
        """See `StreamView.boundaries`. Data between distant targets are not read."""
        name, found, at = self.segment_name(segment), list[int](), start
        while len(found) < len(targets):
            at = self._border(name, at, targets[len(found)])
            near = targets[len(found) : max(bisect_right(targets, at + WALK_BYTES_MAX), len(found) + 1)]
            found += boundaries_at(self.read(segment, at, near[-1]), source=name, start=at, targets=near)
            at = found[-1]
        return found

    def boundary_behind(self, segment: int, start: int, end: int, event_count: int) -> tuple[int, int]:
        """See `StreamView.boundary_behind`."""
        blocks = self.read(segment, start, end)
        name = self.segment_name(segment)
        return boundary_behind(blocks, source=name, start=start, end=end, event_count=event_count)

    def event_end(self, segment: int, start: int) -> int:
        """See `StreamView.event_end`."""
        header = b"".join(self.read(segment, start, start + EVENT_HEADER_LENGTH))
        length = framed_length_at(header, source=self.segment_name(segment), base_offset=start)
        if length is None:
            raise InvalidArgumentError(
                f"{self.segment_name(segment)}: no event starts at byte {start}, only {len(header)} bytes follow: "
                "the stream cut does not lie on an event boundary"
            )
        return start + length

    def _border(self, name: str, known: int, target: int) -> int:
        """Return a border between appends, or the boundary `known`: the one closest before `target`, if possible."""
        distance = min(BORDER_BYTES_FIRST, WALK_BYTES_MAX)
        while (at := target - distance) > known:
            border = run_in_client(self.settings, partial(_locate, name, at))
            if border <= target:
                return border
            # There is no border in between: a long append, or a store without an index.
            distance *= 2
        return known

    def layouts(self, ranges: Sequence[ByteRange], lease_s: float) -> Sequence[SegmentLayout | PenstockError]:
        """Return where the bytes of each range are in long-term storage, leased, or why that is not known."""
        wanted = [(self.segment_name(each.segment), each.start, each.end) for each in ranges]
        return layouts_of(self.settings, wanted, lease_s, self.name)

    def give_back(self, layout: SegmentLayout) -> None:
        """See `give_back`."""
        give_back(self.settings, layout)

    @contextmanager
    def _reader(self, name: str, at: int, end: int, direct: DirectPart | None) -> Iterator[_BlockReader]:
        """Read a segment through the store, or by the rest of the layout of `direct`, which is updated."""
        client = client_of(self.settings)
        if direct is None or (layout := direct.layout) is None or not layout.start <= at < layout.end:
            with client.segment_reader(name, at, end) as reader:
                yield reader
            return
        part, portal = parts_of(client)

        async def opening() -> tuple[DirectReads, aio.SegmentReader]:
            reads = direct_reads(part, layout, place=direct.place, is_required=direct.is_required)
            return reads, await direct_reader(part, reads, layout, at, end)

        reads, opened = portal.call(opening())
        try:
            yield _InPortal(portal, opened)
        finally:
            portal.call(opened.close())
            direct.note(reads)

    def read(self, segment: int, start: int, end: int, direct: DirectPart | None = None) -> Iterator[Buffer]:
        """Yield the bytes ``[start, end)`` of a segment in order, in blocks of the client's size.

        First by the layout of `direct`, if it has one, and then through the store; `direct` counts the bytes of each.

        A read is resumed at its position after a transient error, for `StoreSettings.outage_s_max` without progress
        and `retry_count_max` times in a row.

        Raises:
            SegmentTruncatedError, NoSuchSegmentError: the bytes were removed by retention; the note says what to do.
            OutcomeUnknownError: no progress for `outage_s_max`.
        """
        name, settings = self.segment_name(segment), self.settings
        at, failure_count = start, 0
        progress_s = time.monotonic()
        while at < end:
            try:
                with self._reader(name, at, end, direct) as reader:
                    while block := reader.read(max(progress_s + settings.outage_s_max - time.monotonic(), 0.0)):
                        at += len(block)
                        if direct is not None:
                            direct.read_bytes += len(block)
                        failure_count = 0
                        yield block
                        # The consumer's time between blocks does not count as the store's.
                        progress_s = time.monotonic()
                if at < end:
                    raise InvalidArgumentError(
                        f"{name}: requested bytes [{start}, {end}), but the segment ends at {at}: the stream cut is "
                        "after the stream's end, or the stream was deleted and created again"
                    )
            except TimeoutError as error:
                raise OutcomeUnknownError(
                    f"{name}: no data after byte {at} for {settings.outage_s_max:g} s (readTimeout), after "
                    f"{failure_count} failures; raise readTimeout to outlast longer outages"
                ) from error
            except (SegmentTruncatedError, NoSuchSegmentError) as error:
                error.add_note(f"bytes [{at}, {end}) of {name} are lost: {TRUNCATED}")
                raise
            except PenstockError as error:
                # A read changes nothing, so a lost reply is as harmless here as a refused request.
                if not (error.is_retriable or isinstance(error, OutcomeUnknownError)):
                    raise
                failure_count += 1
                left_s = progress_s + settings.outage_s_max - time.monotonic()
                is_last = settings.retry_count_max is not None and failure_count > settings.retry_count_max
                if is_last or left_s <= 0:
                    limit = "numRetries" if is_last else "readTimeout"
                    error.add_note(f"gave up reading {name} at byte {at} after {failure_count} failures ({limit})")
                    raise
                time.sleep(min(settings.retry_interval_s, left_s))

    def writer(self) -> EventWriter:
        """Return a new writer of the stream; its user closes it."""
        return client_of(self.settings).event_writer(self.name)
