"""Records of many numbers as bytes: consecutive columns, big-endian, without an object per number.

A `PackedRecord` is stored in its own format (version 2); every other record as a map of its fields (version 1).
Packed records of earlier releases, which were maps of fields too, are still read.
"""

from __future__ import annotations

import struct
import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, TypeVar

import msgspec

if TYPE_CHECKING:
    from typing import Self

N = TypeVar("N", int, float)

_IS_LITTLE_ENDIAN = sys.byteorder == "little"


class PackedRecord(ABC):
    """A record with its own stored format. `kind_number` identifies its kind, and is never reused."""

    __slots__ = ()
    kind_number: ClassVar[int]

    @abstractmethod
    def packed(self) -> bytes:
        """Return the stored form, without version, checksum and kind."""

    @classmethod
    @abstractmethod
    def unpacked(cls, payload: bytes) -> Self:
        """Decode the result of `packed`. Raises `ValueError` or `struct.error` for anything else."""

    @classmethod
    def from_fields(cls, payload: bytes) -> Self:
        """Read a record of version 1, a MessagePack map of its fields. Raises `msgspec.MsgspecError`."""
        return msgspec.msgpack.decode(payload, type=cls)


def _stored(column: array[N]) -> bytes:
    if _IS_LITTLE_ENDIAN:
        column.byteswap()
    return column.tobytes()


def int32s(values: Iterable[int]) -> bytes:
    """Return numbers as a column of int32."""
    return _stored(array("i", values))


def int64s(values: Iterable[int]) -> bytes:
    """Return numbers as a column of int64."""
    return _stored(array("q", values))


def float64s(values: Iterable[float]) -> bytes:
    """Return numbers as a column of float64."""
    return _stored(array("d", values))


class ColumnReader:
    """Reads a header and consecutive columns. Raises `ValueError` when there are too few bytes."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._at = 0

    def take(self, length_bytes: int) -> bytes:
        """Return the next bytes."""
        start, self._at = self._at, self._at + length_bytes
        if self._at > len(self._payload):
            raise ValueError(f"{self._at} bytes are needed, there are {len(self._payload)}")
        return self._payload[start : self._at]

    def header(self, layout: struct.Struct) -> tuple[int, ...]:
        """Return the numbers of a header."""
        return layout.unpack(self.take(layout.size))

    def int32s(self, count: int) -> array[int]:
        """Return a column of int32."""
        return loaded(array("i"), self.take(4 * count))

    def int64s(self, count: int) -> array[int]:
        """Return a column of int64."""
        return loaded(array("q"), self.take(8 * count))

    def float64s(self, count: int) -> array[float]:
        """Return a column of float64."""
        return loaded(array("d"), self.take(8 * count))

    def end(self) -> None:
        """Check that no bytes are left. Raises `ValueError` otherwise."""
        if self._at != len(self._payload):
            raise ValueError(f"{len(self._payload) - self._at} bytes after the end")


def loaded(column: array[N], stored: bytes) -> array[N]:
    """Fill an empty array with a stored column; return it."""
    column.frombytes(stored)
    if _IS_LITTLE_ENDIAN:
        column.byteswap()
    return column
