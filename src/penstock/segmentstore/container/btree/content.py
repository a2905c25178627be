"""Content of future pages: merges old entries with changes, joins, and splits into pages of suitable length.

A pure core. Runs of unchanged entries are copied as one slice; only changed keys cost work per key.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import sub
from typing import Final

from penstock.segmentstore.container.btree.pages import (
    CHECKSUM_LENGTH,
    PAGE_OVERHEAD,
    POINTER_LENGTH,
    body_start,
    count_of,
    entry_offsets,
    find,
    key_at,
    separator,
    value_span,
)

#: New keys processed at a time: about a millisecond.
_RUN_LENGTH_MAX: Final = 2048


@dataclass(slots=True)
class Content:
    """Sorted entries that will become a page, several pages, or part of one.

    Attributes:
        level: level of the pages.
        lower: lower bound of the keys; the key of the parent's entry for this content.
        size: bytes of the entries and of their offsets in offset tables.
        parts: the entries' bytes; a part begins and ends with an entry.
        lengths: length of each entry.
        page: the same entries as a page for another offset, with an invalid checksum; then `parts` and `lengths` are
            empty.
        is_kept: whether its pages should stay in memory.
    """

    level: int
    lower: bytes
    size: int
    parts: list[bytes] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    page: bytes | bytearray | None = None
    is_kept: bool = True

    @property
    def page_length(self) -> int:
        """Length as a single page."""
        return self.size + PAGE_OVERHEAD

    def expand(self) -> None:
        """Convert `page` to `parts` and `lengths`."""
        if self.page is not None:
            page = bytes(self.page)
            offsets = entry_offsets(page)
            self.parts = [page[body_start(page) : -CHECKSUM_LENGTH]]
            self.lengths = list(map(sub, offsets[1:], offsets))
            self.page = None

    def bound_first(self) -> None:
        """Make the first entry of inner content begin with `lower`, in case the first children were removed."""
        first = self.parts[0]
        key_length = self.lengths[0] - POINTER_LENGTH
        if first[:key_length] != self.lower:
            self.parts[0] = self.lower + first[key_length:]
            self.lengths[0] = len(self.lower) + POINTER_LENGTH
            self.size += len(self.lower) - key_length


def content_of(page: bytes | bytearray, level: int, lower: bytes) -> Content:
    """Return the content of an existing page."""
    return Content(level, lower, len(page) - PAGE_OVERHEAD, page=page)


def join(left: Content, right: Content) -> Content:
    """Return the entries of two neighbours as one content; both inputs are consumed."""
    left.expand()
    right.expand()
    if right.level:
        right.bound_first()
    left.parts += right.parts
    left.lengths += right.lengths
    left.size += right.size
    left.is_kept = left.is_kept or right.is_kept
    return left


def split(
    content: Content, page_bytes: int, value_length: int, *, entries_min: int, fills: bool
) -> Iterator[tuple[bytes, list[int], bytes]]:
    """Split content into pages: lower bound, lengths of entries, and the entries of each.

    Pages are at most `page_bytes` long, unless they would have less than `entries_min` entries. They are equally full,
    or with `fills` completely full except for the last: suitable when more keys will follow at the end.
    """
    content.expand()
    lengths = content.lengths
    body = content.parts[0] if len(content.parts) == 1 else b"".join(content.parts)
    capacity = page_bytes - PAGE_OVERHEAD
    if content.size <= capacity or len(lengths) <= entries_min:
        yield content.lower, lengths, body
        return
    if not fills:
        even = -(-content.size // -(-content.size // capacity)) + max(lengths) + 2
        capacity = min(capacity, even)
    ends = list(accumulate([length + 2 for length in lengths]))
    lower, start, position, taken = content.lower, 0, 0, 0
    while True:
        end = max(bisect_right(ends, taken + capacity), start + entries_min)
        if len(lengths) - end < entries_min:
            # Too few entries for another page; make this one slightly longer.
            end = len(lengths)
        stop = ends[end - 1] - 2 * end
        yield lower, lengths[start:end], body[position:stop]
        if end == len(lengths):
            return
        next_key = body[stop : stop + lengths[end] - value_length]
        if content.level:
            lower = next_key
        else:
            lower = separator(body[stop - lengths[end - 1] : stop - value_length], next_key)
        start, position, taken = end, stop, ends[end - 1]


def patch_leaf(
    page: bytes, keys: Sequence[bytes], low: int, high: int, changes: Mapping[bytes, bytes | None], value_length: int
) -> bytes | bytearray | None:
    """Return a leaf with new values of keys[low:high], or the same leaf if it already has them.

    None unless all of the keys are in the leaf and remain.
    """
    patched: bytearray | None = None
    at = 0
    for index in range(low, high):
        key = keys[index]
        value = changes[key]
        if value is None:
            return None
        at, found = find(page, key, value_length, at)
        if not found:
            return None
        start, end = value_span(page, at, value_length)
        if page[start:end] != value:
            if patched is None:
                patched = bytearray(page)
            patched[start:end] = value
    return page if patched is None else patched


class LeafMerge:
    """Merges a leaf with the changes of its keys.

    Attributes:
        entry_delta: keys added minus keys removed, once complete.
        is_changed: whether anything changed.
    """

    def __init__(self, page: bytes | None, lower: bytes, value_length: int) -> None:
        self.entry_delta: int = 0
        self.is_changed: bool = False
        self._page = page
        self._value_length = value_length
        self._content = Content(0, lower, 0)
        # Last key of the previous content; the bound between the two is determined by the first key of this one.
        self._key_before: bytes | None = None

    def merge(
        self, keys: Sequence[bytes], low: int, high: int, changes: Mapping[bytes, bytes | None], *, close_bytes: int
    ) -> Iterator[Content]:
        """Yield the resulting content of keys[low:high], in order; nothing if no entry is left.

        Content is yielded at about `close_bytes`, so that the caller can yield to the event loop.
        """
        page, value_length = self._page, self._value_length
        offsets: tuple[int, ...] = (0,) if page is None else entry_offsets(page)
        base = 0 if page is None else body_start(page)
        count = len(offsets) - 1
        lengths = list(map(sub, offsets[1:], offsets))
        at = 0
        while low < high:
            key = keys[low]
            index, found = (0, False) if page is None else find(page, key, value_length, at)
            if page is not None and index > at:
                self._add(page[base + offsets[at] : base + offsets[index]], lengths[at:index])
                at = index
            if found:
                value = changes[key]
                if value is None:
                    self.entry_delta -= 1
                else:
                    self._add(key + value, [len(key) + value_length])
                start, end = (0, 0) if page is None else value_span(page, index, value_length)
                self.is_changed = self.is_changed or value is None or page is None or page[start:end] != value
                low += 1
                at += 1
                continue
            # New keys up to the next existing one.
            end = high
            if page is not None and index < count:
                end = bisect_left(keys, key_at(page, index, value_length), low + 1, high)
            while low < end:
                step = min(low + _RUN_LENGTH_MAX, end)
                self._insert(keys[low:step], changes)
                low = step
                if self._content.size >= close_bytes:
                    yield self._close()
        if page is not None and at < count:
            self._add(page[base + offsets[at] : base + offsets[count]], lengths[at:])
        if self._content.lengths:
            yield self._close()

    def _insert(self, run: Sequence[bytes], changes: Mapping[bytes, bytes | None]) -> None:
        if len(run) == 1:
            value = changes[run[0]]
            if value is not None:
                self._add(run[0] + value, [len(run[0]) + self._value_length])
                self.entry_delta += 1
                self.is_changed = True
            return
        pairs: list[bytes] = []
        lengths = []
        for key in run:
            value = changes[key]
            if value is not None:
                pairs.append(key)
                pairs.append(value)
                lengths.append(len(key) + self._value_length)
        if lengths:
            self._add(b"".join(pairs), lengths)
            self.entry_delta += len(lengths)
            self.is_changed = True

    def _add(self, part: bytes, lengths: list[int]) -> None:
        content = self._content
        if self._key_before is not None:
            content.lower = separator(self._key_before, part[: lengths[0] - self._value_length])
            self._key_before = None
        content.parts.append(part)
        content.lengths += lengths
        content.size += len(part) + 2 * len(lengths)

    def _close(self) -> Content:
        closed = self._content
        last = closed.parts[-1]
        self._key_before = last[len(last) - closed.lengths[-1] : len(last) - self._value_length]
        self._content = Content(0, b"", 0)
        return closed


def splice_inner(page: bytes, lower: bytes, edits: Sequence[tuple[int, int, Sequence[bytes]]]) -> Content:
    """Return an inner page's content with the entries of ranges [start, end) replaced; `edits` are sorted."""
    offsets = entry_offsets(page)
    base = body_start(page)
    count = count_of(page)
    all_lengths = list(map(sub, offsets[1:], offsets))
    parts: list[bytes] = []
    lengths: list[int] = []
    at = 0
    for start, end, entries in (*edits, (count, count, ())):
        if start > at:
            parts.append(page[base + offsets[at] : base + offsets[start]])
            lengths += all_lengths[at:start]
        parts += entries
        lengths += map(len, entries)
        at = end
    content = Content(page[1], lower, sum(lengths) + 2 * len(lengths), parts, lengths)
    if lengths:
        content.bound_first()
    return content
