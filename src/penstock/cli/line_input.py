"""Lines of standard input, many at a time, and their routing keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, cast

import msgspec

from penstock.cli.errors import InvalidLineError
from penstock.jobs.keys import why_no_json
from penstock.model.errors import InvalidArgumentError

#: The maximum that is read at once.
_READ_BYTES = 1024 * 1024


class Input(Protocol):
    """What is read from: the buffer of a file."""

    def read1(self, size: int, /) -> bytes:
        """Wait for input and return up to `size` bytes of it; empty at the end."""


def batches_of_lines(source: Input, line_bytes_max: int) -> Iterator[list[bytes]]:
    """Yield lines without their line feeds, as many at a time as came in together. The last may lack its own.

    Raises `InvalidArgumentError` for a line of more than `line_bytes_max`, once those before it are out.
    """
    rest: list[bytes] = []
    rest_bytes = 0
    while data := source.read1(_READ_BYTES):
        lines = data.split(b"\n")
        last = lines.pop()
        if lines and rest:
            rest.append(lines[0])
            lines[0] = b"".join(rest)
            rest, rest_bytes = [], 0
        if lines:
            yield lines
        if last:
            rest.append(last)
            rest_bytes += len(last)
        if rest_bytes > line_bytes_max:
            raise InvalidArgumentError(
                f"a line of the input has more than {line_bytes_max} bytes, the maximum size of an event"
            )
    if rest:
        yield [b"".join(rest)]


class _Keyed(Protocol):
    key: str | int


class KeyField:
    """Takes the routing key of each line from a field of its JSON object: a text, or a whole number."""

    def __init__(self, field: str) -> None:
        self._field = field
        line = msgspec.defstruct("Line", [("key", str | int, msgspec.field(name=field))])
        self._decoder = cast("msgspec.json.Decoder[_Keyed]", msgspec.json.Decoder(line))

    def keys_of(self, lines: list[bytes], first_number: int) -> list[str]:
        """Return the keys of `lines`, the first of which is the `first_number`-th of the input, from 1.

        Raises `InvalidLineError`, which says how many lines before the bad one are good.
        """
        try:
            # One call for all. Fewer than there are lines: some are empty, or one object is on several.
            decoded = self._decoder.decode_lines(b"\n".join(lines))
            if len(decoded) == len(lines):
                return [str(line.key) for line in decoded]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass  # Which line it is, and why, is determined below.
        return self._keys_one_by_one(lines, first_number)

    def _keys_one_by_one(self, lines: list[bytes], first_number: int) -> list[str]:
        keys: list[str] = []
        for line in lines:
            try:
                keys.append(str(self._decoder.decode(line).key))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                why = why_no_json(line, error)
                raise InvalidLineError(first_number + len(keys), self._field, why, keys) from error
        return keys
