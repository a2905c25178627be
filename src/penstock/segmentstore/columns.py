"""Columns of numbers of 64 bits, most significant byte first, one behind the other in bytes: made and compared whole.

What a log says in very many frames of one kind is looked at so, without a step of Python for each.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

#: Fewer are not worth a column, more are never one: whoever looks at them has to give others a turn behind it.
COLUMN_LENGTH_MIN = 16
COLUMN_LENGTH_MAX = 1024
NUMBER_LENGTH = 8
_NUMBER_BITS = 8 * NUMBER_LENGTH
#: A column of ones, and one that counts from 0, as one long integer each.
_ONES = int.from_bytes((1).to_bytes(NUMBER_LENGTH, "big") * COLUMN_LENGTH_MAX, "big")
_COUNTS = int.from_bytes(struct.pack(f">{COLUMN_LENGTH_MAX}Q", *range(COLUMN_LENGTH_MAX)), "big")


class ColumnPace:
    """How many of the next frames are looked at together, and how many are read one by one before.

    Where other frames lie between, a look ends at them: behind each there may be as many as before it. Where hardly
    anything but others lies, looks become few.

    Attributes:
        length: so many are looked at together.
    """

    __slots__ = ("_pause", "_singles", "length")

    def __init__(self) -> None:
        self.length: int = COLUMN_LENGTH_MIN
        self._singles = 0
        #: How many singles come next after a look that finds next to nothing.
        self._pause = 1

    def takes_single(self) -> bool:
        """Whether the next frame is one of those that are read by themselves; it counts as read then."""
        if not self._singles:
            return False
        self._singles -= 1
        return True

    def note(self, found: int, looked_at: int) -> None:
        """Note what a look has found before the first frame that is another."""
        if found < min(COLUMN_LENGTH_MIN, looked_at):
            self._singles = self._pause
            self._pause = min(2 * self._pause, COLUMN_LENGTH_MIN)
            self.length = max(self.length // 2, COLUMN_LENGTH_MIN)
            return
        self._pause = 1
        if found < looked_at:
            self._singles = 1
            self.length = found
        else:
            self.length = min(2 * self.length, COLUMN_LENGTH_MAX)


class Table:
    """Rows of bytes of one length, of which columns are taken."""

    __slots__ = ("_bytes", "_row_length")

    def __init__(self, rows: Sequence[bytes], *, indent: int = 0) -> None:
        """`indent`: zeros before each row, so that its numbers lie at multiples of their length."""
        length = indent + len(rows[0])
        filler = bytes(-length % NUMBER_LENGTH)
        self._bytes = memoryview(b"".join((bytes(indent), (filler + bytes(indent)).join(rows), filler)))
        self._row_length = length + len(filler)

    def numbers(self, at: int) -> bytes:
        """Return the column of what lies at a byte of each row, the indent included; a multiple of 8."""
        return self._bytes.cast("Q")[at // NUMBER_LENGTH :: self._row_length // NUMBER_LENGTH].tobytes()

    def halves(self, at: int, *, is_signed: bool = False) -> tuple[int, ...]:
        """Return the numbers of 32 bits that lie at a byte of each row, the indent included; a multiple of 4."""
        column = self._bytes.cast("I")[at // 4 :: self._row_length // 4]
        return struct.unpack(f">{len(column)}{'i' if is_signed else 'I'}", column.tobytes())


def progression(first: int, step: int, count: int) -> bytes:
    """Return the column of `count` numbers from `first` on, each `step` above the one before.

    All of them must be below 2**64, and `count` at most `COLUMN_LENGTH_MAX`.
    """
    shift = _NUMBER_BITS * (COLUMN_LENGTH_MAX - count)
    return ((_ONES >> shift) * first + (_COUNTS >> shift) * step).to_bytes(NUMBER_LENGTH * count, "big")


def packed(numbers: Iterable[int]) -> bytes:
    """Return the column of some numbers, each at least 0 and below 2**64."""
    found = list(numbers)
    return struct.pack(f">{len(found)}Q", *found)


def agreeing(found: bytes, expected: bytes) -> int:
    """Return how many numbers two columns, as long as each other, have in common before the first that differs."""
    if found == expected:
        return len(found) // NUMBER_LENGTH
    differing = int.from_bytes(found, "big") ^ int.from_bytes(expected, "big")
    return (8 * len(found) - differing.bit_length()) // _NUMBER_BITS


def agreeing_with(found: bytes, number: bytes) -> int:
    """Return how many numbers a column begins with that are all `number`."""
    return agreeing(found, number * (len(found) // NUMBER_LENGTH))


def first_difference(found: Sequence[object], expected: Sequence[object]) -> int:
    """Return the index of the first thing in which two lists of one length differ, or their length."""
    if found == expected:
        return len(found)
    return next(index for index, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other)
