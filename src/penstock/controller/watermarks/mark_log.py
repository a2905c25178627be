"""`MarkLog`: the segment that holds the watermarks of a stream, read and written as Pravega's controllers do.

Watermarks are events of the segment. An attribute, in Java the mark of a revisioned stream, holds the end of the second
to last watermark: the last one is read from there. If the attribute lags, the reader reads more than necessary.

Source: controller-internals 15.2; wire-protocol 4.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

from penstock.controller.segment_requests import SegmentRequests
from penstock.model.errors import BadOffsetError
from penstock.model.events import EVENT_HEADER_LENGTH, EventAssembler, frame_event
from penstock.model.segments import MARK_ATTRIBUTE
from penstock.model.watermarks import Watermark

_logger = logging.getLogger(__name__)

_READ_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class MarkLogEnd:
    """The end of the log, at the time it was read.

    Attributes:
        start_offset: start of the log, in bytes.
        length: end of the log, in bytes.
        mark: value of the attribute; a very low number if it is not set.
        last: the last watermark; None if there is none.
    """

    start_offset: int
    length: int
    mark: int
    last: Watermark | None


class MarkLog:
    """See the module. `segment` is its full name. Every call raises `NoSuchSegmentError` if it does not exist."""

    def __init__(self, requests: SegmentRequests, segment: str) -> None:
        self.segment: str = segment
        self._requests = requests

    async def end(self) -> MarkLogEnd:
        """Read the last watermark. 3 requests. Raises `CorruptionError`."""
        info = await self._requests.info(self.segment)
        mark = await self._requests.get_attribute(self.segment, MARK_ATTRIBUTE)
        last = None
        if info.start_offset <= mark < info.length:
            last = await self._last(mark, info.length)
        if last is None and info.start_offset < info.length:
            last = await self._last(info.start_offset, info.length)
        return MarkLogEnd(info.start_offset, info.length, mark, last)

    async def _last(self, offset: int, end: int) -> Watermark | None:
        last = None
        async for _, watermark in self.entries(offset, end):
            last = watermark
        return last

    async def entries(self, offset: int, end: int) -> AsyncIterator[tuple[int, Watermark]]:
        """Yield the watermarks in `[offset, end)`, each with its start. `offset` is the start of a watermark."""
        events = EventAssembler(self.segment, offset)
        at = offset
        while at < end:
            data = (await self._requests.read(self.segment, at, min(_READ_BYTES, end - at))).joined()
            if not data:
                return
            at += len(data)
            events.feed(data)
            found, begin = events.take()
            for event in found:
                yield begin, Watermark.decode(event, segment=self.segment, offset=begin)
                begin += EVENT_HEADER_LENGTH + len(event)
        events.check()

    async def append(self, read: MarkLogEnd, watermark: Watermark) -> bool:
        """Append a watermark after the end that was read; return False if another append came first.

        That append may be this very watermark, if its first reply was lost: the next cycle reads the actual end.
        """
        try:
            await self._requests.append(self.segment, frame_event(watermark.encode()), expected_offset=read.length)
        except BadOffsetError as error:
            _logger.info("%s: a watermark was not written, another one came first: %s", self.segment, error)
            return False
        if read.last is not None:
            await self._requests.update_attribute(self.segment, MARK_ATTRIBUTE, value=read.length, expected=read.mark)
        return True

    async def truncate(self, offset: int) -> None:
        """Truncate the watermarks before `offset`."""
        await self._requests.truncate(self.segment, offset)
