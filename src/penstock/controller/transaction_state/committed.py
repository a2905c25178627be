"""`CommittedTransactions`: moves committed transactions out of the tables of open ones, in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import islice

from penstock.controller.metadata.completed import CompletedTransactions
from penstock.controller.metadata.records import TransactionStatus
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.metadata.transaction_index import TransactionIndex
from penstock.controller.metadata.transaction_tables import TransactionTables
from penstock.controller.settings import ControllerSettings
from penstock.controller.work.background_work import BackgroundWork

_Key = tuple[str, str, str]


class CommittedTransactions:
    """Moves rows with status COMMITTED to the completed transactions; one task per stream that has any.

    The row holds the outcome as well as the completed one does, so there is no hurry: the first rows wait
    `removal_delay_ms` for more, and `removal_rows_max` are moved at a time. The index entry is removed last: if the
    controller dies in between, the rest is left to the one that takes over its transactions.
    """

    def __init__(
        self,
        completed: CompletedTransactions,
        index: TransactionIndex,
        background: BackgroundWork,
        settings: ControllerSettings,
    ) -> None:
        self._completed = completed
        self._index = index
        self._background = background
        self._settings = settings
        self._waiting: dict[_Key, dict[TransactionId, None]] = {}
        #: Set for streams whose transactions must be moved immediately.
        self._hurry: dict[_Key, asyncio.Event] = {}
        self._moves: dict[_Key, asyncio.Task[None]] = {}

    def add(self, tables: TransactionTables, transactions: Iterable[TransactionId]) -> None:
        """Move transactions that are COMMITTED, or removed already, after a delay."""
        added = dict.fromkeys(transactions)
        if not added:
            return
        waiting = self._waiting.get(tables.key)
        if waiting is not None:
            waiting.update(added)
            return
        self._waiting[tables.key] = added
        self._hurry[tables.key] = asyncio.Event()
        self._moves[tables.key] = self._background.tasks.start(
            f"move of committed transactions of {tables.name}", self._serve(tables)
        )

    async def moved(self, scope: str, stream: str) -> None:
        """Move the transactions of a stream that this controller has committed at once, and wait until done."""
        for key, task in list(self._moves.items()):
            if key[:2] == (scope, stream):
                self._hurry[key].set()
                await asyncio.wait([task])

    async def _serve(self, tables: TransactionTables) -> None:
        key = tables.key
        waiting, hurry = self._waiting[key], self._hurry[key]
        try:
            while waiting:
                if len(waiting) < self._settings.removal_rows_max and not hurry.is_set():
                    await self._delay(hurry)
                moving = list(islice(waiting, self._settings.removal_rows_max))

                async def move(moving: list[TransactionId] = moving) -> None:
                    await self._move(tables, moving)

                await self._background.until_done(f"move of committed transactions of {tables.name}", move)
                for transaction in moving:
                    del waiting[transaction]
        finally:
            del self._waiting[key], self._hurry[key], self._moves[key]

    async def _delay(self, hurry: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(self._settings.removal_delay_ms / 1000):
                await hurry.wait()
        except TimeoutError:
            return

    async def _move(self, tables: TransactionTables, transactions: list[TransactionId]) -> None:
        by_epoch: dict[int, list[TransactionId]] = {}
        for transaction in transactions:
            by_epoch.setdefault(transaction.epoch, []).append(transaction)
        ended: list[TransactionId] = []
        for epoch, some in by_epoch.items():
            rows = await tables.transactions_of(epoch, some)
            committed = [
                transaction
                for transaction, row in zip(some, rows, strict=True)
                if row is not None and row.record.status is TransactionStatus.COMMITTED
            ]
            if committed:
                await self._completed.add(tables.scope, tables.stream, committed, TransactionStatus.COMMITTED)
                await tables.remove_transactions(epoch, committed)
            ended += committed
            ended += [transaction for transaction, row in zip(some, rows, strict=True) if row is None]
        await self._index.remove_transactions(tables.scope, tables.stream, ended)
