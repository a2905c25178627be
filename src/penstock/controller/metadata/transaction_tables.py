"""`TransactionTables`: the open transactions of one incarnation of a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from penstock.controller.metadata import layout
from penstock.controller.metadata.codec import decode
from penstock.controller.metadata.record_store import RecordStore, Versioned
from penstock.controller.metadata.records import ActiveTransaction, EpochWithTransactions
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.model.errors import MetadataConflictError, NoSuchSegmentError, TableNotEmptyError
from penstock.model.segments import VERSION_ABSENT


class TransactionTables:
    """One table of transactions per epoch that has had any, and a table of those epochs.

    An empty table of an earlier epoch is dropped when a later epoch gets its first transaction.
    """

    def __init__(self, records: RecordStore, scope: str, stream: str, stream_id: str) -> None:
        self.records = records
        self.scope = scope
        self.stream = stream
        self.stream_id = stream_id
        self.key: tuple[str, str, str] = (scope, stream, stream_id)
        self.name: str = f"{scope}/{stream}"

    def _table(self, epoch: int) -> str:
        return layout.transactions_in_epoch(*self.key, epoch)

    async def check_exists(self) -> None:
        """Return if this incarnation of the stream has its tables. Raises `NoSuchSegmentError` if not. 1 read."""
        await self.records.get(layout.epochs_with_transactions(*self.key), "0", EpochWithTransactions)

    async def transaction(self, transaction: TransactionId) -> Versioned[ActiveTransaction] | None:
        """Read a transaction that is not completed; None if there is none with this id. 1 read."""
        if transaction.epoch < 0:
            return None
        try:
            return await self.records.get(self._table(transaction.epoch), transaction.text, ActiveTransaction)
        except NoSuchSegmentError:
            return None

    async def transactions_of(
        self, epoch: int, transactions: Sequence[TransactionId]
    ) -> list[Versioned[ActiveTransaction] | None]:
        """Read transactions of one epoch, in order; None for each missing one. 1 request."""
        table = self._table(epoch)
        try:
            rows = await self.records.get_rows(table, [transaction.text for transaction in transactions])
        except NoSuchSegmentError:
            return [None] * len(transactions)
        return [self.records.decoded(table, row, ActiveTransaction) for row in rows]

    async def create_transaction(self, transaction: TransactionId, record: ActiveTransaction) -> int:
        """Write the record of a new transaction; return its version.

        Raises `MetadataConflictError` if it exists, or if its epoch has ended and its table was dropped meanwhile.
        """
        table = self._table(transaction.epoch)
        try:
            return await self.records.put_with_others(table, transaction.text, record, version=VERSION_ABSENT)
        except NoSuchSegmentError:
            await self._create_table(transaction.epoch)
        try:
            return await self.records.put_with_others(table, transaction.text, record, version=VERSION_ABSENT)
        except NoSuchSegmentError as error:
            raise MetadataConflictError(f"{self.name}: epoch {transaction.epoch} has just ended") from error

    async def _create_table(self, epoch: int) -> None:
        """Create the table of an epoch that gets its first transaction; drop the empty tables of earlier epochs."""
        noted, record = layout.epochs_with_transactions(*self.key), EpochWithTransactions(epoch)
        # Noted before the table exists, so that the deletion of the stream finds the table. Noted again afterwards: a
        # controller that has dropped the table in between then sees another version, and keeps the note.
        await self.records.put(noted, str(epoch), record)
        await self.records.store.create_table(self._table(epoch))
        await self.records.put(noted, str(epoch), record)
        earlier = [
            (int(key), found.version)
            async for key, found in self.records.walk(noted, EpochWithTransactions)
            if int(key) < epoch
        ]
        for number, version in sorted(earlier):
            try:
                # No transaction begins there any more; one that is just being created starts again in the new epoch.
                await self.records.store.drop_table(self._table(number), must_be_empty=True)
                await self.records.remove_version(noted, str(number), version)
            except (TableNotEmptyError, MetadataConflictError):
                continue

    async def put_transaction(self, transaction: TransactionId, record: ActiveTransaction, version: int) -> int:
        """Replace a transaction's record read at `version`; return the new version."""
        try:
            table = self._table(transaction.epoch)
            return await self.records.put_with_others(table, transaction.text, record, version=version)
        except NoSuchSegmentError as error:
            raise MetadataConflictError(f"{self.name}: transaction {transaction.text} is gone") from error

    async def remove_transactions(self, epoch: int, transactions: list[TransactionId]) -> None:
        """Remove the records of completed transactions; missing ones are ignored."""
        try:
            await self.records.remove(self._table(epoch), *(transaction.text for transaction in transactions))
        except NoSuchSegmentError:
            return

    async def epochs_with_transactions(self) -> AsyncIterator[int]:
        """Yield the epochs that have, or had, transactions."""
        try:
            async for key, _ in self.records.walk(layout.epochs_with_transactions(*self.key), EpochWithTransactions):
                yield int(key)
        except NoSuchSegmentError:
            return

    async def transactions_page(
        self, epoch: int, *, limit: int, token: bytes
    ) -> tuple[Sequence[tuple[TransactionId, ActiveTransaction]], bytes]:
        """Return about `limit` transactions of an epoch that are not completed, and the token to continue from.

        An empty page ends the listing. 1 request.
        """
        table = self._table(epoch)
        try:
            page = await self.records.store.rows(table, limit=limit, token=token)
        except NoSuchSegmentError:
            return (), token
        found = [
            (TransactionId.from_text(row.key), decode(ActiveTransaction, row.value, table=table, key=row.key))
            for row in page.rows
        ]
        return found, page.token

    async def transactions(self) -> AsyncIterator[tuple[TransactionId, Versioned[ActiveTransaction]]]:
        """Yield every transaction that is not completed."""
        async for epoch in self.epochs_with_transactions():
            try:
                async for key, found in self.records.walk(self._table(epoch), ActiveTransaction):
                    yield TransactionId.from_text(key), found
            except NoSuchSegmentError:
                continue
