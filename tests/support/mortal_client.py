"""A client whose process ends at one of its calls, or does not get the call's outcome."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.model.errors import OutcomeUnknownError


class Death(BaseException):
    """The process of a driver or task ends here."""


class MortalPart:
    """Wraps a part of a client: a fault happens at the `at`-th call of any such part."""

    def __init__(self, part: object, calls: Iterator[int], at: int, how: str) -> None:
        self._part, self._calls, self._at, self._how = part, calls, at, how

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if name in ("id", "name", "close", "scan", "keys"):
            return found

        async def call(*args: Any, **options: Any) -> Any:
            is_now = next(self._calls) == self._at
            if is_now and self._how == "before":
                raise Death(name)
            result = await found(*args, **options)
            if is_now:
                raise Death(name) if self._how == "behind" else OutcomeUnknownError(f"the reply of {name} was lost")
            if name in ("table", "begin_transaction"):
                return MortalPart(result, self._calls, self._at, self._how)
            return result

        return call
