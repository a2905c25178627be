"""`LeaseTimers`: when each open transaction runs out of time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from penstock.controller.metadata.record_store import Versioned
from penstock.controller.metadata.records import ActiveTransaction
from penstock.controller.metadata.transaction_ids import TransactionId


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """Names a transaction of a stream."""

    scope: str
    stream: str
    transaction: TransactionId


class LeaseTimers:
    """One timer per transaction; `on_expiry(transaction, version)` is called once when it fires.

    `version` is the record version that the timer was armed with: a later ping, here or at another controller, has
    changed it, and the timer means nothing any more. At most `count_max` timers.
    """

    def __init__(self, on_expiry: Callable[[OpenTransaction, int], None], count_max: int) -> None:
        self._on_expiry = on_expiry
        self._count_max = count_max
        self._timers: dict[OpenTransaction, asyncio.TimerHandle] = {}
        self._records: dict[OpenTransaction, Versioned[ActiveTransaction]] = {}

    def __len__(self) -> int:
        return len(self._timers)

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another transaction."""
        return len(self._timers) >= self._count_max

    def arm(
        self, transaction: OpenTransaction, version: int, delay_ms: int, record: ActiveTransaction | None = None
    ) -> None:
        """Fire after `delay_ms`, in place of an earlier timer of this transaction. `record` is what `version` has."""
        self.disarm(transaction)
        if record is not None:
            self._records[transaction] = Versioned(record, version)
        self._timers[transaction] = asyncio.get_running_loop().call_later(
            max(0, delay_ms) / 1000, self._fire, transaction, version
        )

    def known(self, transaction: OpenTransaction) -> Versioned[ActiveTransaction] | None:
        """Return the record that a timer was armed with; it may have been written since, elsewhere."""
        return self._records.get(transaction)

    def disarm(self, transaction: OpenTransaction) -> None:
        """Forget the timer of a transaction, if there is one."""
        self._records.pop(transaction, None)
        timer = self._timers.pop(transaction, None)
        if timer is not None:
            timer.cancel()

    def clear(self) -> None:
        """Forget all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._records.clear()

    def _fire(self, transaction: OpenTransaction, version: int) -> None:
        del self._timers[transaction]
        self._records.pop(transaction, None)
        self._on_expiry(transaction, version)
