"""`ValueHandle`: the life cycle of writers, transactions and readers of values."""

from __future__ import annotations

from types import TracebackType
from typing import Generic, TypeVar

from penstock.client.common.life_cycle import LifeCycle
from penstock.client.common.pickling import NotPicklable

Events = TypeVar("Events", bound=LifeCycle)


class ValueHandle(NotPicklable, Generic[Events]):
    """Base of the classes that encode or decode the events of a writer, a transaction or a reader of bytes.

    Each has its own `__aenter__`, which enters `events`.

    Attributes:
        events: the object of the bytes, which owns the life cycle.
    """

    def __init__(self, events: Events) -> None:
        self.events = events

    @property
    def is_open(self) -> bool:
        """True from opening to the first call of `close`."""
        return self.events.is_open

    @property
    def is_closed(self) -> bool:
        """True once closing is complete."""
        return self.events.is_closed

    async def close(self, timeout_s: float | None = None) -> None:
        """Finish accepted work and stop; see `close` of `events`."""
        await self.events.close(timeout_s)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.events.__aexit__(kind, error, traceback)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.events!r}>"
