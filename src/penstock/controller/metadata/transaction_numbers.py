"""`TransactionNumbers`: numbers for transactions, unique across all controllers and their restarts."""

from __future__ import annotations

import asyncio

from penstock.controller.metadata import layout
from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.metadata.records import TransactionCounter
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import MetadataConflictError, OutcomeUnknownError
from penstock.model.segments import VERSION_ABSENT


class TransactionNumbers:
    """Hands out numbers from a range reserved with one versioned write. A range is never reused.

    After a lost reply the range may be reserved and unused: numbers are skipped, never repeated. `counter` is the key
    of the counter, `range_count` the size of a range (None: `transaction_id_range`).
    """

    def __init__(
        self,
        records: RecordStore,
        settings: ControllerSettings,
        *,
        counter: str = layout.COUNTER,
        range_count: int | None = None,
    ) -> None:
        self._records = records
        self._settings = settings
        self._counter = counter
        self._range_count = range_count or settings.transaction_id_range
        self._next = 0
        self._end = 0
        self._refresh = asyncio.Lock()

    async def next(self) -> int:
        """Return a number (1 or more) that was never returned before."""
        while self._next == self._end:
            async with self._refresh:  # Concurrent callers share one refresh.
                if self._next == self._end:
                    await self._reserve()
        number = self._next
        self._next += 1
        return number

    async def _reserve(self) -> None:
        for attempt in range(self._settings.conflict_attempts_max):
            found = await self._records.get(layout.TRANSACTION_COUNTER, self._counter, TransactionCounter)
            start, version = (1, VERSION_ABSENT) if found is None else (found.record.next_number, found.version)
            end = start + self._range_count
            try:
                await self._records.put(
                    layout.TRANSACTION_COUNTER, self._counter, TransactionCounter(end), version=version
                )
            except (MetadataConflictError, OutcomeUnknownError):
                if attempt + 1 == self._settings.conflict_attempts_max:
                    raise
            else:
                self._next, self._end = start, end
                return
