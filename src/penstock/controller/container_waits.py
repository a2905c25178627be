"""`waiting_for`: names the segment that the current call waits for, so that waits are counted by container."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class WaitObserver(Protocol):
    """Counts what one call waits for. Tasks that the call starts inherit its observer, and may outlive the call."""

    def begin_wait(self, segment: str) -> None:
        """Note that a request for `segment`, a full name, begins."""

    def end_wait(self, segment: str) -> None:
        """Note that the request has ended."""


#: The observer of the call that runs in this context; None outside a call, as in background work.
observer_of_call: ContextVar[WaitObserver | None] = ContextVar("observer_of_call", default=None)


@contextmanager
def waiting_for(segment: str) -> Iterator[None]:
    """Count the block as a wait of the current call for the container of `segment`, retries included."""
    observer = observer_of_call.get()
    if observer is None:
        yield
        return
    observer.begin_wait(segment)
    try:
        yield
    finally:
        observer.end_wait(segment)
