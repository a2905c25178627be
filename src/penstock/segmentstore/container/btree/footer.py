"""`Footer`: the last bytes of an index segment, with the location of the tree's root and the tree's totals."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError, InvalidArgumentError
from penstock.segmentstore.container.btree.pages import PAGE_OVERHEAD, Pointer
from penstock.segmentstore.container.btree.sorted_index import MARK_LENGTH_MAX
from penstock.segmentstore.later_format import version_error

FOOTER_FORMAT_VERSION: Final = 1
FOOTER_MAGIC: Final = b"PSIX"
_FIELDS: Final = struct.Struct(f">4sBBHQQIQQQB{MARK_LENGTH_MAX}s")
_RESERVED: Final = bytes(7)
_CHECKSUM: Final = struct.Struct(">I")
FOOTER_LENGTH: Final = _FIELDS.size + len(_RESERVED) + _CHECKSUM.size
_NOWHERE: Final = Pointer(0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Footer:
    """One state of an index, from the update that wrote it until the next one. Compared by identity.

    Attributes:
        offset: offset of the footer itself; -1 for an index that was never written.
        value_length: length of every value.
        height: number of levels of pages; 0 without entries.
        root: the root page; undefined without entries.
        entry_count: number of keys.
        live_bytes: total length of all pages of the tree.
        mark: the owner's mark.
    """

    offset: int
    value_length: int
    height: int
    root: Pointer
    entry_count: int
    live_bytes: int
    mark: bytes

    @property
    def end(self) -> int:
        """The length of the segment in this state."""
        return self.offset + FOOTER_LENGTH if self.offset >= 0 else 0

    @property
    def lowest(self) -> int:
        """Offset of the first byte of the segment that this state needs."""
        return self.root.lowest if self.height else max(0, self.offset)


def empty_footer(value_length: int, *, offset: int = -1, mark: bytes = b"") -> Footer:
    """Return the state of an index without entries."""
    return Footer(
        offset=offset,
        value_length=value_length,
        height=0,
        root=_NOWHERE,
        entry_count=0,
        live_bytes=0,
        mark=mark,
    )


def encode_footer(footer: Footer) -> bytes:
    """Return the `FOOTER_LENGTH` bytes of a footer. Raises `InvalidArgumentError` if the mark is too long."""
    if len(footer.mark) > MARK_LENGTH_MAX:
        raise InvalidArgumentError(f"mark of {len(footer.mark)} bytes, longest is {MARK_LENGTH_MAX}")
    body = _FIELDS.pack(
        FOOTER_MAGIC,
        FOOTER_FORMAT_VERSION,
        footer.height,
        footer.value_length,
        footer.offset,
        footer.root.offset,
        footer.root.length,
        footer.root.lowest,
        footer.entry_count,
        footer.live_bytes,
        len(footer.mark),
        footer.mark,
    )
    body += _RESERVED
    return body + _CHECKSUM.pack(crc32c(body, 0))


def decode_footer(name: str, offset: int, data: bytes, *, start_offset: int, value_length: int) -> Footer:
    """Decode the footer at `offset` of segment `name`, which begins at `start_offset`.

    Raises `CorruptionError` unless it is a footer for this offset, for values of `value_length` bytes, whose tree is
    within the segment.
    """

    def demand(holds: bool, problem: str) -> None:
        if not holds:
            raise CorruptionError(name, offset, f"{problem}; an index's footer should be here")

    demand(len(data) == FOOTER_LENGTH, f"{len(data)} bytes are present")
    demand(data[:4] == FOOTER_MAGIC, f"found {data[:4].hex()} instead of {FOOTER_MAGIC.hex()}")
    found = crc32c(data[: -_CHECKSUM.size], 0)
    (stored,) = _CHECKSUM.unpack_from(data, FOOTER_LENGTH - _CHECKSUM.size)
    demand(found == stored, f"checksum is {found:08x}, stored {stored:08x}")
    (
        _,
        version,
        height,
        stored_value_length,
        own_offset,
        root_offset,
        root_length,
        lowest,
        entry_count,
        live_bytes,
        mark_length,
        mark,
    ) = _FIELDS.unpack_from(data)
    if version != FOOTER_FORMAT_VERSION:
        raise version_error(f"the index in segment {name}", version, (FOOTER_FORMAT_VERSION,))
    demand(own_offset == offset, f"this one belongs to offset {own_offset}")
    demand(stored_value_length == value_length, f"values are {stored_value_length} bytes long, not {value_length}")
    demand(mark_length <= MARK_LENGTH_MAX, f"mark of {mark_length} bytes")
    demand((height == 0) == (entry_count == 0), f"{entry_count} entries in {height} levels")
    if height:
        demand(
            start_offset <= lowest <= root_offset
            and root_length >= PAGE_OVERHEAD
            and root_offset + root_length <= offset,
            f"root at {root_offset}, {root_length} bytes, and pages from {lowest} on are not between the segment's "
            f"start {start_offset} and the footer",
        )
    return Footer(
        offset=offset,
        value_length=value_length,
        height=height,
        root=Pointer(root_offset, root_length, lowest),
        entry_count=entry_count,
        live_bytes=live_bytes,
        mark=mark[:mark_length],
    )
