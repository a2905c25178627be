"""What is said in `GetChunkLayout` and `ChunkLayoutTold`: JSON, described in ``docs/direct-reads.md``.

Fields that are not known are skipped, and what is added later has a default: the two sides may be of different
releases.
"""

from __future__ import annotations

import msgspec

from penstock.model.errors import InvalidArgumentError, ProtocolError

VERSION = 1
#: The longest question: a name, some numbers, and who asks.
QUESTION_BYTES_MAX = 16 * 1024
#: The longest text that says who asks.
HOLDER_LENGTH_MAX = 200
#: Chunks in one page, whatever is asked for ...
PAGE_CHUNKS_MAX = 1000
#: ... and checksums of blocks, of some milliseconds of work; of a chunk with more the rest is in the next page.
PAGE_CHECKSUMS_MAX = 64 * 1024


class LayoutQuestion(msgspec.Struct, frozen=True):
    """Which chunks hold the bytes ``[start, end)`` of a segment, as far as they are in long-term storage?

    Attributes:
        lease_s: how long they are to be kept from now on; 0: no longer than others.
        holder: who asks, for people.
        chunk_count_max: chunks in the answer at most; there may be less.
    """

    start: int
    end: int
    version: int = VERSION
    lease_s: float = 0.0
    holder: str = ""
    chunk_count_max: int = PAGE_CHUNKS_MAX


class LayoutLease(msgspec.Struct, frozen=True, array_like=True):
    """A lease, by its place in the order of its container. It ends by itself, `duration_s` after it began."""

    epoch: int
    number: int
    duration_s: float


class StorageTold(msgspec.Struct, frozen=True):
    """Where the chunks are.

    Attributes:
        place: an absolute path, or a URL as ``--tier2`` takes it.
        identity_name: the name of what tells this place from others, among its chunks; and ...
        identity: ... what is in it.
    """

    place: str
    identity_name: str
    identity: bytes


class ChunkRow(msgspec.Struct, frozen=True, array_like=True):
    """A chunk, and what its blocks must be.

    Attributes:
        name: full name.
        start_offset: offset in the segment of the chunk's first byte; it may lie before what was asked for.
        length: its first bytes, so many, are the segment's; what is behind them counts for nothing.
        block_length: bytes of a block; the last one may be shorter.
        first_block: number of the first block that is told about.
        checksums: CRC32C of that block and those behind it, u32 each, big-endian.
    """

    name: str
    start_offset: int
    length: int
    block_length: int
    first_block: int
    checksums: bytes


class LayoutPage(msgspec.Struct, frozen=True):
    """Chunks, in order and without a gap, from the byte asked for on.

    Attributes:
        stored_end: offset up to which long-term storage had the segment when this was made; at most the end asked for.
        next_offset: where to ask on, which is `stored_end` when this was all.
        lease: None: none was asked for, or there was nothing to be kept.
    """

    version: int
    storage: StorageTold
    chunks: list[ChunkRow]
    stored_end: int
    next_offset: int
    lease: LayoutLease | None = None


def encode_layout(message: LayoutQuestion | LayoutPage) -> bytes:
    """Return a message as it travels."""
    return msgspec.json.encode(message)


def decode_layout_question(data: bytes) -> LayoutQuestion:
    """Read a question. Raises `InvalidArgumentError`."""
    if len(data) > QUESTION_BYTES_MAX:
        raise InvalidArgumentError(f"a question about chunks of {len(data)} bytes; up to {QUESTION_BYTES_MAX} do")
    try:
        question = msgspec.json.decode(data, type=LayoutQuestion)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgumentError(f"a question about chunks cannot be read: {error}") from error
    if question.version != VERSION:
        raise InvalidArgumentError(f"a question about chunks of version {question.version}; this is {VERSION}")
    if not 0 <= question.start <= question.end or question.chunk_count_max < 1 or not 0 <= question.lease_s < 1e9:
        raise InvalidArgumentError(f"a question about chunks that cannot be answered: {question}")
    if len(question.holder) > HOLDER_LENGTH_MAX:
        raise InvalidArgumentError(f"a holder of {len(question.holder)} characters; up to {HOLDER_LENGTH_MAX} do")
    return question


def decode_layout_page(data: bytes) -> LayoutPage:
    """Read an answer. Raises `ProtocolError`."""
    try:
        page = msgspec.json.decode(data, type=LayoutPage)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"chunks of a segment cannot be read: {error}") from error
    if page.version != VERSION:
        raise ProtocolError(f"chunks of a segment in version {page.version}; this is {VERSION}")
    return page
