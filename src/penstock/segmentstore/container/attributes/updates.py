"""Conditional updates of attributes: conditions and values in, new values out. Pure.

Source: segment-store 5.2; wire-protocol 2.4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from penstock.model.errors import BadAttributeError, InvalidArgumentError
from penstock.model.segments import NO_VALUE


class UpdateKind(IntEnum):
    """Condition of an update, and the value it stores. The numbers are those of the wire protocol."""

    NONE = 0
    REPLACE = 1
    REPLACE_IF_GREATER = 2
    ACCUMULATE = 3
    REPLACE_IF_EQUALS = 4


@dataclass(frozen=True, slots=True)
class AttributeUpdate:
    """One update; `expected` is only used by `REPLACE_IF_EQUALS`, `NO_VALUE` = absent."""

    attribute_id: bytes
    kind: UpdateKind
    value: int
    expected: int = NO_VALUE


def evaluate(segment: str, attributes: Mapping[bytes, int], updates: Sequence[AttributeUpdate]) -> dict[bytes, int]:
    """Return the values to store if every condition holds, `NO_VALUE` for those to remove.

    Raises:
        BadAttributeError: a condition does not hold.
        InvalidArgumentError: a sum leaves the signed 64 bits.
    """
    values: dict[bytes, int] = {}
    for update in updates:
        old = values.get(update.attribute_id, attributes.get(update.attribute_id, NO_VALUE))
        value = update.value
        match update.kind:
            case UpdateKind.NONE:
                holds = old == NO_VALUE
            case UpdateKind.REPLACE:
                holds = True
            case UpdateKind.REPLACE_IF_GREATER:
                holds = old == NO_VALUE or value > old
            case UpdateKind.ACCUMULATE:
                holds = True
                value += 0 if old == NO_VALUE else old
                if not -(1 << 63) <= value < 1 << 63:
                    raise InvalidArgumentError(f"{segment}: attribute {update.attribute_id.hex()} would become {value}")
            case UpdateKind.REPLACE_IF_EQUALS:
                holds = old == update.expected
        if not holds:
            raise BadAttributeError(segment, attribute_id=update.attribute_id, expected=update.expected, actual=old)
        values[update.attribute_id] = value
    return values
