"""`Ack`: the promise that written events become durable.

There is one per append block, shared by all events in it, because they become durable together: a write costs
no object of its own. The functions are for the writers: applications only wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable
from functools import partial

from penstock.client.common.pickling import NotPicklable
from penstock.model.errors import PenstockError

_log = logging.getLogger(__name__)

#: Called once for an event: with None when it is durable, else with the error.
OnDelivery = Callable[[PenstockError | None], object]


class AckState(NotPicklable):
    """Base of all kinds of ack. It is settled once, in the writer's event loop."""

    __slots__ = ("_error", "_is_settled", "_open_parts", "_then")

    def __init__(self) -> None:
        self._is_settled = False
        self._error: PenstockError | None = None
        self._then: list[Callable[[], None]] = []
        # After its events were moved to other blocks: how many of those are not settled yet.
        self._open_parts = 0

    @property
    def is_done(self) -> bool:
        """True once the events are durable, or are known to have failed."""
        return self._is_settled

    @property
    def error(self) -> PenstockError | None:
        """Why the events could not be written; None while that is open or when they are durable.

        `OutcomeUnknownError` means that they may have been stored nevertheless.
        """
        return self._error

    def __repr__(self) -> str:
        if not self._is_settled:
            return "<Ack: not durable yet>"
        return "<Ack: durable>" if self._error is None else f"<Ack: failed: {self._error}>"


class Ack(AckState):
    """Resolves when the event it was returned for is durable. Await it, or call `wait` with a limit."""

    __slots__ = ()

    def __await__(self) -> Generator[object, None, None]:
        return self._result().__await__()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the event is durable.

        Raises `TimeoutError` if it is not durable within `timeout_s`, or the error that prevented the write.
        """
        async with asyncio.timeout(timeout_s):
            await self._result()

    async def _result(self) -> None:
        await settled(self)
        if self._error is not None:
            raise self._error


def settle(ack: AckState, error: PenstockError | None = None) -> None:
    """Record that the events of an ack are durable, or failed. Only the first call counts."""
    if ack._is_settled:
        return
    ack._error = error
    ack._is_settled = True
    then, ack._then = ack._then, []
    for callback in then:
        callback()


def when_done(ack: AckState, callback: Callable[[], None]) -> None:
    """Call `callback` in the event loop once an ack is settled; immediately if it is."""
    if ack._is_settled:
        callback()
    else:
        ack._then.append(callback)


async def settled(ack: AckState) -> None:
    """Wait until an ack is settled, either way."""
    if not ack._is_settled:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        when_done(ack, lambda: None if future.done() else future.set_result(None))
        await future


def follow(ack: AckState, parts: Iterable[AckState]) -> None:
    """Settle an ack when all `parts` are settled, with the error of one of them if there is any."""
    pending = [part for part in parts if part is not ack]
    ack._open_parts = len(pending)
    if not pending:
        settle(ack)
    for part in pending:
        when_done(part, partial(_part_done, ack, part))


def _part_done(ack: AckState, part: AckState) -> None:
    ack._open_parts -= 1
    if part.error is not None:
        settle(ack, part.error)
    elif ack._open_parts == 0:
        settle(ack)


def deliver(on_delivery: OnDelivery, ack: AckState) -> None:
    """Call a user's callback with the outcome of an event."""
    try:
        on_delivery(ack.error)
    except Exception:  # noqa: BLE001  # the user's code: what others wait for, in the same block, must not hang on it
        _log.exception("a delivery callback failed")
