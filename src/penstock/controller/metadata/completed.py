"""`CompletedTransactions`: the outcomes of transactions, kept for one to two times a TTL.

Records go to the newest of a sequence of numbered batch tables shared by the cluster. A batch is the newest for a TTL,
then another one begins, and all but the two newest are dropped. The record of a batch has the time at which it began. A
time that is later than a controller's own clock was written by a fast clock: it is replaced by the present time, so
that a wrong clock delays the next batch by one TTL at most, however fast it was.
"""

from __future__ import annotations

import heapq
import logging

from penstock.controller.metadata import layout
from penstock.controller.metadata.record_store import RecordStore, Versioned
from penstock.controller.metadata.records import AbortReason, CompletedBatch, CompletedTransaction, TransactionStatus
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import MetadataConflictError, NoSuchSegmentError
from penstock.runtime.runtime import Runtime

_BATCHES_KEPT = 2
_logger = logging.getLogger(__name__)


class CompletedTransactions:
    """Writes to the newest batch, and reads all retained ones."""

    def __init__(self, records: RecordStore, runtime: Runtime, settings: ControllerSettings) -> None:
        self._records = records
        self._runtime = runtime
        self._settings = settings
        #: The known batches, by ascending numbers.
        self._batches: list[Versioned[CompletedBatch]] = []

    async def _load(self) -> None:
        found = [each async for _, each in self._records.walk(layout.COMPLETED_BATCHES, CompletedBatch)]
        self._batches = sorted(found, key=lambda each: each.record.number)

    def _is_current(self) -> bool:
        """Return whether the newest known batch began less than a TTL ago, and not in the future."""
        if not self._batches:
            return False
        age_ms = self._runtime.wall_clock_ms() - self._begun_ms(self._batches[-1].record)
        return 0 <= age_ms < self._settings.completed_transaction_ttl_ms

    def _begun_ms(self, batch: CompletedBatch) -> int:
        if batch.begun_ms >= 0:
            return batch.begun_ms
        return batch.number * self._settings.completed_transaction_ttl_ms

    async def _current(self) -> int:
        """Return the number of the batch to write to; begin a new one and drop stale ones if it is due."""
        if not self._is_current():
            await self._load()
        if not self._is_current():
            await self._begin()
        return self._batches[-1].record.number

    async def _begin(self) -> None:
        """Begin another batch, or correct the time of a batch that was begun by a fast clock."""
        now_ms = self._runtime.wall_clock_ms()
        newest = self._batches[-1] if self._batches else None
        if newest is not None and self._begun_ms(newest.record) > now_ms:
            corrected = CompletedBatch(newest.record.number, now_ms)
            try:
                await self._records.put(
                    layout.COMPLETED_BATCHES, str(corrected.number), corrected, version=newest.version
                )
            except MetadataConflictError:
                _logger.debug("another controller has corrected or dropped batch %d", corrected.number)
            await self._load()
            if self._batches:
                return
            newest = None
        number = now_ms // self._settings.completed_transaction_ttl_ms
        if newest is not None:
            number = max(number, newest.record.number + 1)
        await self._records.store.create_table(layout.completed_batch(number))
        await self._records.create(layout.COMPLETED_BATCHES, str(number), CompletedBatch(number, now_ms))
        await self._load()
        for stale in self._batches[:-_BATCHES_KEPT]:
            await self._records.store.drop_table(layout.completed_batch(stale.record.number))
            await self._records.remove(layout.COMPLETED_BATCHES, str(stale.record.number))
        self._batches = self._batches[-_BATCHES_KEPT:]

    async def add(
        self,
        scope: str,
        stream: str,
        transactions: list[TransactionId],
        status: TransactionStatus,
        abort_reason: AbortReason = AbortReason.NONE,
    ) -> None:
        """Record how transactions ended. Idempotent, except for the recorded time."""
        record = CompletedTransaction(self._runtime.wall_clock_ms(), status, abort_reason)
        records: list[tuple[str, object, int]] = [
            (f"{scope}/{stream}/{transaction.text}", record, -(1 << 63)) for transaction in transactions
        ]
        try:
            await self._records.put_all(layout.completed_batch(await self._current()), records)
        except NoSuchSegmentError:  # Another controller has begun two batches since this one last read them.
            await self._load()
            await self._records.put_all(layout.completed_batch(await self._current()), records)

    async def status(self, scope: str, stream: str, transaction: TransactionId) -> TransactionStatus:
        """Return COMMITTED, ABORTED, or UNKNOWN. 1 read per batch."""
        found = await self.find(scope, stream, transaction)
        return TransactionStatus.UNKNOWN if found is None else found.status

    async def find(self, scope: str, stream: str, transaction: TransactionId) -> CompletedTransaction | None:
        """Return how a transaction ended; None if that is not known, or no longer. 1 read per batch."""
        if not self._is_current():
            await self._load()
        for batch in reversed(self._batches):
            table = layout.completed_batch(batch.record.number)
            try:
                found = await self._records.get(table, f"{scope}/{stream}/{transaction.text}", CompletedTransaction)
            except NoSuchSegmentError:
                continue
            if found is not None:
                return found.record
        return None

    async def newest(self, scope: str, stream: str, *, since_ms: int) -> list[tuple[TransactionId, TransactionStatus]]:
        """Return the newest completed transactions of a stream, newest first, up to the limit set for listings.

        Those of before `since_ms` are left out: of a deleted stream of the same name, if that is the time of creation.
        Reads all batches: for inspection, not for a hot path.
        """
        await self._load()
        prefix = f"{scope}/{stream}/"
        best: list[tuple[int, str, TransactionStatus]] = []
        for batch in self._batches:
            table = layout.completed_batch(batch.record.number)
            try:
                async for key, found in self._records.walk(table, CompletedTransaction):
                    if key.startswith(prefix) and found.record.completed_ms >= since_ms:
                        item = (found.record.completed_ms, key[len(prefix) :], found.record.status)
                        if len(best) < self._settings.completed_transactions_listed_max:
                            heapq.heappush(best, item)
                        else:
                            heapq.heappushpop(best, item)
            except NoSuchSegmentError:
                continue
        return [(TransactionId.from_text(text), status) for _, text, status in sorted(best, reverse=True)]
