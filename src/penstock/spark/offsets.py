"""Offsets of a streaming query: stream cuts as the JSON values that Spark keeps in its checkpoint.

Spark compares offsets as JSON text and stores them verbatim, so the keys have one fixed order: that of
`StreamCut.to_text`, whose form this is::

    {"positions": {"0": 1048, "4294967297": 0}, "scope": "retail", "stream": "orders", "v": 1}

`positions` maps the 64-bit id of each live segment, as a decimal text, to a byte offset. The size of an offset is
bounded by the number of segments that are open at once. Older checkpoints, with `cut` for `positions`, are read, too.
A query that continues in spite of data loss counts, under ``lostBytes``, the bytes that it had to skip since its
checkpoint began; the key is absent if there are none.

A query of several streams has all of them in one offset, perhaps none yet::

    {"streams": {"retail/orders": {"positions": {"0": 1048}},
                 "retail/returns": {"positions": {"0": 70}, "since": {"0": 0}}}, "v": 2}

`since` is where the query begins to read a stream. It is in the initial offset, and in each offset up to the end of the
first micro-batch that reads the stream. Spark does not store the start of the first micro-batch: it resolves it again
for each attempt, when tail and head have moved; `since` replaces that start.

`until` is where a query ends for which option `until` is a time: the store may resolve a time more exactly later, but a
query has one end. `subscriber` is the number of the query's subscriber, see `penstock.spark.subscription`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NewType, TypeAlias

from penstock.model.errors import InvalidArgumentError, LaterVersionError
from penstock.model.names import split_scoped_name
from penstock.model.stream_cuts import OFFSET_FUTURE, StreamCut, is_cut_text

OFFSET_VERSION = 1

#: Version of offsets of several streams.
SEVERAL_VERSION = 2

#: The key of the lost byte count.
LOST_BYTES = "lostBytes"

#: A stream cut without its stream's name: segment id -> byte offset, which is an event boundary.
Cut: TypeAlias = Mapping[int, int]

#: A cut of each of some streams, by ``scope/stream``.
Cuts: TypeAlias = Mapping[str, Cut]

#: The JSON text of an offset.
OffsetText = NewType("OffsetText", str)

#: An offset as Spark's Python API passes it: JSON values in a dict.
Offset: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True)
class QueryPosition:
    """The position of a query in each of its streams. `since` and `until` are of some of these; see the module."""

    cuts: Cuts
    since: Cuts = field(default_factory=dict)
    until: Cuts = field(default_factory=dict)
    lost_byte_count: int = 0
    subscriber: str = ""

    def to_offset(self, only: str | None) -> Offset:
        """Return the offset of a query that reads the single stream `only`, or of one that reads several."""
        if only is not None:
            offset = to_offset(*split_scoped_name(only), self.cuts[only], self.lost_byte_count)
            version = offset.pop("v")
            return offset | self._bounds(only) | self._subscriber() | {"v": version}
        lost: Offset = {LOST_BYTES: self.lost_byte_count} if self.lost_byte_count else {}
        streams = {name: {"positions": _positions(self.cuts[name])} | self._bounds(name) for name in sorted(self.cuts)}
        return lost | {"streams": streams} | self._subscriber() | {"v": SEVERAL_VERSION}

    @classmethod
    def of(cls, offset: Offset, only: str | None) -> QueryPosition:
        """Decode an offset of a query that reads the single stream `only`, or of one that reads several.

        A query of several streams continues where one of a single stream stopped, and treats the other streams as new.

        Raises:
            InvalidArgumentError: not an offset, or one of another stream.
            LaterVersionError: one of a later version.
        """
        if not isinstance(offset, dict) or "streams" not in offset:
            name = only or _name_in(offset)
            cut, parts = from_offset(offset, *split_scoped_name(name)), {name: offset}
            cuts = {name: cut}
        else:
            parts = _streams_in(offset)
            if only is not None and set(parts) != {only}:
                raise InvalidArgumentError(
                    f"offset belongs to a query of the streams {', '.join(parts) or 'of a pattern'}; this one reads "
                    f"{only}: name all of them, or use a new checkpoint location"
                )
            cuts = {name: _cut_in(part.get("positions")) for name, part in parts.items()}
        since, until = (
            {name: _cut_in(part[key]) for name, part in parts.items() if key in part} for key in ("since", "until")
        )
        return cls(cuts, since, until, lost_bytes(offset), str(offset.get("subscriber", "")))

    def unread(self) -> dict[str, Cut]:
        """Return the start of each stream of which no micro-batch has read anything so far."""
        return {name: cut for name, cut in self.since.items() if self.cuts.get(name) == cut}

    def _subscriber(self) -> Offset:
        return {"subscriber": self.subscriber} if self.subscriber else {}

    def _bounds(self, name: str) -> Offset:
        bounds = {"since": self.since, "until": self.until}
        return {key: _positions(cuts[name]) for key, cuts in bounds.items() if name in cuts}


def _positions(cut: Cut) -> dict[str, int]:
    return {str(segment): cut[segment] for segment in sorted(cut)}


def _name_in(offset: object) -> str:
    scope, stream = (offset.get("scope"), offset.get("stream")) if isinstance(offset, dict) else (None, None)
    if not isinstance(scope, str) or not isinstance(stream, str):
        raise InvalidArgumentError(f"offset {offset!r} does not name its stream, and the query reads several")
    return f"{scope}/{stream}"


def _streams_in(offset: Offset) -> dict[str, Offset]:
    version = offset.get("v")
    if isinstance(version, int) and version > SEVERAL_VERSION:
        raise LaterVersionError("the offset of the query", found=version, known=SEVERAL_VERSION)
    if version != SEVERAL_VERSION:
        raise InvalidArgumentError(
            f"offset of several streams has version {offset.get('v')!r}, this source knows {SEVERAL_VERSION}"
        )
    streams = offset["streams"]
    if not isinstance(streams, dict) or not all(isinstance(part, dict) for part in streams.values()):
        raise InvalidArgumentError(f"offset {offset!r} has no object for each of its 'streams'")
    return {"/".join(split_scoped_name(name)): part for name, part in streams.items()}


def to_offset(scope: str, stream: str, cut: Cut, lost_byte_count: int = 0) -> Offset:
    """Return the offset of `cut`, keys in their fixed order; see the module for `lost_byte_count`."""
    lost: Offset = {LOST_BYTES: lost_byte_count} if lost_byte_count else {}
    return lost | {
        "positions": _positions(cut),
        "scope": scope,
        "stream": stream,
        "v": OFFSET_VERSION,
    }


def lost_bytes(offset: Offset) -> int:
    """Return how many missing bytes a query had skipped at an offset, at least."""
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
        InvalidArgumentError: not an offset, or one of another stream.
        LaterVersionError: one of a later version.
    """
    if not isinstance(offset, dict):
        raise InvalidArgumentError(f"offset {offset!r} is not a JSON object with 'positions'")
    version = offset.get("v", OFFSET_VERSION)
    if isinstance(version, int) and version > OFFSET_VERSION:
        raise LaterVersionError("the offset of the query", found=version, known=OFFSET_VERSION)
    if version != OFFSET_VERSION:
        raise InvalidArgumentError(f"offset has version {version!r}, this source knows {OFFSET_VERSION}")
    named = (offset.get("scope", scope), offset.get("stream", stream))
    if named != (scope, stream):
        raise InvalidArgumentError(
            f"offset belongs to stream {named[0]}/{named[1]}, the query reads {scope}/{stream}: "
            "a checkpoint serves one stream; use a new checkpoint location"
        )
    return _cut_in(offset.get("positions", offset.get("cut")))


