"""`LeaseTimers`: the lease timers of open transactions, by this controller's own clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from penstock.controller.metadata.record_store import Versioned
from penstock.controller.metadata.records import ActiveTransaction
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.runtime.observed_time import ObservedTime


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """Identifies a transaction of a stream."""

    scope: str
    stream: str
    transaction: TransactionId


@dataclass(slots=True)
class _Armed:
    """A timer. `since_s` and `end_s` are in `ObservedTime`; `found` is the record that it was armed with, if known."""

    handle: asyncio.TimerHandle
    version: int
    since_s: float
    end_s: float
    found: Versioned[ActiveTransaction] | None


class LeaseTimers:
    """One timer per transaction; `on_expiry(transaction, version)` is called once when it fires.

    `version` is the record version that the timer was armed with: a later ping, here or at another controller, changes
    it, and the timer is then obsolete. At most `count_max` timers. Time in which this process could not receive pings
    does not count.
    """

    def __init__(self, on_expiry: Callable[[OpenTransaction, int], None], count_max: int) -> None:
        self._on_expiry = on_expiry
        self._count_max = count_max
        self._time = ObservedTime()
        self._timers: dict[OpenTransaction, _Armed] = {}
        #: Arrival times of pings that are unanswered, or failed; the newest `count_max`.
        self._pings: dict[OpenTransaction, float] = {}

    def __len__(self) -> int:
        return len(self._timers)

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another transaction."""
        return len(self._timers) >= self._count_max

    def arm(
        self, transaction: OpenTransaction, version: int, delay_ms: int, record: ActiveTransaction | None = None
    ) -> None:
        """Fire after `delay_ms`, replacing an earlier timer of this transaction. `record`: the record at `version`."""
        self._cancel(transaction)
        self._time.start()
        now_s, delay_s = self._time.now_s(), max(0, delay_ms) / 1000
        found = None if record is None else Versioned(record, version)
        handle = asyncio.get_running_loop().call_later(delay_s, self._due, transaction)
        self._timers[transaction] = _Armed(handle, version, now_s, now_s + delay_s, found)

    def known(self, transaction: OpenTransaction) -> Versioned[ActiveTransaction] | None:
        """Return the record that a timer was armed with; another controller may have changed it since."""
        armed = self._timers.get(transaction)
        return None if armed is None else armed.found

    def elapsed_ms(self, transaction: OpenTransaction, version: int) -> int | None:
        """Return how long this controller has known a version of a record; None if it has no timer for it."""
        armed = self._timers.get(transaction)
        if armed is None or armed.version != version:
            return None
        return round(1000 * (self._time.now_s() - armed.since_s))

    def ping_arrived(self, transaction: OpenTransaction) -> None:
        """Record the arrival of a ping. It shows that the client is alive, even if the ping cannot be stored."""
        self._pings.pop(transaction, None)
        self._pings[transaction] = self._time.now_s()
        if len(self._pings) > self._count_max:
            del self._pings[next(iter(self._pings))]

    def ping_answered(self, transaction: OpenTransaction) -> None:
        """Remove the noted ping: its effect is stored, or it has none."""
        self._pings.pop(transaction, None)

    def since_ping_ms(self, transaction: OpenTransaction) -> int | None:
        """Return the time since the arrival of an unanswered ping; None if there is none."""
        arrived_s = self._pings.get(transaction)
        return None if arrived_s is None else round(1000 * (self._time.now_s() - arrived_s))

    def disarm(self, transaction: OpenTransaction) -> None:
        """Remove the timer of a transaction, if there is one."""
        self._pings.pop(transaction, None)
        self._cancel(transaction)
        self._stop_if_empty()

    def clear(self) -> None:
        """Remove all timers."""
        for transaction in list(self._timers):
            self._cancel(transaction)
        self._pings.clear()
        self._stop_if_empty()

    def _cancel(self, transaction: OpenTransaction) -> None:
        armed = self._timers.pop(transaction, None)
        if armed is not None:
            armed.handle.cancel()

    def _stop_if_empty(self) -> None:
        if not self._timers:
            self._time.stop()

    def _due(self, transaction: OpenTransaction) -> None:
        armed = self._timers[transaction]
        left_s = armed.end_s - self._time.now_s()
        if left_s > _ROUNDING_S:
            # The process was suspended meanwhile: pings sent to it may still be unread.
            armed.handle = asyncio.get_running_loop().call_later(left_s, self._due, transaction)
            return
        del self._timers[transaction]
        self._stop_if_empty()
        self._on_expiry(transaction, armed.version)


#: A timer may fire early by this time: times in seconds are rounded.
_ROUNDING_S = 0.001
