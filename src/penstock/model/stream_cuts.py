"""Stream cuts: a position in a whole stream.

A cut names an offset in each of a set of segments that together cover the key space once. Everything before it is
"read", everything after it is not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from penstock.model.errors import InvalidArgumentError, InvalidNameError
from penstock.model.names import check_scope_name, check_stream_name

#: Offset of a segment in a cut that has not been reached yet: its predecessors are not fully read.
OFFSET_FUTURE: Final = -1
#: What the ends of a stream are called, wherever a position is given by a word; the first is what is said.
EARLIEST: Final = ("earliest", "head")
LATEST: Final = ("latest", "tail")

_FORMAT_VERSION = 1
_INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class StreamCut:
    """A position in stream `scope`/`stream`.

    `positions` maps segment ids to offsets in bytes (`OFFSET_FUTURE` for a segment not reached yet); it is copied and
    cannot be changed. Whether the segments tile the key space is known to the controller alone.
    """

    scope: str
    stream: str
    positions: Mapping[int, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "positions", MappingProxyType(dict(sorted(self.positions.items()))))

    def __hash__(self) -> int:
        return hash((self.scope, self.stream, tuple(self.positions.items())))

    def __reduce__(self) -> tuple[type[StreamCut], tuple[str, str, dict[int, int]]]:
        return StreamCut, (self.scope, self.stream, dict(self.positions))

    def __repr__(self) -> str:
        return f"StreamCut(scope={self.scope!r}, stream={self.stream!r}, positions={dict(self.positions)})"

    def to_text(self) -> str:
        """Return the cut as JSON on one line. Equal cuts give equal text.

        ``{"positions":{"0":10},"scope":"retail","stream":"orders","v":1}``, segments in ascending order.
        """
        return json.dumps(
            {
                "positions": {str(segment): offset for segment, offset in self.positions.items()},
                "scope": self.scope,
                "stream": self.stream,
                "v": _FORMAT_VERSION,
            },
            separators=(",", ":"),
            ensure_ascii=True,
        )

    @classmethod
    def from_text(cls, text: str) -> StreamCut:
        """Read what `to_text` wrote, or the same with ``cut`` for ``positions``, as checkpoints of Spark once had it.

        Raises `InvalidArgumentError` saying what is wrong with other text.
        """
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise InvalidArgumentError(f"stream cut {text[:80]!r} is not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise InvalidArgumentError(f"stream cut {text[:80]!r} is not a JSON object")
        if fields.get("v") != _FORMAT_VERSION or isinstance(fields["v"], bool):
            raise InvalidArgumentError(
                f"stream cut has format version {fields.get('v')!r}, this release reads {_FORMAT_VERSION}"
            )
        scope, stream, positions = fields.get("scope"), fields.get("stream"), fields.get("positions", fields.get("cut"))
        if not isinstance(scope, str) or not isinstance(stream, str) or not isinstance(positions, dict):
            raise InvalidArgumentError("stream cut needs the texts 'scope' and 'stream' and the object 'positions'")
        try:
            check_scope_name(scope)
            check_stream_name(stream)
        except InvalidNameError as error:
            raise InvalidArgumentError(f"stream cut: {error}") from error
        parsed: dict[int, int] = {}
        for segment, offset in positions.items():
            if not segment.isascii() or not segment.isdecimal() or int(segment) > _INT64_MAX:
                raise InvalidArgumentError(f"stream cut: {segment!r} is not a segment id")
            if not isinstance(offset, int) or isinstance(offset, bool) or not OFFSET_FUTURE <= offset <= _INT64_MAX:
                raise InvalidArgumentError(f"stream cut: {offset!r} is not an offset (segment {segment})")
            parsed[int(segment)] = offset
        return cls(scope, stream, parsed)
