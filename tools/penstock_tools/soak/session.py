"""`Session`: what all clients of the soak run share: connections, their counts, and the list of broken promises."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TypeVar

from penstock.client.client import Client
from penstock.client.settings import ClientSettings
from penstock.model.errors import PenstockError
from penstock_tools.soak.checks import GroupOnce, KeyOrder, TransactionsWhole

T = TypeVar("T")

EVENTS, PAYMENTS, REGISTERS = "soak/events", "soak/payments", "soak/registers"
FOLLOWER, SHARED = "soak/follower", "soak/shared"

#: How long one call of a client may take: longer than any fault and what a busy machine adds. Slowness is measured; it
#: is not a broken promise.
PATIENCE_S = 1800.0
#: A reader that is silent for this long is declared dead by its group. Only a reader that lives for longer than that
#: can find it out, so it is less than the usual life of a reader.
READER_TIMEOUT_S = 90.0
#: Bound of the lease of a transaction.
LEASE_S = 300.0
_PAUSE_AFTER_ERROR_S = 1.0
_PROBLEMS_KEPT_MAX = 1000


class Session:
    """See the module.

    Attributes:
        acknowledged: number of acknowledged events, by key.
        counts: calls and errors, for the report.
        is_over: set when no more may be written.
    """

    def __init__(self, uri: str, seed: int, directory: Path) -> None:
        self._uri = uri
        self._seed = seed
        self._violations_path = directory / "violations.jsonl"
        self._errors_path = directory / "client-errors.jsonl"
        self.counts: Counter[str] = Counter()
        self.acknowledged: dict[str, int] = {}
        self.order = KeyOrder()
        self.group = GroupOnce()
        self.transactions = TransactionsWhole()
        self.is_over = asyncio.Event()
        self.is_read = asyncio.Event()
        self.violation_count = 0

    def rng(self, name: str) -> random.Random:
        """Return the generator of one client."""
        return random.Random(f"{self._seed}/{name}")

    def connect(self) -> Client:
        """Open a client that waits for its servers as long as a fault may last."""
        settings = ClientSettings(retry_time_max_s=PATIENCE_S, close_timeout_s=PATIENCE_S, transaction_lease_s=LEASE_S)
        return Client(self._uri, settings)

    def check(self, found: Iterable[str]) -> None:
        """Record broken promises."""
        for text in found:
            self.violation_count += 1
            if self.violation_count <= _PROBLEMS_KEPT_MAX:
                self._append(self._violations_path, text)

    def error(self, name: str, error: PenstockError) -> None:
        """Record an error of a call. Whether its outcome is known is for the caller."""
        self.counts[f"error {type(error).__name__}"] += 1
        if sum(count for kind, count in self.counts.items() if kind.startswith("error ")) <= _PROBLEMS_KEPT_MAX:
            self._append(self._errors_path, f"{name}: {type(error).__name__}: {error}")

    def _append(self, path: Path, text: str) -> None:
        with path.open("a") as file:
            file.write(json.dumps({"at": round(time.time(), 3), "text": text}) + "\n")

    async def patiently(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call that may be repeated until it succeeds."""
        while True:
            try:
                return await call()
            except PenstockError as error:
                self.error(name, error)
                await asyncio.sleep(_PAUSE_AFTER_ERROR_S)

    async def pause(self, seconds: float) -> bool:
        """Wait, or until the run is over; return whether it is."""
        try:
            async with asyncio.timeout(seconds):
                await self.is_over.wait()
        except TimeoutError:
            return False
        return True

    def status(self) -> dict[str, object]:
        """Return the counts so far."""
        return {
            "acknowledged": sum(self.acknowledged.values()),
            "read": self.order.count,
            "group_read": self.group.count,
            "group_repeated": self.group.repeated_count,
            "committed": self.transactions.committed_count,
            "committed_events": self.transactions.committed_event_count,
            "aborted": self.transactions.aborted_count,
            "incomplete": self.transactions.incomplete_count,
            "violations": self.violation_count,
            "counts": dict(sorted(self.counts.items())),
        }
