"""`TransactionIndex`: which controller manages which transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence

from penstock.controller.metadata import layout
from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.metadata.records import TransactionIndexEntry
from penstock.controller.metadata.transaction_ids import TransactionId


class TransactionIndex:
    """An entry per transaction that is not completed.

    Entries are written before the transaction and removed after it: a crash can leave a superfluous entry, but never a
    missing one.
    """

    def __init__(self, records: RecordStore) -> None:
        self._records = records

    async def add_transaction(
        self, scope: str, stream: str, transaction: TransactionId, entry: TransactionIndexEntry
    ) -> None:
        """Add a transaction's entry, or take one over."""
        (key,) = self.keys(scope, stream, [transaction])
        await self._records.put_with_others(layout.TRANSACTION_INDEX, key, entry)

    @staticmethod
    def keys(scope: str, stream: str, transactions: Iterable[TransactionId]) -> list[str]:
        """Return the keys of the entries of transactions."""
        return [f"{scope}/{stream}/{transaction.text}" for transaction in transactions]

    async def remove_transactions(self, scope: str, stream: str, transactions: list[TransactionId]) -> None:
        """Remove the entries of completed transactions. Ids are never reused, so a late duplicate does nothing."""
        if transactions:
            await self._records.remove(layout.TRANSACTION_INDEX, *self.keys(scope, stream, transactions))

    async def pages(self) -> AsyncIterator[Sequence[tuple[str, str, TransactionId, TransactionIndexEntry]]]:
        """Yield scope, stream, id and entry of every transaction that is not completed, a page at a time."""
        async for page in self._records.walk_pages(layout.TRANSACTION_INDEX, TransactionIndexEntry):
            entries: list[tuple[str, str, TransactionId, TransactionIndexEntry]] = []
            for key, found in page:
                scope, stream, text = key.split("/")
                entries.append((scope, stream, TransactionId.from_text(text), found.record))
            yield entries
