"""Errors of commands, besides those of what they call."""

from __future__ import annotations

from penstock.model.errors import InvalidArgumentError, PenstockError


class InvalidLineError(InvalidArgumentError):
    """A line of the input is no JSON object with the field that holds the key. `keys`: those of the lines before."""

    def __init__(self, number: int, field: str, why: str, keys: list[str]) -> None:
        super().__init__(f"line {number} of the input has no routing key in the field {field!r}: {why}")
        self.keys = keys


class NotReadyError(PenstockError):
    """The server cannot serve clients now."""
