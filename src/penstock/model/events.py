"""Event framing: the layout of events in a segment.

Each event is an int32 big-endian type code (0), an int32 big-endian payload length in bytes and the payload, with
nothing between events. Clients frame and split; servers never parse events. Loops run in C where possible: `map`, `zip`
and `join`, not one Python statement per event.

Source: wire-protocol 2.1 (Event) and 8.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, chain
from operator import add

from penstock.model.errors import CorruptionError, InvalidArgumentError
from penstock.model.segments import Buffer

#: Bytes before each payload.
EVENT_HEADER_LENGTH = 8
#: Largest payload of an ordinary event; a larger one is written through a transient segment.
EVENT_LENGTH_MAX = 8 * 1024 * 1024
#: Largest payload that a header can describe.
HEADER_LENGTH_VALUE_MAX = 0x7FFFFFFF

_HEADER = struct.Struct(">Q")
_HEADER_CACHE_SIZE_MAX = 16384
#: With fewer bytes or events, checking for equal lengths does not pay.
_EQUAL_BYTES_MIN = 4096
_EQUAL_COUNT_MIN = 16


class _HeaderCache(dict[int, bytes]):
    """Payload length -> header. Bounded: past the limit headers are packed but not kept."""

    def __missing__(self, length: int) -> bytes:
        if length > HEADER_LENGTH_VALUE_MAX:
            raise InvalidArgumentError(f"an event of {length} bytes cannot be framed: the limit is 2 GiB - 1")
        header = _HEADER.pack(length)
        if len(self) < _HEADER_CACHE_SIZE_MAX:
            self[length] = header
        return header


_header_of = _HeaderCache().__getitem__


def frame_event(event: Buffer) -> bytes:
    """Return `event` with its header, ready to append."""
    return _header_of(len(event)) + event


def frame_events(events: Sequence[Buffer]) -> bytes:
    """Return all `events` with their headers, concatenated."""
    return b"".join(chain.from_iterable(zip(map(_header_of, map(len, events)), events, strict=True)))


def framed_length(events: Sequence[Buffer]) -> int:
    """Return the length of the result of `frame_events` in bytes."""
    return sum(map(len, events)) + EVENT_HEADER_LENGTH * len(events)


def split_events(data: Buffer, *, source: str = "buffer", base_offset: int = 0) -> tuple[list[bytes], int]:
    """Return the payloads of the whole events in `data`, which starts at an event, and how many bytes they take.

    A partial event at the end is not consumed: pass it again with the bytes that follow. `source` (a segment's name)
    and `base_offset` (the offset of `data` in it) appear in the error.

    Raises `CorruptionError` if `data` starts with a header that is not an event's: a type code other than 0, or a
    negative length. Such a header after whole events ends the result, so that the events before it are delivered: the
    next call, which starts there, raises.
    """
    if not isinstance(data, bytes):
        data = bytes(data)
    unpack = _HEADER.unpack_from
    events, at = _split_equal(data)
    append = events.append
    end = len(data)
    last_header = end - EVENT_HEADER_LENGTH
    while at <= last_header:
        # Read type code and length as one number: more than 31 bits means a bad type code or a negative length.
        length = unpack(data, at)[0]
        if length > HEADER_LENGTH_VALUE_MAX:
            if at:
                break
            raise bad_header(length, source, base_offset)
        start = at + EVENT_HEADER_LENGTH
        following = start + length
        if following > end:
            break
        append(data[start:following])
        at = following
    return events, at


def _split_equal(data: bytes) -> tuple[list[bytes], int]:
    """Split events that all have the length of the first, in C loops; return none if lengths differ or for few."""
    if len(data) < _EQUAL_BYTES_MIN:
        return [], 0
    header = data[:EVENT_HEADER_LENGTH]
    (length,) = _HEADER.unpack(header)
    stride = EVENT_HEADER_LENGTH + length
    count = len(data) // stride
    if count < _EQUAL_COUNT_MIN:
        return [], 0
    for at in (stride, count // 2 * stride, (count - 1) * stride):
        if data[at : at + EVENT_HEADER_LENGTH] != header:
            return [], 0  # Detects most inputs of unequal lengths.
    whole = count * stride
    for index, value in enumerate(header):
        if data[index:whole:stride].count(value) != count:
            return [], 0
    payloads = struct.iter_unpack(f"{EVENT_HEADER_LENGTH}x{length}s", memoryview(data)[:whole])
    return list(chain.from_iterable(payloads)), whole


def event_starts(data: Buffer, *, at: int = 0, source: str = "buffer", base_offset: int = 0) -> tuple[list[int], int]:
    """Return where each whole event's header starts in `data` from `at` on, and the end of the last whole event.

    Rules and errors as in `split_events`, without copying payloads.
    """
    unpack = _HEADER.unpack_from
    starts: list[int] = []
    append = starts.append
    end = len(data)
    last_header = end - EVENT_HEADER_LENGTH
    while at <= last_header:
        length = unpack(data, at)[0]
        if length > HEADER_LENGTH_VALUE_MAX:
            if at:
                break
            raise bad_header(length, source, base_offset)
        following = at + EVENT_HEADER_LENGTH + length
        if following > end:
            break
        append(at)
        at = following
    return starts, at


def framed_length_at(data: Buffer, at: int = 0, *, source: str = "buffer", base_offset: int = 0) -> int | None:
    """Return the length with header of the event at `at`, or None while its header is not complete."""
    if len(data) - at < EVENT_HEADER_LENGTH:
        return None
    length: int = _HEADER.unpack_from(data, at)[0]
    if length > HEADER_LENGTH_VALUE_MAX:
        raise bad_header(length, source, base_offset + at)
    return EVENT_HEADER_LENGTH + length


def bad_header(header: int, source: str, offset: int) -> CorruptionError:
    """Return the error for an 8-byte `header`, read as one unsigned number, that is not an event's."""
    code, length = struct.unpack(">ii", _HEADER.pack(header))
    if code != 0:
        return CorruptionError(source, offset, f"an event should start here, but the type code is {code}, not 0")
    return CorruptionError(source, offset, f"an event should start here, but its length is {length}")


class EventAssembler:
    """Assembles whole events from the byte blocks of a segment, in order.

    Pure: `feed` blocks as they arrive, `take` the complete events. Events of any length are assembled without copying
    their parts more than once.
    """

    __slots__ = ("_parts", "_pending_bytes", "_wanted_bytes", "offset", "source")

    def __init__(self, source: str, offset: int) -> None:
        self.source: str = source
        #: Where the next event starts in the segment: the position to resume from.
        self.offset: int = offset
        self._parts: list[bytes] = []
        self._pending_bytes = 0
        # No whole event is complete before this many bytes.
        self._wanted_bytes = EVENT_HEADER_LENGTH

    @property
    def pending_bytes(self) -> int:
        """Bytes fed and not yet taken."""
        return self._pending_bytes

    @property
    def missing_bytes(self) -> int:
        """Minimum bytes to feed before another event can be complete, as far as is known; 0 if one may be complete."""
        return max(self._wanted_bytes - self._pending_bytes, 0)

    @property
    def end_offset(self) -> int:
        """Offset in the segment of the next byte to feed."""
        return self.offset + self._pending_bytes

    def check(self) -> None:
        """Raise `CorruptionError` if the pending bytes start with a header that is not an event's. Changes nothing.

        For the bytes that remain after the events before them were taken, when no block follows.
        """
        header = b""
        for part in self._parts:
            header += part[: EVENT_HEADER_LENGTH - len(header)]
            if len(header) == EVENT_HEADER_LENGTH:
                break
        framed_length_at(header, source=self.source, base_offset=self.offset)

    def check_end(self, what: str) -> None:
        """Raise `CorruptionError` if any bytes are pending where `what`, such as "the segment", ends."""
        self.check()
        if self._pending_bytes:
            raise CorruptionError(self.source, self.offset, f"{what} ends {self._pending_bytes} bytes into an event")

    def feed(self, data: bytes) -> None:
        """Add the block that follows the previous one."""
        if data:
            self._parts.append(data)
            self._pending_bytes += len(data)

    def take_raw(self) -> tuple[bytes, int]:
        """Return and drop all pending bytes, whole events or not, with their offset. See `give_back`."""
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        at = self.offset
        self._parts = []
        self._pending_bytes = 0
        self.offset = at + len(data)
        return data, at

    def give_back(self, rest: bytes) -> None:
        """Put bytes from the end of the last `take_raw` back in front."""
        self.offset -= len(rest)
        if rest:
            self._parts.insert(0, rest)
            self._pending_bytes += len(rest)

    def take(self) -> tuple[list[bytes], int]:
        """Return the payloads of all whole events, and the offset of the first one's header.

        Raises `CorruptionError`, each time, when the pending bytes start with a header that is not an event's. The
        events before it were returned by the call before. `offset` stays at the header.
        """
        at = self.offset
        if self._pending_bytes < self._wanted_bytes:
            return [], at
        self.check()
        data, _ = self.take_raw()
        events, consumed = split_events(data, source=self.source, base_offset=at)
        rest = data[consumed:]
        self.give_back(rest)
        # After a bad header no bytes are missing: the next call raises.
        self._wanted_bytes = EVENT_HEADER_LENGTH
        if len(rest) >= EVENT_HEADER_LENGTH:
            length: int = _HEADER.unpack_from(rest)[0]
            if length <= HEADER_LENGTH_VALUE_MAX:
                self._wanted_bytes += length
        return events, at


def offsets_of(events: Sequence[Buffer], start: int) -> list[int]:
    """Return the offset of each event's header and, last, the end: `len(events) + 1` numbers from `start`."""
    headers = range(0, EVENT_HEADER_LENGTH * (len(events) + 1), EVENT_HEADER_LENGTH)
    return list(map(add, accumulate(map(len, events), initial=start), headers))
