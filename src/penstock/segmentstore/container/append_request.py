"""`AppendRequest`: an append passed from a connection to the log."""

from __future__ import annotations

from typing import Protocol

import msgspec

from penstock.model.segments import NO_VALUE, Buffer
from penstock.segmentstore.container.log.operations import NO_WRITER


class AppendedBytes(Protocol):
    """The part of an append that changes a segment: to be logged (`AppendRequest`) or read from the log (`Append`)."""

    @property
    def data(self) -> Buffer:
        """The bytes; must not change."""
        ...

    @property
    def event_count(self) -> int:
        """Number of whole events in the data, as reported by the client."""
        ...

    @property
    def writer_id(self) -> bytes:
        """Id of the writer."""
        ...

    @property
    def event_number(self) -> int:
        """The writer's new last event number in the segment; `NO_VALUE` if events are not numbered."""
        ...


# Excluded from garbage collection: never part of a reference cycle.
class AppendRequest(msgspec.Struct, frozen=True, gc=False):
    """Bytes to append to a segment: one append of a client, or several combined.

    A struct, not a dataclass: there are many, and creating a frozen dataclass costs ten times as much.

    Attributes:
        data: must not change, and must not keep much more memory alive than its length.
        event_count: whole events in `data`, as reported by the client.
        writer_id: the writer; `event_number` becomes its last one in the segment.
        first_event_number: of the first combined append; equal to `event_number` for a single append.
        event_number: of the last append; `NO_VALUE` if events are not numbered.
        first_request_id: of the first append, used in a rejection. Equal to `request_id` for a single append.
        request_id: of the last append, used in the acknowledgement.
        expected_offset: append only if the segment has this length, in bytes.
    """

    data: Buffer
    event_count: int = 0
    writer_id: bytes = NO_WRITER
    first_event_number: int = NO_VALUE
    event_number: int = NO_VALUE
    first_request_id: int = 0
    request_id: int = 0
    expected_offset: int | None = None