def _cut_in(cut: object) -> dict[int, int]:
    if not isinstance(cut, dict) or not cut:
        raise InvalidArgumentError(f"offset has no 'positions' of segment ids and offsets, but {cut!r}")
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

    Segments that such a cut marks as not reached yet are left out: the walk adds them when it gets there.

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


def cuts_from_text(text: str, streams: Iterable[str]) -> dict[str, dict[int, int]]:
    """Return the cuts in the JSON text of an offset of several streams, or in that of a stream cut of one of them.

    Raises:
        InvalidArgumentError: as `from_text`, or it is about a stream that is not among `streams`.
    """
    known = set(streams)
    try:
        offset = json.loads(text)
    except json.JSONDecodeError:
        offset = None  # Pravega's text of a cut, or invalid: `StreamCut` checks that.
    if isinstance(offset, dict) and "streams" in offset:
        cuts = {name: _cut_in(part.get("positions")) for name, part in _streams_in(offset).items()}
    else:
        cut = StreamCut.from_text(text)
        cuts = {f"{cut.scope}/{cut.stream}": from_text(text, cut.scope, cut.stream)}
    if others := cuts.keys() - known:
        names = ", ".join(sorted(others))
        raise InvalidArgumentError(f"there is a stream cut for {names}, which the query does not read")
    return cuts
