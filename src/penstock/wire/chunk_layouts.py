"""The payloads of `GetChunkLayout` and `ChunkLayoutTold`: JSON, described in ``docs/direct-reads.md``.

Unknown fields are ignored, and fields added later have defaults: the two sides may be of different releases.
"""

from __future__ import annotations

import msgspec

from penstock.model.errors import InvalidArgumentError, ProtocolError

VERSION = 1
#: The longest query: a name, some numbers, and the holder.
QUERY_BYTES_MAX = 16 * 1024
#: The longest `holder`.
HOLDER_LENGTH_MAX = 200
#: Maximum number of chunks in one page ...
PAGE_CHUNKS_MAX = 1000
#: ... and of checksums of blocks, some milliseconds of work; the rest of a chunk's are in the next page.
PAGE_CHECKSUMS_MAX = 64 * 1024


class LayoutQuery(msgspec.Struct, frozen=True):
    """A request for the chunks in long-term storage that hold the bytes ``[start, end)`` of a segment.

    Attributes:
        lease_s: how long the chunks are kept from now on; 0: without a lease.
        holder: name of the requester, for people.
        chunk_count_max: maximum number of chunks in the answer; there may be fewer.
    """

    start: int
    end: int
    version: int = VERSION
    lease_s: float = 0.0
    holder: str = ""
    chunk_count_max: int = PAGE_CHUNKS_MAX


class LayoutLease(msgspec.Struct, frozen=True, array_like=True):
    """A lease, by its sequence number in its container. It expires `duration_s` after it began."""

    epoch: int
    number: int
    duration_s: float


class StorageTold(msgspec.Struct, frozen=True):
    """Where the chunks are.

    Attributes:
        place: an absolute path, or a URL as ``--tier2`` takes it.
        identity_name: name of the chunk that identifies this place.
        identity: the content of that chunk.
    """

    place: str
    identity_name: str
    identity: bytes


class ChunkRow(msgspec.Struct, frozen=True, array_like=True):
    """A chunk, and the checksums of its blocks.

    Attributes:
        name: full name.
        start_offset: offset in the segment of the chunk's first byte; it may lie before the requested range.
        length: number of the chunk's first bytes that belong to the segment; bytes after them are ignored.
        block_length: bytes of a block; the last one may be shorter.
        first_block: number of the first block in `checksums`.
        checksums: CRC32C of that block and the following ones, u32 each, big-endian.
    """

    name: str
    start_offset: int
    length: int
    block_length: int
    first_block: int
    checksums: bytes


class LayoutPage(msgspec.Struct, frozen=True):
    """Chunks, in order and without a gap, from the requested start.

    Attributes:
        stored_end: offset up to which long-term storage had the segment when this was made; at most the requested end.
        next_offset: start of the next request; equals `stored_end` when this page is the last.
        lease: None: none was requested, or no chunk had to be kept.
    """

    version: int
    storage: StorageTold
    chunks: list[ChunkRow]
    stored_end: int
    next_offset: int
    lease: LayoutLease | None = None


def encode_layout(message: LayoutQuery | LayoutPage) -> bytes:
    """Encode a message."""
    return msgspec.json.encode(message)


def decode_layout_query(data: bytes) -> LayoutQuery:
    """Decode a query. Raises `InvalidArgumentError`."""
    if len(data) > QUERY_BYTES_MAX:
        raise InvalidArgumentError(f"a query for chunks has {len(data)} bytes; the maximum is {QUERY_BYTES_MAX}")
    try:
        query = msgspec.json.decode(data, type=LayoutQuery)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgumentError(f"cannot decode a query for chunks: {error}") from error
    if query.version != VERSION:
        raise InvalidArgumentError(f"a query for chunks has version {query.version}; this store supports {VERSION}")
    if not 0 <= query.start <= query.end or query.chunk_count_max < 1 or not 0 <= query.lease_s < 1e9:
        raise InvalidArgumentError(f"a query for chunks has an invalid range, count or lease: {query}")
    if len(query.holder) > HOLDER_LENGTH_MAX:
        raise InvalidArgumentError(
            f"the holder's name has {len(query.holder)} characters; the maximum is {HOLDER_LENGTH_MAX}"
        )
    return query


def decode_layout_page(data: bytes) -> LayoutPage:
    """Decode an answer. Raises `ProtocolError`."""
    try:
        page = msgspec.json.decode(data, type=LayoutPage)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"chunks of a segment cannot be read: {error}") from error
    if page.version != VERSION:
        raise ProtocolError(f"chunks of a segment in version {page.version}; this is {VERSION}")
    return page
