"""Transaction ids: 128 bits made of an epoch and a counter.

``high = (epoch << 32) | (counter >> 63)``, ``low = counter & (2^63 - 1)``. The low half is never negative as an int64:
the Rust client joins the halves with sign extension, and a negative low half would overwrite the epoch.

Source: controller-api 8.3 and 10 (H1).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_LOW_BITS = 63
_HALVES = struct.Struct(">qq")


@dataclass(frozen=True, slots=True, order=True)
class TransactionId:
    """The two halves as signed 64-bit numbers, as in the wire protocol."""

    high: int
    low: int

    @classmethod
    def of(cls, epoch: int, counter: int) -> TransactionId:
        """Return the id of the transaction with number `counter` (96 bits at most) in `epoch`."""
        return cls((epoch << 32) | (counter >> _LOW_BITS), counter & ((1 << _LOW_BITS) - 1))

    @property
    def epoch(self) -> int:
        """The epoch whose segments the transaction's segments belong to."""
        return self.high >> 32

    @property
    def text(self) -> str:
        """The id as a UUID: the key under which it is stored."""
        # Called a dozen times per transaction: an object of the class UUID would take five times as long.
        digits = _HALVES.pack(self.high, self.low).hex()
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    @classmethod
    def from_text(cls, text: str) -> TransactionId:
        """Decode the result of `text`. Raises `ValueError`."""
        raw = bytes.fromhex(text.replace("-", ""))
        if len(raw) != _HALVES.size:
            raise ValueError(f"{text!r} is no id of a transaction")
        return cls(*_HALVES.unpack(raw))
