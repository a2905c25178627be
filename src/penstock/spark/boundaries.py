"""Event boundaries: walks the event headers in a segment's bytes without reading the payloads.

Event boundaries form a chain, so the one nearest to an offset is found only by walking from a known one. The
walk is bounded by the caller (a micro-batch, or the range of one read) and costs one pass over the bytes: 5 to 10
million headers a second on one core.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from penstock.model.events import EVENT_HEADER_LENGTH, HEADER_LENGTH_VALUE_MAX, bad_header
from penstock.model.segments import Buffer

_HEADER = struct.Struct(">Q")


class BoundaryScan:
    """Walks the headers of consecutive blocks of one segment and finds the last boundary at or before each target.

    `targets` are offsets in ascending order. After the last block `found` holds one boundary per target that was
    reached; a target past the end of the data gets the last boundary seen (see `finish`).
    """

    __slots__ = ("_carry", "_fed_to", "_targets", "boundary", "found", "source")

    def __init__(self, source: str, start: int, targets: Sequence[int]) -> None:
        self.source: str = source
        #: The last known boundary: all events before it have been walked. Never before `start`.
        self.boundary: int = start
        #: For each target reached, in order, the last boundary at or before it.
        self.found: list[int] = []
        self._targets = list(targets)
        self._fed_to = start
        # The start of a header cut by the end of a block.
        self._carry = b""

    @property
    def is_done(self) -> bool:
        """Whether every target has its boundary; further blocks change nothing."""
        return len(self.found) == len(self._targets)

    def feed(self, block: Buffer) -> None:
        """Walk the next block.

        Raises `CorruptionError` at bytes that cannot be an event's header.
        """
        base = self._fed_to - len(self._carry)
        data: Buffer = self._carry + bytes(block) if self._carry else block
        self._fed_to += len(block)
        self._carry = b""
        unpack = _HEADER.unpack_from
        last_header = len(data) - EVENT_HEADER_LENGTH
        found, targets = self.found, self._targets
        at = self.boundary - base
        while len(found) < len(targets):
            target = targets[len(found)] - base
            # The inner loop is the hot one: one header per iteration, up to the next target.
            while at <= last_header:
                length: int = unpack(data, at)[0]
                if length > HEADER_LENGTH_VALUE_MAX:
                    raise bad_header(length, self.source, base + at)
                following = at + EVENT_HEADER_LENGTH + length
                if following > target:
                    break
                at = following
            else:
                # No whole header left. A position after the data is inside a payload, whose rest is in the next blocks.
                if at < len(data):
                    self._carry = bytes(data[at:])
                self.boundary = base + at
                return
            found.append(base + at)
        self.boundary = base + at

    def finish(self) -> list[int]:
        """Return a boundary per target, after the last block."""
        return self.found + [self.boundary] * (len(self._targets) - len(self.found))


def boundary_behind(
    blocks: Iterable[Buffer], *, source: str, start: int, end: int, event_count: int
) -> tuple[int, int]:
    """Return the boundary after `event_count` events, at most `end`, itself a boundary; and the number of events.

    `blocks` are the segment's bytes from the boundary `start` to `end`. Stops reading at the boundary.

    Raises `CorruptionError` at bytes that cannot be an event's header.
    """
    unpack = _HEADER.unpack_from
    at, count, fed_to, carry = start, 0, start, b""
    for block in blocks:
        base = fed_to - len(carry)
        data: Buffer = carry + bytes(block) if carry else block
        fed_to += len(block)
        carry = b""
        last_header = len(data) - EVENT_HEADER_LENGTH
        while count < event_count and at - base <= last_header:
            length: int = unpack(data, at - base)[0]
            if length > HEADER_LENGTH_VALUE_MAX:
                raise bad_header(length, source, at)
            following = at + EVENT_HEADER_LENGTH + length
            if following > end:
                return at, count
            at, count = following, count + 1
        if count == event_count or at == end:
            break
        if at - base < len(data):
            carry = bytes(data[at - base :])
    return at, count


def boundaries_at(blocks: Iterable[Buffer], *, source: str, start: int, targets: Sequence[int]) -> list[int]:
    """Return, for each of the ascending `targets`, the last event boundary at or before it.

    `blocks` are the segment's bytes from `start`, itself a boundary, to at least the last target. Stops reading once
    all boundaries are found. A target before the end of the first event gives `start`.

    Raises `CorruptionError` at bytes that cannot be an event's header.
    """
    scan = BoundaryScan(source, start, targets)
    for block in blocks:
        scan.feed(block)
        if scan.is_done:
            break
    return scan.finish()
