"""Events of the soak run. Each contains all that a check needs: key, number, length and checksum of its padding.

An event of a writer: ``key number length checksum`` and padding. An event of a transaction:
``label plan index count length checksum`` and padding, where `plan` is ``commit`` or ``abort``.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from functools import cache

#: Lengths of paddings in bytes, with the share of events that have them: from events of a few bytes to large ones.
PADDING_SHARES = ((0, 30), (80, 40), (900, 20), (8_000, 9), (100_000, 1))
COMMIT, ABORT = "commit", "abort"


class DamagedEventError(Exception):
    """The bytes of an event are not those of any event that was written."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """An event of a writer: the `number`-th one of its key, from 0."""

    key: str
    number: int


@dataclass(frozen=True, slots=True)
class InTransaction:
    """An event of a transaction: number `index` of `count`. `plan`: `COMMIT` or `ABORT`, decided at its beginning."""

    label: str
    plan: str
    index: int
    count: int


@cache
def _padding(length: int) -> tuple[bytes, int]:
    data = (b"penstock " * (length // 9 + 1))[:length]
    return data, zlib.crc32(data)


def padding_length(rng: random.Random) -> int:
    """Draw the length of a padding."""
    lengths, weights = zip(*PADDING_SHARES, strict=True)
    return int(rng.choices(lengths, weights)[0])


def numbered(event: Numbered, length: int) -> bytes:
    """Return the bytes of an event with `length` bytes of padding."""
    data, checksum = _padding(length)
    return b"%s %d %d %d %s" % (event.key.encode(), event.number, length, checksum, data)


def in_transaction(event: InTransaction, length: int) -> bytes:
    """Return the bytes of an event with `length` bytes of padding."""
    data, checksum = _padding(length)
    head = f"{event.label} {event.plan} {event.index} {event.count} {length} {checksum} "
    return head.encode() + data


def parse_numbered(data: bytes) -> Numbered:
    """Return the event of these bytes. Raises `DamagedEventError`."""
    key, number = _fields(data, 2)
    return Numbered(key, int(number))


def parse_in_transaction(data: bytes) -> InTransaction:
    """Return the event of these bytes. Raises `DamagedEventError`."""
    label, plan, index, count = _fields(data, 4)
    return InTransaction(label, plan, int(index), int(count))


def _fields(data: bytes, count: int) -> list[str]:
    """Return the first fields; check length and checksum, which follow them, against the padding."""
    parts = data.split(b" ", count + 2)
    try:
        *fields, length, checksum, padding = parts
        is_whole = len(fields) == count and len(padding) == int(length) and zlib.crc32(padding) == int(checksum)
    except ValueError:
        is_whole = False
    if not is_whole:
        raise DamagedEventError(f"{len(data)} bytes that begin with {data[:60]!r}")
    return [field.decode() for field in fields]
