"""`Ack`, as the blocking client gives it out. Written by hand: it waits in the caller's thread, not in a loop."""

from __future__ import annotations

from penstock.client.writing.ack import AckState, settled
from penstock.model.errors import ClosedError
from penstock.runtime.portal import Portal


class Ack(AckState):
    """The promise that an event becomes durable; `wait` for it."""

    __slots__ = ("_portal",)

    def __init__(self, portal: Portal) -> None:
        super().__init__()
        self._portal = portal

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until the event is durable.

        Raises `TimeoutError` when it is not within `timeout_s`, or the error that kept it from being written.
        """
        if not self.is_done:
            try:
                self._portal.call(settled(self), timeout_s)
            except ClosedError:
                # Closing settles every ack, perhaps since the check above.
                if not self.is_done:
                    raise
        if self.error is not None:
            raise self.error
