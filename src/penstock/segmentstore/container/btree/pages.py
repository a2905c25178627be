"""Pages of the tree: byte format, searched without decoding.

A page is header, offset table, entries, checksum (``docs/formats.md``, "Sorted index"). An entry is a key followed by a
value of fixed length: the user's in a leaf, a `Pointer` to a child in an inner page. Finding a key decodes nothing into
objects. A pure core: bytes in, bytes out. Pages are immutable.

The key of an inner entry is the lower bound of all keys below. The key of a page's first entry is ignored: the bound in
the page's parent applies, and the root has none. The children of a level therefore partition all possible keys.

Source: segment-store R5.8. Instead of the random id at both ends a page contains its own offset and a
checksum: bytes that were truncated, mixed up or read from another position are not accepted as a page.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError
from penstock.segmentstore.later_format import version_error

PAGE_FORMAT_VERSION: Final = 1
_HEADER: Final = struct.Struct(">BBHQ")
_OFFSET_FIELD: Final = struct.Struct(">Q")
_OFFSET_FIELD_START: Final = 4
_SPAN: Final = struct.Struct(">HH")
_CHECKSUM: Final = struct.Struct(">I")
_POINTER: Final = struct.Struct(">QIQ")

HEADER_LENGTH: Final = _HEADER.size
CHECKSUM_LENGTH: Final = _CHECKSUM.size
POINTER_LENGTH: Final = _POINTER.size
#: Bytes of a page besides its entries and their 2 bytes each in the offset table.
PAGE_OVERHEAD: Final = HEADER_LENGTH + 2 + CHECKSUM_LENGTH
#: Maximum length of the entries of one page: offsets in it are 16 bits.
BODY_LENGTH_MAX: Final = 0xFFFF


class Pointer(NamedTuple):
    """Location of a page: its offset and length in the segment, and the lowest offset of any page at or below it."""

    offset: int
    length: int
    lowest: int


def build_page(level: int, offset: int, lengths: Sequence[int], body: bytes) -> bytes:
    """Return a page for `offset`, with entries of the given `lengths` that are concatenated in `body`."""
    count = len(lengths)
    head = _HEADER.pack(PAGE_FORMAT_VERSION, level, count, offset)
    head += struct.pack(f">{count + 1}H", *accumulate(lengths, initial=0))
    checksum = crc32c(body, crc32c(head, 0))
    return b"".join((head, body, _CHECKSUM.pack(checksum)))


def move_page(page: bytes | bytearray, offset: int) -> bytes:
    """Return the same page for another offset. Its old checksum is not verified."""
    head = bytes(page[:_OFFSET_FIELD_START]) + _OFFSET_FIELD.pack(offset)
    rest = bytes(page[HEADER_LENGTH:-CHECKSUM_LENGTH])
    return b"".join((head, rest, _CHECKSUM.pack(crc32c(rest, crc32c(head, 0)))))


def verify_page(name: str, offset: int, page: bytes, *, level: int) -> None:
    """Verify bytes read at `offset` of segment `name`. Raises `CorruptionError` unless they are a page of `level`."""
    if len(page) < PAGE_OVERHEAD:
        raise CorruptionError(name, offset, f"{len(page)} bytes are too short for an index page")
    found = crc32c(page[:-CHECKSUM_LENGTH], 0)
    (stored,) = _CHECKSUM.unpack_from(page, len(page) - CHECKSUM_LENGTH)
    if found != stored:
        raise CorruptionError(name, offset, f"index page has checksum {found:08x}, written with {stored:08x}")
    version, _, count, own_offset = _HEADER.unpack_from(page)
    if version != PAGE_FORMAT_VERSION:
        raise version_error(f"the index page at byte {offset} of segment {name}", version, (PAGE_FORMAT_VERSION,))
    if own_offset != offset:
        raise CorruptionError(name, offset, f"index page belongs to offset {own_offset}")
    check_level(name, offset, page, level)
    if not count or entry_offsets(page)[-1] != len(page) - PAGE_OVERHEAD - 2 * count:
        raise CorruptionError(name, offset, f"{count} entries do not fit an index page of {len(page)} bytes")


def check_level(name: str, offset: int, page: bytes, level: int) -> None:
    """Raise `CorruptionError` unless a page has the level expected by its parent."""
    if page[1] != level:
        raise CorruptionError(name, offset, f"index page of level {page[1]} where level {level} is expected")


def level_of(page: bytes) -> int:
    """Return a page's level, 0 for a leaf."""
    return page[1]


