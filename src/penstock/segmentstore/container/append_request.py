"""`AppendRequest`: an append on its way from a connection to the log."""

from __future__ import annotations

from typing import Protocol

import msgspec

from penstock.model.segments import NO_VALUE, Buffer
from penstock.segmentstore.container.log.operations import NO_WRITER


class AppendedBytes(Protocol):
    """What an append changes in a segment, on its way to the log (`AppendRequest`) or read from it (`Append`)."""

    @property
    def data(self) -> Buffer:
        """The bytes; they do not change any more."""
        ...

    @property
    def event_count(self) -> int:
        """Whole events in them, as the client says."""
        ...

    @property
    def writer_id(self) -> bytes:
        """Who appends."""
        ...

    @property
    def event_number(self) -> int:
        """The writer's last one in the segment from now on; `NO_VALUE` if nobody counts."""
        ...


# Not looked at by garbage collections: it leads to nothing that leads back.
class AppendRequest(msgspec.Struct, frozen=True, gc=False):
    """Bytes for the end of a segment: what one client appended at a time, or several of its appends taken as one.

    A struct, not a dataclass: there are many, and a frozen dataclass costs ten times as much to make.

    Attributes:
        data: must not change any more, and must not keep much more memory alive than it is long.
        event_count: whole events in `data`, as the client says.
        writer_id: who appends; `event_number` becomes its last one in the segment.
        first_event_number: of the first append among those taken as one; the same as `event_number` if it is one.
        event_number: of the last append; `NO_VALUE` if nobody counts.
        first_request_id: of the first append: what a refusal names. The same as `request_id` if it is one.
        request_id: of the last append: what the acknowledgement names.
        expected_offset: append only if the segment is so long, in bytes.
    """

    data: Buffer
    event_count: int = 0
    writer_id: bytes = NO_WRITER
    first_event_number: int = NO_VALUE
    event_number: int = NO_VALUE
    first_request_id: int = 0
    request_id: int = 0
    expected_offset: int | None = None
