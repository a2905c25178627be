"""The receive side of a connection: splits received bytes into frames.

Frames are cut out of one receive buffer without copying. The buffer starts small and grows when reads fill it, so that
thousands of idle connections cost little and a busy one reads much at a time. A frame longer than the maximum buffer
length is received into separate memory, which grows as bytes arrive: a peer that announces 16 MiB and sends nothing
costs nothing.

No I/O here: `FrameReceiver` has the two methods of `asyncio.BufferedProtocol` and can be driven by a test.

Source: wire-protocol 1.2.
"""

from __future__ import annotations

import struct

from penstock.model.errors import InvalidArgumentError, ProtocolError
from penstock.wire.codec import FRAME_LENGTH_MAX, HEADER_LENGTH

_HEADER = struct.Struct(">ii")
#: The initial length of a buffer, and its length after a trim, in bytes.
_BUFFER_LENGTH_INITIAL = 16 * 1024
_GROWTH_FACTOR = 4
#: Number of consecutive small reads after which a grown buffer shrinks.
_SMALL_READ_COUNT = 32


class FrameReceiver:
    """Splits a stream of bytes into frames.

    Call `get_buffer`, put bytes at its start, call `buffer_updated` with their count; repeat. After a
    `ProtocolError` the connection cannot be read any further and every call raises it again.

    Args:
        frame_length_max: longest whole frame accepted, header included, in bytes.
        buffer_length: maximum length of the shared buffer, in bytes; longer frames get separate memory.
    """

    __slots__ = (
        "_buffer",
        "_buffer_length",
        "_end",
        "_failure",
        "_free",
        "_is_full",
        "_lent",
        "_own",
        "_own_end",
        "_own_length",
        "_own_type",
        "_received",
        "_small_reads",
        "_start",
        "_was_filled",
        "frame_length_max",
    )

    def __init__(self, *, frame_length_max: int = FRAME_LENGTH_MAX, buffer_length: int = 256 * 1024) -> None:
        if buffer_length < HEADER_LENGTH:
            raise InvalidArgumentError(
                f"buffer_length {buffer_length} can't hold a frame's {HEADER_LENGTH} byte header"
            )
        if frame_length_max < HEADER_LENGTH:
            raise InvalidArgumentError(f"frame_length_max {frame_length_max} is less than the header")
        #: May be changed between reads.
        self.frame_length_max: int = frame_length_max
        self._buffer_length = buffer_length
        self._buffer = memoryview(bytearray(min(_BUFFER_LENGTH_INITIAL, buffer_length)))
        # Bytes [_start, _end) of the buffer are received and not yet part of a returned frame.
        self._start = 0
        self._end = 0
        # The long frame in progress, if any: its payload so far is [0, _own_end) of _own, _own_length when complete.
        self._own: memoryview | None = None
        self._own_end = 0
        self._own_length = 0
        self._own_type = 0
        # Free bytes of the buffer, and how many of them were lent for the next read.
        self._free = self._lent = 0
        # Byte count of the read whose frames are being returned.
        self._received = 0
        self._was_filled = self._is_full = False
        self._small_reads = 0
        self._failure: ProtocolError | None = None

    @property
    def incomplete_length(self) -> int:
        """Return how many bytes of an incomplete frame were received. Not 0 at end of file: the peer broke off."""
        if self._own is not None:
            return HEADER_LENGTH + self._own_end
        return self._end - self._start

    @property
    def long_frame_bytes(self) -> int:
        """Return the memory of the long frame in progress, in bytes; 0 if there is none."""
        return 0 if self._own is None else len(self._own)

    @property
    def was_filled(self) -> bool:
        """Whether the last read filled the memory it was given, so that more data are likely to be available."""
        return self._was_filled

    def get_buffer(self, length_max: int = -1) -> memoryview:
        """Return where the next bytes go: at least one byte.

        No more than `length_max`, if that is above 0, unless a long frame is in progress.

        Invalidates all payloads returned before that are not owned: their bytes may change from here on.
        """
        if self._failure is not None:
            raise self._failure
        own = self._own
        if own is not None:
            if self._own_end == len(own):
                own = self._own = _enlarged(own, self._own_end, self._own_length)
            free = own[self._own_end :]
            self._free = len(free)
        else:
            buffer = self._buffer
            if self._start:
                # The remaining bytes are part of one frame. Moving them makes space for a whole frame and a long read.
                self._end -= self._start
                if self._end:
                    buffer[: self._end] = buffer[self._start : self._start + self._end]
                self._start = 0
            free = buffer[self._end :]
            self._free = len(free)
            if 0 < length_max < self._free:
                free = free[:length_max]
        self._lent = len(free)
        return free

    def buffer_updated(self, count: int) -> list[tuple[int, memoryview, bool]]:
        """Process `count` bytes that were put into the buffer; return the frames they complete, in order.

        Each frame is (type code, payload, owned). A payload that is not owned is valid only until the next
        `get_buffer`: copy it to keep it. An owned one belongs to the caller.

        Raises:
            ProtocolError: a header with a negative length, or of a frame longer than `frame_length_max`. Whole frames
                before it that came in the same read are lost with the connection.
        """
        self.received(count)
        frames = []
        while (frame := self.next_frame()) is not None:
            frames.append(frame)
        return frames

    def received(self, count: int) -> None:
        """Process `count` bytes that were put into the buffer; `next_frame` returns the frames, then None."""
        if self._failure is not None:
            raise self._failure
        if not 0 <= count <= self._lent:
            raise InvalidArgumentError(f"{count} bytes were put into a buffer of {self._lent}")
        self._was_filled = count == self._lent
        self._is_full = count == self._free
        self._received = count
        self._lent = 0
        if self._own is not None:
            self._own_end += count
            self._received = 0
        else:
            self._end += count

    def next_frame(self) -> tuple[int, memoryview, bool] | None:
        """Return the next complete frame, as `buffer_updated` does; None: more bytes are needed.

        Raises:
            ProtocolError: see `buffer_updated`; here the frames before it were returned.
        """
        if self._own is not None:
            if self._own_end < self._own_length:
                return None
            payload, self._own = self._own, None
            return self._own_type, payload, True
        start = self._start
        rest = self._end - start
        if rest >= HEADER_LENGTH:
            buffer = self._buffer
            type_code, length = _HEADER.unpack_from(buffer, start)
            if not 0 <= length <= self.frame_length_max - HEADER_LENGTH:
                raise self._fail(type_code, length, bytes(buffer[start : min(self._end, start + 32)]))
            if HEADER_LENGTH + length <= rest:
                self._start = following = start + HEADER_LENGTH + length
                return type_code, buffer[start + HEADER_LENGTH : following], False
            if HEADER_LENGTH + length > self._buffer_length:
                self._begin_own(type_code, length, buffer[start + HEADER_LENGTH : self._end])
                self._start = self._end
                return None
        if self._received:
            self._adapt(self._received, self._is_full)
            self._received = 0
        return None

    @property
    def unread(self) -> tuple[memoryview, int, int]:
        """The buffer, and the range of it that was received and is not part of a returned frame.

        A caller that parses frames there itself reports that by `skip_to`; they are valid as long as returned ones.
        Empty while a long frame is in progress.
        """
        return self._buffer, self._start, self._end

    def skip_to(self, position: int) -> None:
        """Continue at `position`, which is the end of a whole frame in the range of `unread`."""
        self._start = position

    def trim(self) -> None:
        """Shrink the buffer, if no frame is in progress. For connections that have been idle for a while."""
        if self._start == self._end and self._own is None and len(self._buffer) > _BUFFER_LENGTH_INITIAL:
            # Returned payloads keep the old memory alive, so they stay valid.
            self._buffer = memoryview(bytearray(min(_BUFFER_LENGTH_INITIAL, self._buffer_length)))
            self._start = self._end = self._lent = self._small_reads = 0

    def _begin_own(self, type_code: int, length: int, received: memoryview) -> None:
        own = memoryview(bytearray(min(length, max(_BUFFER_LENGTH_INITIAL, len(received) * _GROWTH_FACTOR))))
        own[: len(received)] = received
        self._own, self._own_end, self._own_length, self._own_type = own, len(received), length, type_code

    def _adapt(self, count: int, is_full: bool) -> None:
        """Grow the buffer when a read filled it to its end; shrink it after many small reads."""
        length = len(self._buffer)
        if is_full and length < self._buffer_length:
            remaining = self._end - self._start
            grown = memoryview(bytearray(min(length * _GROWTH_FACTOR, self._buffer_length)))
            grown[:remaining] = self._buffer[self._start : self._end]
            self._buffer, self._start, self._end = grown, 0, remaining
            self._small_reads = 0
        elif length > _BUFFER_LENGTH_INITIAL:
            self._small_reads = self._small_reads + 1 if count <= _BUFFER_LENGTH_INITIAL // 2 else 0
            if self._small_reads >= _SMALL_READ_COUNT:
                self.trim()

    def _fail(self, type_code: int, length: int, received: bytes) -> ProtocolError:
        if length < 0:
            problem = f"negative length {length}"
        else:
            problem = f"{length + HEADER_LENGTH} bytes, more than the {self.frame_length_max} allowed"
        self._failure = ProtocolError(
            f"frame of type {type_code} with {problem}; received {received.hex(' ', 4)}; "
            "the peer does not speak this protocol, close the connection"
        )
        return self._failure


def _enlarged(own: memoryview, received: int, length: int) -> memoryview:
    """Return a copy of `own` in larger memory: four times what has arrived, or the whole frame if that is less."""
    larger = memoryview(bytearray(min(length, received * _GROWTH_FACTOR)))
    larger[:received] = own
    return larger
