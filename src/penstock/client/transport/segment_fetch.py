"""`SegmentFetch`: reads one segment ahead of a consumer that takes the blocks without waiting.

Block boundaries are those of the segment store's replies; see `EventAssembler` for events.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from penstock.client.common.deadline import current_deadline
from penstock.client.common.tasks import start_watched
from penstock.client.settings import ClientSettings
from penstock.client.transport.read_ahead import ReadAhead
from penstock.model.errors import InvalidArgumentError, OutcomeUnknownError, PenstockError
from penstock.model.segments import SegmentData


class Reads(Protocol):
    """The part of the `Segments` seam that a reader needs."""

    async def read(self, segment: str, offset: int, length: int, *, wait: bool = False) -> SegmentData:
        """See `Segments.read`."""


class SegmentFetch:
    """Reads `[start_offset, end_offset)` of a segment within a budget, from when it is made until `stop`.

    Without `end_offset` it waits at the tail for new data and ends when the segment is sealed.

    Attributes:
        segment: full name.
        fetched_to: the end of the data fetched so far: once `is_at_end`, the segment's end or `end_offset`.
        is_fetched: nothing more is fetched: the end is reached, or reading has failed.
        is_stopped: `stop` was called.
        is_taken_to_tail: the block taken last reached the end of the open segment: appends are whole events, so it
            ends one.
    """

    def __init__(
        self,
        segments: Reads,
        segment: str,
        start_offset: int,
        end_offset: int | None,
        settings: ClientSettings,
        *,
        on_ready: Callable[[], None] | None = None,
        read_ahead: ReadAhead | None = None,
        missing_bytes: Callable[[], int] | None = None,
    ) -> None:
        """Begin to read ahead.

        Args:
            on_ready: called whenever a block, the end or an error has become available to `take`.
            read_ahead: the budget it shares with other readers; by default its own.
            missing_bytes: given by a consumer that keeps the blocks it takes until an event is complete: how many bytes
                are missing. The consumer calls `hand_out` when it drops bytes; otherwise they count as dropped once
                taken.
        """
        if start_offset < 0 or (end_offset is not None and end_offset < start_offset):
            raise InvalidArgumentError(f"{segment}: cannot read [{start_offset}, {end_offset})")
        self.segment: str = segment
        self._segments = segments
        self._settings = settings
        self.fetched_to: int = start_offset
        self._end_offset = end_offset
        self._blocks: deque[bytes] = deque()
        # For each block, whether it reached the end of the open segment when it was read.
        self._reached_tail: deque[bool] = deque()
        self.is_taken_to_tail: bool = False
        self._error: PenstockError | None = None
        self.is_fetched: bool = False
        self.is_stopped: bool = False
        self._on_ready = on_ready
        self._ready = asyncio.Event()
        self._missing_bytes = missing_bytes
        self._read_ahead = read_ahead or ReadAhead(settings.read_bytes * settings.read_ahead_block_count)
        self._read_ahead.open(self)
        self._task = start_watched(self._fetch(), f"read {segment}", self._stop_with)

    @property
    def is_at_end(self) -> bool:
        """True when everything was taken: the segment is sealed and read, or `end_offset` is reached."""
        return self.is_fetched and not self._blocks and self._error is None

    @property
    def has_failed(self) -> bool:
        """Whether reading has ended with an error, which `take` raises after the last block."""
        return self._error is not None

    @property
    def is_ended(self) -> bool:
        """Whether the fetching task has ended, after `stop` or on its own."""
        return self._task.done()

    def is_working_at(self, length: int) -> bool:
        """Whether reads work: none has failed, and bytes were read, or there are none to read up to `length`."""
        return self._error is None and (bool(self._blocks) or self.is_fetched or self.fetched_to >= length)

    def take(self) -> bytes | None:
        """Return the next block, or None if there is none now. Raises the reading's error after the last block."""
        if self._blocks:
            block = self._blocks.popleft()
            self.is_taken_to_tail = self._reached_tail.popleft()
            if self._missing_bytes is None:
                self._read_ahead.give_back(self, len(block))
            return block
        if self._error is not None:
            raise self._error
        if not self.is_fetched:
            self._ready.clear()
        return None

    async def wait_ready(self) -> None:
        """Wait for a block, the end, an error or `stop`.

        Raises `OutcomeUnknownError` at the deadline of the enclosing call: the fetching task has none.
        """
        deadline = current_deadline()
        if deadline is None:
            await self._ready.wait()
            return
        try:
            async with asyncio.timeout_at(deadline.at_s):
                await self._ready.wait()
        except TimeoutError as error:
            raise OutcomeUnknownError(
                f"{self.segment}: no data from byte {self.fetched_to} within the {deadline.limit_s:g} s for "
                f"{deadline.what} ({deadline.limit_name})"
            ) from error

    def hand_out(self, length: int) -> None:
        """Note that `length` bytes of those taken no longer count as read ahead."""
        self._read_ahead.give_back(self, length)
        self._read_ahead.poke(self)

    def stop(self) -> None:
        """Stop reading ahead, at once; a waiting `wait_ready` returns."""
        self.is_stopped = True
        self._ready.set()
        self._task.cancel()
        self._blocks.clear()
        self._reached_tail.clear()
        self._read_ahead.close(self)

    async def wait_ended(self, timeout_s: float | None = None) -> None:
        """Wait until the fetching task has ended, up to `timeout_s` (None: without limit)."""
        await asyncio.wait([self._task], timeout=timeout_s)

    async def _fetch(self) -> None:
        try:
            while self._end_offset is None or self.fetched_to < self._end_offset:
                length = min(self._settings.read_bytes, await self._has_room())
                if self._end_offset is not None:
                    length = min(length, self._end_offset - self.fetched_to)
                data = await self._segments.read(self.segment, self.fetched_to, length, wait=True)
                block = data.joined()
                if not self._accept(block, length, reaches_tail=data.is_at_tail) and data.is_end_of_segment:
                    break
                self._notify()
        except PenstockError as error:
            self._stop_with(error)
            return
        self.is_fetched = True
        self._notify()

    def _accept(self, block: bytes, length: int, *, reaches_tail: bool) -> bool:
        """Keep as much as fits into the budget now; True: some is left."""
        # A server returns at least 8 bytes at a time, even if fewer were requested. The budget may have shrunk, too.
        kept = block[: min(length, self._room())] if block else block
        if kept:
            self.fetched_to += len(kept)
            self._blocks.append(kept)
            self._reached_tail.append(reaches_tail and len(kept) == len(block))
            self._read_ahead.take(self, len(kept))
        return len(kept) < len(block)

    def _room(self) -> int:
        missing_bytes = 0 if self._missing_bytes is None or self._blocks else self._missing_bytes()
        return self._read_ahead.room(self, missing_bytes)

    async def _has_room(self) -> int:
        # While the consumer has blocks to take, avoid small requests.
        while (room := self._room()) < (max(1, self._read_ahead.share_bytes // 2) if self._blocks else 1):
            await self._read_ahead.waiter(self).wait()
        return room

    def _stop_with(self, error: PenstockError) -> None:
        self._error = error
        self.is_fetched = True
        self._notify()

    def _notify(self) -> None:
        self._ready.set()
        if self._on_ready is not None:
            self._on_ready()
