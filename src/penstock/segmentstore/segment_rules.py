"""Rules for requests from outside of a store: which names segments may have, and which segments may be changed."""

from __future__ import annotations

from penstock.model.errors import InvalidArgumentError, UnsupportedOperationError
from penstock.model.names import SYSTEM_SCOPE, is_index_segment
from penstock.segmentstore.container.segment import Segment

_SYSTEM_PREFIX = f"{SYSTEM_SCOPE}/containers/"


def check_own(found: Segment) -> None:
    """Refuse a segment that belongs to its container. Raises `InvalidArgumentError`."""
    if found.is_system:
        raise InvalidArgumentError(f"{found.name} belongs to its container and cannot be changed from outside")


def check_stream(found: Segment) -> None:
    """Refuse a segment without plain bytes of a caller. Raises `UnsupportedOperationError` for a table."""
    check_own(found)
    if found.is_table:
        raise UnsupportedOperationError(f"{found.name} is a table segment: its bytes are entries")


def check_not_system(segment: str) -> None:
    """Refuse the name of a segment that belongs to its container. Raises `InvalidArgumentError`."""
    if segment.startswith(_SYSTEM_PREFIX) or is_index_segment(segment):
        raise InvalidArgumentError(f"{segment} belongs to its container and cannot be changed from outside")


def check_page(segment: Segment, token: bytes, first: bytes, last: bytes | None) -> None:
    """Refuse a way to divide a table that its kind does not support. Raises `InvalidArgumentError`."""
    if segment.key_length and token:
        raise InvalidArgumentError(f"{segment.name}: a fixed-key table is iterated by ranges of keys, not by tokens")
    if segment.is_table and not segment.key_length and (first or last is not None):
        raise InvalidArgumentError(f"{segment.name}: a hash table has no ranges of keys")


def check_new_name(segment: str) -> None:
    """Refuse names that cannot be chunk names or wire text: empty parts, dot parts, control characters."""
    parts = segment.split("/")
    if (
        not segment.isascii()
        or not segment.isprintable()
        or len(segment) > 1024
        or any(part in ("", ".", "..") or len(part) > 255 for part in parts)
        or "\\" in segment
        or segment.startswith(_SYSTEM_PREFIX)
        or is_index_segment(segment)
    ):
        raise InvalidArgumentError(f"{segment!r} cannot be the name of a segment")
