"""Core attributes: the store's own data about a segment, readable as attributes with fixed ids.

Source: wire-protocol 4.3.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.model.segments import NO_VALUE
from penstock.segmentstore.container.segment import Segment

_PREFIX = bytes.fromhex("8000000000000000")

CREATION_TIME = 0
EVENT_COUNT = 1
SCALE_POLICY_TYPE = 2
SCALE_POLICY_RATE = 3
ROLLOVER_SIZE = 4
#: For a table with keys of fixed length: that length.
KEY_LENGTH = 12


def core_attribute_id(number: int) -> bytes:
    """Return the 16-byte id of a core attribute."""
    return _PREFIX + number.to_bytes(8, "big")


def is_core_attribute(attribute_id: bytes) -> bool:
    """Return whether an id is in the range reserved for the store."""
    return attribute_id.startswith(_PREFIX)


def core_attribute(segment: Segment, attribute_id: bytes) -> int:
    """Return the accepted value of a core attribute, or `NO_VALUE` if it is not kept."""
    value = _VALUES.get(attribute_id)
    return NO_VALUE if value is None else value(segment)


_VALUES: dict[bytes, Callable[[Segment], int]] = {
    core_attribute_id(CREATION_TIME): lambda segment: segment.created_ms,
    core_attribute_id(EVENT_COUNT): lambda segment: segment.event_count,
    core_attribute_id(SCALE_POLICY_TYPE): lambda segment: segment.scale_type,
    core_attribute_id(SCALE_POLICY_RATE): lambda segment: segment.target_rate,
    core_attribute_id(ROLLOVER_SIZE): lambda segment: segment.rollover_bytes,
    core_attribute_id(KEY_LENGTH): lambda segment: segment.key_length,
}
