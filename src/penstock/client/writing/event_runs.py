"""Splits events for a writer: into parts for one turn of the loop, and into runs for one block. Pure, and C loops."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add
from typing import cast

from penstock.client.common.arrow import ArrowStrings, byte_count_of, is_arrow, keys_of, slice_of
from penstock.model.errors import InvalidArgumentError
from penstock.model.events import EVENT_HEADER_LENGTH

#: Events for `write_many`: payloads in a sequence, or a pyarrow array or chunked array of binary or string.
Events = Sequence[bytes] | ArrowStrings
#: Routing keys for `write_many`: none, one for all, or one per event.
RoutingKeys = None | str | Sequence[str] | ArrowStrings

#: Events processed before yielding to the event loop, a few milliseconds' worth.
_PART_EVENT_COUNT_MAX = 4096


@dataclass(frozen=True, slots=True)
class Step:
    """One call that takes events, the first of which has index `start`."""

    start: int
    put: Callable[[], object]


def parts_of(
    events: Events, keys: RoutingKeys, bytes_max: int
) -> Iterator[tuple[int, Events, str | Sequence[str] | None]]:
    """Split events and their keys into parts for one turn each; yield each part's start, events and keys.

    Parts of an Arrow array, which is framed part by part, have `bytes_max` bytes at most, or one event.
    """
    count = len(events)
    start = 0
    while start < count:
        end = min(start + _PART_EVENT_COUNT_MAX, count)
        if is_arrow(events):
            part: Events = slice_of(events, start, end)
            while end - start > 1 and byte_count_of(cast(ArrowStrings, part)) > bytes_max:
                end = start + (end - start) // 2
                part = slice_of(events, start, end)
        else:
            part = cast(Sequence[bytes], events)[start:end]
        if keys is None or isinstance(keys, str):
            yield start, part, keys
        elif is_arrow(keys):
            yield start, part, keys_of(slice_of(keys, start, end))
        else:
            yield start, part, cast(Sequence[str], keys)[start:end]
        start = end


def runs(events: Sequence[bytes], bytes_max: int) -> Iterator[tuple[int, int]]:
    """Split events into runs `[start, end)` of up to `bytes_max` framed bytes; a larger event is a run of its own."""
    ends = list(accumulate(map(len, events)))
    count = len(events)
    # Framed end of each event, without another list: the payload bytes up to it plus a header each.
    framed_ends = list(
        map(add, ends, range(EVENT_HEADER_LENGTH, EVENT_HEADER_LENGTH * (count + 1), EVENT_HEADER_LENGTH))
    )
    start = 0
    while start < count:
        base = framed_ends[start - 1] if start else 0
        end = max(bisect_right(framed_ends, base + bytes_max, start), start + 1)
        yield start, end
        start = end


def has_foreign(events: Sequence[object]) -> bool:
    """Return whether some event is not exactly `bytes` (a C loop over types).

    Raises `InvalidArgumentError` if one is not a buffer.
    """
    kinds: set[type] = set(map(type, events))
    for kind in kinds:
        if not issubclass(kind, bytes | bytearray | memoryview):
            raise InvalidArgumentError(f"an event is bytes, not {kind.__name__}; encode it first")
    return any(kind is not bytes for kind in kinds)


def as_bytes(event: object) -> bytes:
    """Return an event as `bytes`. Raises `InvalidArgumentError` if it is not a buffer."""
    if isinstance(event, bytes | bytearray | memoryview):
        return bytes(event)
    raise InvalidArgumentError(f"an event is bytes, not {type(event).__name__}; encode it first")
