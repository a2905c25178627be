"""`memory_of`: the memory of a request in progress, which is more than its received bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.segmentstore.held_appends import OPERATION_OVERHEAD_BYTES
from penstock.wire import commands as wire
from penstock.wire.commands import WireCommand

#: Memory of one element of a list in addition to its bytes: the decoded key, entry, name or update, and derived
#: objects. Measured: 107 bytes for a decoded key, 120 for an update of an attribute, and about as much again for
#: derived objects. On the wire it may be 17 bytes.
ELEMENT_BYTES = 256

_COUNTS: dict[type[WireCommand], Callable[[Any], int]] = {
    wire.ReadTable: lambda command: len(command.keys),
    wire.RemoveTableKeys: lambda command: len(command.keys),
    wire.UpdateTableEntries: lambda command: len(command.entries),
    wire.MergeSegments: lambda command: len(command.attribute_updates),
    wire.MergeSegmentsBatch: lambda command: len(command.sources),
}


def memory_of(command: WireCommand, payload_length: int) -> int:
    """Return the approximate memory of a request whose payload has `payload_length` bytes."""
    count = _COUNTS.get(type(command))
    return payload_length + OPERATION_OVERHEAD_BYTES + (count(command) * ELEMENT_BYTES if count is not None else 0)
