"""`fixed`: a field of a settings class with a value that operators cannot change.

Such a field is a named constant of the program. Tests and simulations construct the class with another value; settings
files, variables and options cannot name it.
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar

T = TypeVar("T")

_MARK = "penstock.fixed"


def fixed(value: T) -> T:
    """Return the declaration of a field of a dataclass that has the constant `value` in every server."""
    return dataclasses.field(default=value, metadata={_MARK: True})


def is_fixed(field: dataclasses.Field[object]) -> bool:
    """Return whether `field` was declared with `fixed`."""
    return _MARK in field.metadata
