"""Ids of transactions as text, and in the form of the controller's messages."""

from __future__ import annotations

import uuid

from penstock.model.errors import InvalidArgumentError
from penstock.rpc import controller_pb2 as pb


def transaction_text(transaction: pb.TxnId) -> str:
    """Return a transaction's id as text, 32 hexadecimal digits."""
    return f"{transaction.highBits & (2**64 - 1):016x}{transaction.lowBits & (2**64 - 1):016x}"


def id_of(text: str) -> pb.TxnId:
    """Parse a transaction's id, 32 hexadecimal digits or a UUID. Raises `InvalidArgumentError`."""
    try:
        value = uuid.UUID(text).int
    except (ValueError, AttributeError, TypeError):
        raise InvalidArgumentError(
            f"transaction id {text!r}: give 32 hexadecimal digits, as Transaction.id, or a UUID"
        ) from None
    high, low = value >> 64, value & (2**64 - 1)
    return pb.TxnId(highBits=high - (high >> 63 << 64), lowBits=low - (low >> 63 << 64))
