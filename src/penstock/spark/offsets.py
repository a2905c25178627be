"""Offsets of a streaming query: stream cuts as the JSON values that Spark keeps in its checkpoint.

Spark compares offsets as JSON text and stores them verbatim, so the keys come in one fixed order: that of
`StreamCut.to_text`, whose form this is::

    {"positions": {"0": 1048, "4294967297": 0}, "scope": "retail", "stream": "orders", "v": 1}

`positions` maps the 64-bit id of each live segment, as a decimal text, to a byte offset. The size of an offset is
bounded by the number of segments that are open at once. Checkpoints of before, with `cut` for `positions`, are read
too. A query that goes on in spite of data loss counts, under ``lostBytes``, what it had to pass since its checkpoint
began; it is absent where that is nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NewType, TypeAlias

from penstock.model.errors import InvalidArgumentError
from penstock.model.stream_cuts import OFFSET_FUTURE, StreamCut, is_cut_text

OFFSET_VERSION = 1

#: The key of what was lost.
LOST_BYTES = "lostBytes"

#: A stream cut without its stream's name: segment id -> byte offset, which is an event boundary.
Cut: TypeAlias = Mapping[int, int]

#: The JSON text of an offset.
OffsetText = NewType("OffsetText", str)

#: An offset as Spark's Python API passes it: JSON values in a dict.
Offset: TypeAlias = dict[str, object]


def to_offset(scope: str, stream: str, cut: Cut, lost_byte_count: int = 0) -> Offset:
    """Return the offset of `cut`, keys in their fixed order; see the module for `lost_byte_count`."""
    lost: Offset = {LOST_BYTES: lost_byte_count} if lost_byte_count else {}
    return lost | {
        "positions": {str(segment): cut[segment] for segment in sorted(cut)},
        "scope": scope,
        "stream": stream,
        "v": OFFSET_VERSION,
    }


def lost_bytes(offset: Offset) -> int:
    """Return how many bytes a query had passed at an offset without there being anything to read, at least."""
    count = offset.get(LOST_BYTES, 0)
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise InvalidArgumentError(f"offset has {count!r} for {LOST_BYTES!r}: give a number of bytes from 0")
    return count


def to_text(scope: str, stream: str, cut: Cut) -> OffsetText:
    """Return the JSON text of the offset of `cut`, as the cut options accept it."""
    return OffsetText(json.dumps(to_offset(scope, stream, cut), separators=(",", ":")))


def from_offset(offset: object, scope: str, stream: str) -> dict[int, int]:
    """Return the cut in `offset`, which must be one of ``scope/stream``.

    Raises:
        InvalidArgumentError: not an offset, one of a newer layout, or one of another stream.
    """
    if not isinstance(offset, dict):
        raise InvalidArgumentError(f"offset {offset!r} is not a JSON object with 'positions'")
    version = offset.get("v", OFFSET_VERSION)
    if version != OFFSET_VERSION:
        raise InvalidArgumentError(
            f"offset has version {version!r}, this source knows {OFFSET_VERSION}: "
            "the checkpoint was written by a newer penstock, upgrade this one"
        )
    named = (offset.get("scope", scope), offset.get("stream", stream))
    if named != (scope, stream):
        raise InvalidArgumentError(
            f"offset belongs to stream {named[0]}/{named[1]}, the query reads {scope}/{stream}: "
            "a checkpoint serves one stream; use a new checkpoint location"
        )
    cut = offset.get("positions", offset.get("cut"))
    if not isinstance(cut, dict) or not cut:
        raise InvalidArgumentError(f"offset {offset!r} has no 'positions' of segment ids and offsets")
    result: dict[int, int] = {}
    for key, value in cut.items():
        if not (isinstance(key, str) and key.isascii() and key.isdecimal()):
            raise InvalidArgumentError(f"offset has segment id {key!r}: give the 64-bit id in decimal")
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InvalidArgumentError(f"offset has {value!r} for segment {key}: give a byte offset from 0")
        result[int(key)] = value
    return dict(sorted(result.items()))


def from_text(text: str, scope: str, stream: str) -> dict[int, int]:
    """Return the cut in the JSON text of an offset, or in that of a stream cut in any form of `StreamCut.from_text`.

    Segments that such a cut marks as not reached yet are left out: the walk comes to them by itself.

    Raises:
        InvalidArgumentError: as `from_offset`, or the text is not JSON.
    """
    if is_cut_text(text) and not text.lstrip().startswith("{"):
        text = StreamCut.from_text(text).to_text()
    try:
        offset = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidArgumentError(
            f"stream cut {text!r}: give 'earliest', 'latest' or the JSON text of a stream cut ({error})"
        ) from error
    if isinstance(offset, dict) and "positions" in offset:
        cut = StreamCut.from_text(text)
        reached = {segment: at for segment, at in cut.positions.items() if at != OFFSET_FUTURE}
        offset = to_offset(cut.scope, cut.stream, reached)
    return from_offset(offset, scope, stream)
