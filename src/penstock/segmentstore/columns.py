"""Columns of 64-bit numbers, big-endian and consecutive in bytes, created and compared as a whole.

The contents of very many log frames of one kind are checked this way, without a Python step for each.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

#: Fewer are not worth a column, and more are never one: the reader must yield to other tasks after each column.
COLUMN_LENGTH_MIN = 16
COLUMN_LENGTH_MAX = 1024
NUMBER_LENGTH = 8
_NUMBER_BITS = 8 * NUMBER_LENGTH
#: A column of ones, and one that counts from 0, each as one long integer.
_ONES = int.from_bytes((1).to_bytes(NUMBER_LENGTH, "big") * COLUMN_LENGTH_MAX, "big")
_COUNTS = int.from_bytes(struct.pack(f">{COLUMN_LENGTH_MAX}Q", *range(COLUMN_LENGTH_MAX)), "big")


class BatchSizer:
    """How many of the next frames are read together, and how many are read individually before.

    If other frames are interspersed, a column ends at them; it is expected that about as many follow each as preceded
    it. If columns are rarely found, attempts become rare.

    Attributes:
        length: number of frames to read together.
    """

    __slots__ = ("_pause", "_singles", "length")

    def __init__(self) -> None:
        self.length: int = COLUMN_LENGTH_MIN
        self._singles = 0
        #: Number of frames to read individually after an attempt that finds next to nothing.
        self._pause = 1

    def takes_single(self) -> bool:
        """Whether to read the next frame individually; it is counted as read."""
        if not self._singles:
            return False
        self._singles -= 1
        return True

    def note(self, found: int, scanned: int) -> None:
        """Note how many frames an attempt found before the first other frame."""
        if found < min(COLUMN_LENGTH_MIN, scanned):
            self._singles = self._pause
            self._pause = min(2 * self._pause, COLUMN_LENGTH_MIN)
            self.length = max(self.length // 2, COLUMN_LENGTH_MIN)
            return
        self._pause = 1
        if found < scanned:
            self._singles = 1
            self.length = found
        else:
            self.length = min(2 * self.length, COLUMN_LENGTH_MAX)


class Table:
    """Rows of equal length in bytes, from which columns are taken."""

    __slots__ = ("_bytes", "_row_length")

    def __init__(self, rows: Sequence[bytes], *, indent: int = 0) -> None:
        """`indent`: zero bytes before each row, so that its numbers are aligned to their length."""
        length = indent + len(rows[0])
        filler = bytes(-length % NUMBER_LENGTH)
        self._bytes = memoryview(b"".join((bytes(indent), (filler + bytes(indent)).join(rows), filler)))
        self._row_length = length + len(filler)

    def numbers(self, at: int) -> bytes:
        """Return the column of 64-bit numbers at a byte of each row, counting the indent; a multiple of 8."""
        return self._bytes.cast("Q")[at // NUMBER_LENGTH :: self._row_length // NUMBER_LENGTH].tobytes()

    def halves(self, at: int, *, is_signed: bool = False) -> tuple[int, ...]:
        """Return the 32-bit numbers at a byte of each row, counting the indent; a multiple of 4."""
        column = self._bytes.cast("I")[at // 4 :: self._row_length // 4]
        return struct.unpack(f">{len(column)}{'i' if is_signed else 'I'}", column.tobytes())


def progression(first: int, step: int, count: int) -> bytes:
    """Return the column of `count` numbers from `first` on, in steps of `step`.

    All of them must be below 2**64, and `count` at most `COLUMN_LENGTH_MAX`.
    """
    shift = _NUMBER_BITS * (COLUMN_LENGTH_MAX - count)
    return ((_ONES >> shift) * first + (_COUNTS >> shift) * step).to_bytes(NUMBER_LENGTH * count, "big")


def packed(numbers: Iterable[int]) -> bytes:
    """Return a column of numbers, each at least 0 and below 2**64."""
    found = list(numbers)
    return struct.pack(f">{len(found)}Q", *found)


def agreeing(found: bytes, expected: bytes) -> int:
    """Return how many numbers two columns of equal length have in common before the first difference."""
    if found == expected:
        return len(found) // NUMBER_LENGTH
    differing = int.from_bytes(found, "big") ^ int.from_bytes(expected, "big")
    return (8 * len(found) - differing.bit_length()) // _NUMBER_BITS


def agreeing_with(found: bytes, number: bytes) -> int:
    """Return how many numbers at the start of a column equal `number`."""
    return agreeing(found, number * (len(found) // NUMBER_LENGTH))


def first_difference(found: Sequence[object], expected: Sequence[object]) -> int:
    """Return the index of the first difference of two lists of equal length, or their length."""
    if found == expected:
        return len(found)
    return next(index for index, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other)
