"""`CompletedTransactions`: how transactions ended, kept for one to two times a TTL.

Records go to the newest of a row of numbered batch tables shared by the cluster. The number of a batch is the wall
clock divided by the TTL, so that controllers agree on it without asking each other; all but the two newest are
dropped.
"""

from __future__ import annotations

import heapq

from penstock.controller.metadata import layout
from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.metadata.records import AbortReason, CompletedBatch, CompletedTransaction, TransactionStatus
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import NoSuchSegmentError
from penstock.runtime.runtime import Runtime

_BATCHES_KEPT = 2


class CompletedTransactions:
    """Writes to the newest batch, reads all that are kept."""

    def __init__(self, records: RecordStore, runtime: Runtime, settings: ControllerSettings) -> None:
        self._records = records
        self._runtime = runtime
        self._settings = settings
        #: Numbers of the batches known to exist, ascending.
        self._batches: list[int] = []

    async def _load(self) -> None:
        found = [int(key) async for key, _ in self._records.walk(layout.COMPLETED_BATCHES, CompletedBatch)]
        self._batches = sorted(found)

    def _due(self) -> int:
        return self._runtime.wall_clock_ms() // self._settings.completed_transaction_ttl_ms

    async def _current(self) -> int:
        """Return the number of the batch to write to, creating it and dropping stale ones."""
        due = self._due()
        if not self._batches or self._batches[-1] < due:
            await self._load()
        if not self._batches or self._batches[-1] < due:
            await self._records.store.create_table(layout.completed_batch(due))
            await self._records.create(layout.COMPLETED_BATCHES, str(due), CompletedBatch(due))
            await self._load()
            for stale in self._batches[:-_BATCHES_KEPT]:
                await self._records.store.drop_table(layout.completed_batch(stale))
                await self._records.remove(layout.COMPLETED_BATCHES, str(stale))
            self._batches = self._batches[-_BATCHES_KEPT:]
        return self._batches[-1]

    async def add(
        self,
        scope: str,
        stream: str,
        transactions: list[TransactionId],
        status: TransactionStatus,
        abort_reason: AbortReason = AbortReason.NONE,
    ) -> None:
        """Record how transactions ended. A repetition changes nothing that matters."""
        record = CompletedTransaction(self._runtime.wall_clock_ms(), status, abort_reason)
        records: list[tuple[str, object, int]] = [
            (f"{scope}/{stream}/{transaction.text}", record, -(1 << 63)) for transaction in transactions
        ]
        try:
            await self._records.put_all(layout.completed_batch(await self._current()), records)
        except NoSuchSegmentError:  # Another controller dropped the batch: this one's clock is far behind.
            await self._load()
            await self._records.put_all(layout.completed_batch(await self._current()), records)

    async def status(self, scope: str, stream: str, transaction: TransactionId) -> TransactionStatus:
        """Return COMMITTED, ABORTED, or UNKNOWN. 1 read per batch."""
        found = await self.find(scope, stream, transaction)
        return TransactionStatus.UNKNOWN if found is None else found.status

    async def find(self, scope: str, stream: str, transaction: TransactionId) -> CompletedTransaction | None:
        """Return how a transaction ended; None if that is not known, or not any more. 1 read per batch."""
        if not self._batches or self._batches[-1] < self._due():
            await self._load()
        for number in reversed(self._batches):
            table = layout.completed_batch(number)
            try:
                found = await self._records.get(
                    table, f"{scope}/{stream}/{transaction.text}", CompletedTransaction
                )
            except NoSuchSegmentError:
                continue
            if found is not None:
                return found.record
        return None

    async def newest(self, scope: str, stream: str) -> list[tuple[TransactionId, TransactionStatus]]:
        """Return the newest completed transactions of a stream, newest first, at most the number set for listings.

        Walks all batches: a call for people and tools, not for a hot path.
        """
        await self._load()
        prefix = f"{scope}/{stream}/"
        best: list[tuple[int, str, TransactionStatus]] = []
        for number in self._batches:
            try:
                async for key, found in self._records.walk(layout.completed_batch(number), CompletedTransaction):
                    if key.startswith(prefix):
                        item = (found.record.completed_ms, key[len(prefix) :], found.record.status)
                        if len(best) < self._settings.completed_transactions_listed_max:
                            heapq.heappush(best, item)
                        else:
                            heapq.heappushpop(best, item)
            except NoSuchSegmentError:
                continue
        return [(TransactionId.from_text(text), status) for _, text, status in sorted(best, reverse=True)]
