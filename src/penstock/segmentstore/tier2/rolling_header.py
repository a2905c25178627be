"""`RollingHeader`: the bytes of a header of RollingStorage, the layout of long-term storage in older Pravega (PDP-19).

A segment consists of chunks, and of a text that lists them: consecutive entries ``key=value&``, only ever appended. The
first entry is the greatest length of a chunk; an entry for each chunk follows: where it begins in the segment, and its
name. A merge appends ``concat=<chunks>@<offset>&`` and then the source's header unchanged: that number of the following
entries counts from that offset. If the first of these is not at 0, the source's header was never appended, and the
announcement is void.

A header contains no lengths: a chunk ends where the next begins, and the last one where its file ends. Whatever the
older store may legitimately write or leave behind is accepted here, and everything else is damage; an ambiguous text is
damage. Pure: bytes in, values out. Source: PDP-19, PDP-34, segment-store 8.14; bytes and
examples: docs/formats.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from penstock.model.errors import CorruptionError, InvalidArgumentError
from penstock.segmentstore.tier2.chunk_run import OFFSET_MAX

_HEADER_SUFFIX = "$header"
_CHUNK_INFIX = "$offset."
_MAX_LENGTH_KEY = "maxsize"
_CONCAT_KEY = "concat"

_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_CONCAT = re.compile(r"(0|[1-9][0-9]{0,9})@(0|[1-9][0-9]{0,18})")


@dataclass(frozen=True, slots=True)
class RollingChunk:
    """A chunk and the segment offset of its first byte."""

    start: int
    name: str


@dataclass(frozen=True, slots=True)
class RollingHeader:
    """A decoded header. `chunks` are in order; of those that begin at the same offset all but the last are empty.

    `chunk_length_max`: a chunk of this length is not appended to.
    """

    chunk_length_max: int
    chunks: tuple[RollingChunk, ...]


def header_name(segment: str) -> str:
    """Return the name of a segment's header."""
    return segment + _HEADER_SUFFIX


def segment_of_header(name: str) -> str | None:
    """Return the segment of the header with this name; None if it is not the name of a header."""
    segment = name.removesuffix(_HEADER_SUFFIX)
    return None if segment == name or not segment else segment


def rolling_chunk_name(segment: str, offset: int) -> str:
    """Return the name that the older store gives the chunk that it begins at `offset` of a segment."""
    return f"{segment}{_CHUNK_INFIX}{offset}"


def is_rolling_chunk(name: str) -> bool:
    """Return whether the older store gives chunks such a name."""
    segment, infix, offset = name.rpartition(_CHUNK_INFIX)
    return bool(segment and infix) and _NUMBER.fullmatch(offset) is not None


def encode_header(header: RollingHeader) -> bytes:
    """Return the bytes of `header` in the format of the older store.

    Raises `InvalidArgumentError` for values it could not read: names with ``&``, offsets that do not ascend.
    """
    parts = [f"{_MAX_LENGTH_KEY}={header.chunk_length_max}&"]
    before = -1
    for chunk in header.chunks:
        if not chunk.name or "&" in chunk.name:
            raise InvalidArgumentError(f"a header cannot name the chunk {chunk.name!r}")
        # The older store refuses two chunks at one offset, although it may write them.
        if not before < chunk.start <= OFFSET_MAX:
            raise InvalidArgumentError(f"chunk {chunk.name} starts at {chunk.start}, its predecessor at {before}")
        before = chunk.start
        parts.append(f"{chunk.start}={chunk.name}&")
    if not 0 < header.chunk_length_max <= OFFSET_MAX:
        raise InvalidArgumentError(
            f"the maximum length of chunks is {header.chunk_length_max} bytes, it must be 1 to {OFFSET_MAX}"
        )
    return "".join(parts).encode()


def decode_header(name: str, data: bytes) -> RollingHeader | None:
    """Decode the header in chunk `name`; None if it is empty: a creation that was interrupted.

    Raises `CorruptionError` for anything that the older store does not leave behind, with the byte where it begins.
    """
    if not data:
        return None
    if not data.endswith(b"&"):
        raise CorruptionError(
            name, data.rfind(b"&") + 1, "the header's last entry has no end: it was truncated while it was written"
        )
    reader = _Reader(name)
    for entry in data[:-1].split(b"&"):
        reader.read(entry)
    return reader.end()


class _Reader:
    """Reads entries in order. `_left`: remaining entries of the current announcement, out of `_announced`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._position = 0
        self._chunk_length_max: int | None = None
        self._chunks: list[RollingChunk] = []
        self._announced = self._left = self._base = 0

    def read(self, entry: bytes) -> None:
        try:
            key, sign, value = entry.decode().partition("=")
        except UnicodeDecodeError as error:
            raise CorruptionError(self._name, self._position + error.start, "the header is not UTF-8") from error
        if not (sign and key and value):
            self._damaged(f"{entry!r} is not an entry of a header")
        if key == _MAX_LENGTH_KEY:
            length_max = self._number(value)
            if not length_max:
                self._damaged("the maximum length of chunks is 0 bytes")
            # The following entries belong to the merged segment.
            if self._chunk_length_max is None:
                self._chunk_length_max = length_max
        elif self._chunk_length_max is None:
            self._damaged(f"the header does not begin with {_MAX_LENGTH_KEY}")
        elif key == _CONCAT_KEY:
            self._announce(value)
        else:
            self._add(self._number(key), value)
        self._position += len(entry) + 1

    def end(self) -> RollingHeader:
        if 0 < self._left < self._announced:
            self._damaged(f"{self._left} chunks of a merge are missing: it was truncated while it was written")
        assert self._chunk_length_max is not None
        return RollingHeader(self._chunk_length_max, tuple(self._chunks))

    def _announce(self, value: str) -> None:
        found = _CONCAT.fullmatch(value)
        if found is None:
            self._damaged(f"{_CONCAT_KEY}={value} is not a number of chunks and an offset")
        if 0 < self._left < self._announced:
            self._damaged("a merge starts within another one: the start of its chunks is unknown")
        self._announced = self._left = int(found[1])
        self._base = int(found[2])

    def _add(self, start: int, chunk: str) -> None:
        if self._left == self._announced and start:
            self._announced = self._left = 0
        elif self._left:
            self._left -= 1
            start += self._base
        if start > OFFSET_MAX:
            self._damaged(f"chunk {chunk} begins at {start}, beyond any segment")
        if self._chunks and start < self._chunks[-1].start:
            self._damaged(f"chunk {chunk} begins at {start}, before the one that it follows")
        self._chunks.append(RollingChunk(start, chunk))

    def _number(self, text: str) -> int:
        if _NUMBER.fullmatch(text) is None or int(text) > OFFSET_MAX:
            self._damaged(f"{text!r} is not a number of bytes")
        return int(text)

    def _damaged(self, problem: str) -> NoReturn:
        raise CorruptionError(self._name, self._position, problem)
