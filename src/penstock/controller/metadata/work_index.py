"""`WorkIndex`: workflows and transactions that somebody has to finish."""

from __future__ import annotations

from collections.abc import AsyncIterator

from penstock.controller.metadata import layout
from penstock.controller.metadata.records import PendingWork, TransactionIndexEntry
from penstock.controller.metadata.scope_records import ChildKind, PendingChildWork
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.metadata.typed import Tables
from penstock.model.names import SCOPE_NAME_LENGTH_MAX, STREAM_NAME_LENGTH_MAX

#: Longer names are never given: they need not fit in a key.
_NAME_LENGTH_MAX = max(SCOPE_NAME_LENGTH_MAX, STREAM_NAME_LENGTH_MAX)


class WorkIndex:
    """At most one pending workflow per stream, group, table and scope, and an entry per uncompleted transaction.

    Entries are written before the work they announce and removed after it: a crash leaves an entry too many, never one
    too few.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def add(self, scope: str, stream: str, work: PendingWork) -> bool:
        """Announce a workflow; return False when another one of this stream is not finished."""
        return await self._tables.create(layout.PENDING_WORK, f"{scope}/{stream}", work)

    async def get(self, scope: str, stream: str) -> PendingWork | None:
        """Return the unfinished workflow of a stream; None for a name that is too long to have one."""
        if max(len(scope), len(stream)) > _NAME_LENGTH_MAX:
            return None
        found = await self._tables.get(layout.PENDING_WORK, f"{scope}/{stream}", PendingWork)
        return None if found is None else found.record

    async def remove(self, scope: str, stream: str) -> None:
        """Note that the stream's workflow is finished."""
        await self._tables.remove(layout.PENDING_WORK, f"{scope}/{stream}")

    async def pending(self) -> AsyncIterator[tuple[str, str]]:
        """Yield scope and stream of every unfinished workflow."""
        async for row in self._tables.walk_rows(layout.PENDING_WORK):
            scope, _, stream = row.key.partition("/")
            yield scope, stream

    async def add_child(self, kind: ChildKind, scope: str, name: str, work: PendingChildWork) -> bool:
        """Announce a workflow on a group, table or scope; return False when another one of it is not finished."""
        return await self._tables.create(layout.PENDING_CHILD_WORK, f"{kind.value}/{scope}/{name}", work)

    async def get_child(self, kind: ChildKind, scope: str, name: str) -> PendingChildWork | None:
        """Return the unfinished workflow of a group, table or scope; None for a name that is too long to have one."""
        if max(len(scope), len(name)) > _NAME_LENGTH_MAX:
            return None
        found = await self._tables.get(layout.PENDING_CHILD_WORK, f"{kind.value}/{scope}/{name}", PendingChildWork)
        return None if found is None else found.record

    async def remove_child(self, kind: ChildKind, scope: str, name: str) -> None:
        """Note that the workflow is finished."""
        await self._tables.remove(layout.PENDING_CHILD_WORK, f"{kind.value}/{scope}/{name}")

    async def pending_children(self) -> AsyncIterator[tuple[ChildKind, str, str]]:
        """Yield kind, scope and name of every unfinished workflow on a group, table or scope."""
        async for row in self._tables.walk_rows(layout.PENDING_CHILD_WORK):
            kind, scope, name = row.key.split("/")
            yield ChildKind(kind), scope, name

    async def add_transaction(
        self, scope: str, stream: str, transaction: TransactionId, entry: TransactionIndexEntry
    ) -> None:
        """Announce a transaction, or take one over."""
        await self._tables.put(layout.TRANSACTION_INDEX, f"{scope}/{stream}/{transaction.text}", entry)

    async def remove_transactions(self, scope: str, stream: str, transactions: list[TransactionId]) -> None:
        """Note that transactions are completed."""
        if transactions:
            keys = [f"{scope}/{stream}/{transaction.text}" for transaction in transactions]
            await self._tables.remove(layout.TRANSACTION_INDEX, *keys)

    async def transactions(self) -> AsyncIterator[tuple[str, str, TransactionId, TransactionIndexEntry]]:
        """Yield scope, stream, id and entry of every transaction that is not completed."""
        async for key, found in self._tables.walk(layout.TRANSACTION_INDEX, TransactionIndexEntry):
            scope, stream, text = key.split("/")
            yield scope, stream, TransactionId.from_text(text), found.record
