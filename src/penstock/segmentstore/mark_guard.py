"""`MarkGuard`: segments of marks are changed by the controllers of the cluster alone.

Watermarks are read by clients, and written by controllers (docs/watermarks.md). A client that appends to a segment of
marks, even on the right condition, makes the watermarks unreadable. A controller sends the cluster's id as its token.
This prevents mistakes; it is no protection against a client that knows the id.
"""

from __future__ import annotations

import logging

from penstock.model.names import is_mark_segment
from penstock.wire import commands as wire
from penstock.wire.commands import OperationUnsupported, WireCommand

logger: logging.Logger = logging.getLogger(__name__)

_OF_A_SEGMENT = (
    wire.SetupAppend,
    wire.UpdateSegmentAttribute,
    wire.CreateSegment,
    wire.SealSegment,
    wire.DeleteSegment,
    wire.UpdateSegmentPolicy,
    wire.TruncateSegment,
    wire.CreateTableSegment,
    wire.DeleteTableSegment,
    wire.UpdateTableEntries,
    wire.RemoveTableKeys,
)


class MarkGuard:
    """See the module. `token`: that of the cluster's controllers; empty: all requests are accepted."""

    def __init__(self, token: str) -> None:
        self._token = token

    def refusal(self, command: WireCommand) -> OperationUnsupported | None:
        """Return the reply to a request that must not be done; None if it may be."""
        changed = _changed(command)
        if not self._token or not any(map(is_mark_segment, changed)):
            return None
        if getattr(command, "token", "") == self._token:
            return None
        what = type(command).__name__
        logger.info("%s: %s is refused, only controllers of this cluster change marks", ", ".join(changed), what)
        return OperationUnsupported(getattr(command, "request_id", -1), what)


def _changed(command: WireCommand) -> tuple[str, ...]:
    """Return the segments that a request changes."""
    if isinstance(command, _OF_A_SEGMENT):
        return (command.segment,)
    if isinstance(command, wire.CreateTransientSegment):
        return (command.parent_segment,)
    if isinstance(command, wire.MergeSegments):
        return (command.target, command.source)
    if isinstance(command, wire.MergeSegmentsBatch):
        return (command.target, *command.sources)
    return ()
