"""Runs of appends: the unconditional appends of one writer in one receive buffer, taken together.

A client that does not wait sends many small appends back to back: Pravega's Java client an AppendBlock and an
AppendBlockEnd for nearly every event, other clients single AppendBlockEnds. Cutting each out as a frame, decoding it
and passing it on costs ten times as much as copying its bytes. So complete frames of the usual form are parsed in
place and gathered by writer. Appends of one writer keep their order; appends of different writers have no order.

Frames of any other form stay in the buffer for the frame by frame path, which reports what is wrong with them.

Source: wire-protocol 3.4.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from penstock.model.errors import ProtocolError
from penstock.model.segments import Buffer
from penstock.wire.codec import HEADER_LENGTH, decode
from penstock.wire.commands import AppendBlock, AppendBlockEnd, Padding, PartialEvent

_UUID_LENGTH = 16
#: Type, length, writer, whole bytes, data length: the head of every AppendBlockEnd. Also read over the head of an
#: AppendBlock, which has only the first three.
_START = struct.Struct(">ii16sii")
#: Event count, last event number, request id: the tail of every AppendBlockEnd.
_TAIL = struct.Struct(">iqq")
#: A complete AppendBlockEnd without data.
_EMPTY_END = struct.Struct(">ii16siiiqq")
_INNER = struct.Struct(">ii")
_END_LENGTH = _START.size + _TAIL.size
_END_PAYLOAD_LENGTH = _END_LENGTH - HEADER_LENGTH
_BLOCK_START_LENGTH = HEADER_LENGTH + _UUID_LENGTH
_BLOCK, _BLOCK_END = AppendBlock.TYPE, AppendBlockEnd.TYPE
#: The last of the four bytes of these types.
_LAST_TYPE_BYTES = (_BLOCK & 0xFF, _BLOCK_END & 0xFF)
_PARTIAL_EVENT, _PADDING = PartialEvent.TYPE, Padding.TYPE

#: Data shorter than this share of the memory that holds it are copied.
_KEPT_SHARE_PERCENT_MIN = 80

#: Maximum number of events in one run: the limit of a log record.
EVENT_COUNT_MAX = 0x7FFFFFFF


class AppendRun:
    """Appends of one writer, in order.

    Attributes:
        pieces: their bytes, in order; views that live no longer than the receive buffer's content, unless `add` was
            given others.
        length: of all pieces, in bytes.
        event_count: of all of them.
        first_event_number, first_request_id: of the first append, which a refusal of all of them names.
        event_number, request_id: of the last. Invariant: numbers grow from one append to the next.
        kept: the only piece, if it need not be copied: it owns its memory, and not much more than it needs.
    """

    __slots__ = (
        "event_count",
        "event_number",
        "first_event_number",
        "first_request_id",
        "kept",
        "length",
        "pieces",
        "request_id",
        "writer_id",
    )

    def __init__(self, writer_id: bytes, event_number: int, request_id: int) -> None:
        self.writer_id: bytes = writer_id
        self.pieces: list[Buffer] = []
        self.kept: Buffer | None = None
        self.length: int = 0
        self.event_count: int = 0
        self.first_event_number: int = event_number
        self.event_number: int = event_number
        self.first_request_id: int = request_id
        self.request_id: int = request_id

    def takes(self, event_count: int, event_number: int) -> bool:
        """Return whether an append may be added: its number is higher, and the event count stays within the limit."""
        return event_number > self.event_number and self.event_count + event_count <= EVENT_COUNT_MAX

    def add(self, data: Buffer, event_count: int, event_number: int, request_id: int) -> None:
        """Add an append for which `takes` is true, or the first."""
        if len(data):
            self.pieces.append(data)
            self.length += len(data)
        self.event_count += event_count
        self.event_number = event_number
        self.request_id = request_id

    def joined(self) -> Buffer:
        """Return the bytes in memory of their own, copied once unless `kept`."""
        pieces = self.pieces
        if len(pieces) == 1:
            return pieces[0] if pieces[0] is self.kept else bytes(pieces[0])
        return b"".join(pieces)


def may_hold_append(buffer: memoryview, position: int, end: int) -> bool:
    """A quick check: False where `scan_appends` would find nothing, as after the last append and at other frames."""
    return end - position >= _END_LENGTH and buffer[position + 3] in _LAST_TYPE_BYTES


def scan_appends(
    buffer: memoryview,
    position: int,
    end: int,
    runs: dict[bytes, AppendRun],
    may_begin: Callable[[bytes, int], bool],
) -> int:
    """Gather the complete appends in `buffer` from `position` into `runs`, by writer.

    `may_begin`: whether a run of this writer may begin with an append of this number.

    Returns the position where it stopped: at the first frame that is not an unconditional append, is not of the usual
    form, is incomplete, or can neither begin its writer's run nor be added to it. No AppendBlock may be open before.
    """
    start, tail, empty_end = _START.unpack_from, _TAIL.unpack_from, _EMPTY_END.unpack_from
    while end - position >= _END_LENGTH:
        type_code, length, writer_id, whole, tail_length = start(buffer, position)
        following = position + HEADER_LENGTH + length
        second = None
        if type_code == _BLOCK:
            if length < _UUID_LENGTH or following + _END_LENGTH > end:
                break
            first: Buffer | None = buffer[position + _BLOCK_START_LENGTH : following]
            end_type, end_length, end_writer_id, whole, tail_length, event_count, event_number, request_id = empty_end(
                buffer, following
            )
            if end_type != _BLOCK_END or end_writer_id != writer_id:
                break
            tail_start = following + _START.size
            following += HEADER_LENGTH + end_length
            if tail_length:
                if not 0 < tail_length <= end_length - _END_PAYLOAD_LENGTH or following > end:
                    break
                event_count, event_number, request_id = tail(buffer, tail_start + tail_length)
            elif end_length < _END_PAYLOAD_LENGTH or following > end:
                break
            block_length = length - _UUID_LENGTH
            if whole != block_length:
                rest = block_length - whole - HEADER_LENGTH
                if whole < 0 or rest < 0:
                    break
                inner_start = position + _BLOCK_START_LENGTH + whole
                inner_type, inner_length = _INNER.unpack_from(buffer, inner_start)
                if inner_length != rest:
                    break
                first = buffer[position + _BLOCK_START_LENGTH : inner_start]
                if inner_type == _PARTIAL_EVENT:
                    second = buffer[inner_start + HEADER_LENGTH : inner_start + HEADER_LENGTH + rest]
                elif inner_type != _PADDING or tail_length:
                    break
            elif tail_length:
                tail_length = 0  # Not used when all events of the block are whole.
        elif type_code == _BLOCK_END:
            if not 0 <= tail_length <= length - _END_PAYLOAD_LENGTH or following > end:
                break
            tail_start = position + _START.size
            event_count, event_number, request_id = tail(buffer, tail_start + tail_length)
            first = None
        else:
            break
        if event_count <= 0:
            break
        run = runs.get(writer_id)
        if run is None:
            if not may_begin(writer_id, event_number):
                break
            run = runs[writer_id] = AppendRun(writer_id, event_number, request_id)
        elif event_number <= run.event_number or run.event_count + event_count > EVENT_COUNT_MAX:
            break
        pieces = run.pieces
        if first is not None and len(first):
            pieces.append(first)
            run.length += len(first)
        if second is not None and len(second):
            pieces.append(second)
            run.length += len(second)
        if tail_length:
            pieces.append(buffer[tail_start : tail_start + tail_length])
            run.length += tail_length
        run.event_count += event_count
        run.event_number = event_number
        run.request_id = request_id
        position = following
    return position


def may_be_kept(length: int, memory_bytes: int) -> bool:
    """Return whether to keep the memory that holds these `length` bytes, instead of copying them out of it.

    A Java client's block may be a quarter of a megabyte long and hold one event: the rest would stay allocated, without
    being accounted for, for as long as the event is cached.
    """
    return memory_bytes * _KEPT_SHARE_PERCENT_MIN <= length * 100


def assemble(block: AppendBlock, end: AppendBlockEnd) -> list[Buffer]:
    """Join a Java client's append: whole events in the block, the last one split or padded.

    Returns its bytes as views of both commands' data, which should be copied if the block is much longer than they are.
    Raises `ProtocolError` when the two are inconsistent.
    """
    if block.writer_id != end.writer_id:
        raise ProtocolError("AppendBlockEnd of another writer than its AppendBlock")
    data = memoryview(block.data)
    whole = end.size_of_whole_events
    if not 0 <= whole <= len(data):
        raise ProtocolError(f"AppendBlockEnd says {whole} bytes of whole events, its block has {len(data)}")
    if len(data) == whole:
        return [data]
    rest = data[whole:]
    if len(rest) < HEADER_LENGTH:
        raise ProtocolError(f"an append block ends with {len(rest)} bytes that are no frame")
    type_code, declared = _INNER.unpack_from(rest)
    inner = decode(type_code, rest[HEADER_LENGTH:])
    if declared != len(rest) - HEADER_LENGTH:
        raise ProtocolError(f"the last frame of an append block claims {declared} of {len(rest)} bytes")
    if isinstance(inner, PartialEvent):
        return [data[:whole], rest[HEADER_LENGTH:], end.buffer]
    if isinstance(inner, Padding):
        if len(end.buffer):
            raise ProtocolError("a padded append block is followed by more data")
        return [data[:whole]]
    raise ProtocolError(f"an append block ends with a frame of type {type_code}")