def count_of(page: bytes) -> int:
    """Return the number of entries of a page."""
    return page[2] << 8 | page[3]


def body_start(page: bytes) -> int:
    """Return the position in the page at which its entries begin."""
    return HEADER_LENGTH + 2 + 2 * (page[2] << 8 | page[3])


def entry_offsets(page: bytes) -> tuple[int, ...]:
    """Return the start of each entry, relative to `body_start`, and the end of the last one."""
    return struct.unpack_from(f">{count_of(page) + 1}H", page, HEADER_LENGTH)


def find(page: bytes | bytearray, key: bytes, value_length: int, low: int = 0) -> tuple[int, bool]:
    """Return the index of the first entry from `low` on whose key is not below `key`, and whether it is `key`."""
    count = page[2] << 8 | page[3]
    base = HEADER_LENGTH + 2 + 2 * count
    span = _SPAN.unpack_from

    def key_of(index: int) -> bytes | bytearray:
        start, end = span(page, HEADER_LENGTH + 2 * index)
        return page[base + start : base + end - value_length]

    wanted: bytes | bytearray = key
    # The search is in C, only its key function is Python: it takes a third of the CPU time of writes to a table.
    low = bisect_left(range(count), wanted, low, key=key_of)
    return low, low < count and key_of(low) == key


def key_at(page: bytes, index: int, value_length: int) -> bytes:
    """Return the key of an entry."""
    base = body_start(page)
    start, end = _SPAN.unpack_from(page, HEADER_LENGTH + 2 * index)
    return page[base + start : base + end - value_length]


def value_span(page: bytes, index: int, value_length: int) -> tuple[int, int]:
    """Return the start and end of an entry's value in the page."""
    _, end = _SPAN.unpack_from(page, HEADER_LENGTH + 2 * index)
    end += body_start(page)
    return end - value_length, end


def value_at(page: bytes, index: int, value_length: int) -> bytes:
    """Return the value of an entry."""
    start, end = value_span(page, index, value_length)
    return page[start:end]


def entries_between(page: bytes, first: int, end: int, value_length: int) -> list[tuple[bytes, bytes]]:
    """Return keys and values of entries [`first`, `end`)."""
    base = body_start(page)
    offsets = struct.unpack_from(f">{end - first + 1}H", page, HEADER_LENGTH + 2 * first)
    entries = []
    start = base + offsets[0]
    for offset in offsets[1:]:
        stop = base + offset
        entries.append((page[start : stop - value_length], page[stop - value_length : stop]))
        start = stop
    return entries


def child_index(page: bytes, key: bytes) -> int:
    """Return the index of the child of an inner page that covers `key`."""
    index, is_equal = find(page, key, POINTER_LENGTH)
    return index if is_equal or not index else index - 1


def pointer_at(page: bytes, index: int) -> Pointer:
    """Return the pointer of an entry of an inner page."""
    _, end = _SPAN.unpack_from(page, HEADER_LENGTH + 2 * index)
    return Pointer(*_POINTER.unpack_from(page, body_start(page) + end - POINTER_LENGTH))


def inner_entry(lower: bytes, pointer: Pointer) -> bytes:
    """Return the entry of an inner page for `pointer`, which covers keys from `lower` on."""
    return lower + _POINTER.pack(*pointer)


def lowest_below(page: bytes) -> int:
    """Return the lowest offset of the pages below an inner page."""
    base = body_start(page) - POINTER_LENGTH
    unpack = _POINTER.unpack_from
    return int(min(unpack(page, base + end)[2] for end in entry_offsets(page)[1:]))


def pointer_of(entry: bytes) -> Pointer:
    """Return the pointer in an entry made by `inner_entry`."""
    return Pointer(*_POINTER.unpack_from(entry, len(entry) - POINTER_LENGTH))


def divide(page: bytes, keys: Sequence[bytes], low: int, high: int) -> Iterator[tuple[int, int, int]]:
    """Yield (child index, start, end): the child covers keys[start:end]. keys[low:high] are in ascending order."""
    last = count_of(page) - 1
    while low < high:
        index = child_index(page, keys[low])
        end = high
        if index < last:
            end = bisect_left(keys, key_at(page, index + 1, POINTER_LENGTH), low + 1, high)
        yield index, low, end
        low = end


def separator(left: bytes, right: bytes) -> bytes:
    """Return the shortest lower bound of `right` that is above `left`; `left` must be below `right`."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) >> 1
        if left[:middle] == right[:middle]:
            low = middle
        else:
            high = middle - 1
    return right[: low + 1]
