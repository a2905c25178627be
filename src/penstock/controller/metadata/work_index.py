"""`WorkIndex`: workflows and transactions that somebody has to finish."""

from __future__ import annotations

from collections.abc import AsyncIterator

from penstock.controller.metadata import layout
from penstock.controller.metadata.announcements import Announcement, Announcements
from penstock.controller.metadata.records import PendingWork, TransactionIndexEntry
from penstock.controller.metadata.scope_records import ChildKind, PendingChildWork
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.metadata.typed import Tables
from penstock.controller.settings import ControllerSettings
from penstock.model.names import SCOPE_NAME_LENGTH_MAX, STREAM_NAME_LENGTH_MAX

#: Longer names are never given: they need not fit in a key.
_NAME_LENGTH_MAX = max(SCOPE_NAME_LENGTH_MAX, STREAM_NAME_LENGTH_MAX)

StreamWork = Announcement[PendingWork]
ChildWork = Announcement[PendingChildWork]


class WorkIndex:
    """At most one pending workflow per stream, group, table and scope, and an entry per uncompleted transaction.

    Entries are written before the work they announce and removed after it: a crash leaves an entry too many, never one
    too few. `host` names this controller; it is set when the controller starts.
    """

    def __init__(self, tables: Tables, settings: ControllerSettings) -> None:
        self._tables = tables
        self.host = ""
        self._streams = Announcements(tables, layout.PENDING_WORK, PendingWork, settings)
        self._children = Announcements(tables, layout.PENDING_CHILD_WORK, PendingChildWork, settings)

    # Streams.

    async def add(self, scope: str, stream: str, work: PendingWork) -> StreamWork | None:
        """Announce a workflow; return None when another one of this stream is not finished."""
        return await self._streams.announce(f"{scope}/{stream}", work)

    async def claim(self, scope: str, stream: str) -> StreamWork | None:
        """Return the unfinished workflow of a stream, taken over if it was another controller's.

        None if there is none, or for a name that is too long to have one. Raises `WorkElsewhereError` for the work of
        a controller that has started later.
        """
        if max(len(scope), len(stream)) > _NAME_LENGTH_MAX:
            return None
        return await self._streams.claim(f"{scope}/{stream}", self.host)

    async def confirm(self, announcement: StreamWork) -> None:
        """Raise `MetadataConflictError` if another controller has taken the work over, or finished it."""
        await self._streams.confirm(announcement)

    async def withdraw(self, announcement: StreamWork) -> None:
        """Note that the workflow is finished."""
        await self._streams.withdraw(announcement)

    def is_unfinished(self, scope: str, stream: str) -> bool:
        """Say whether this controller has begun something on the stream that it has not brought to its end."""
        return self._streams.is_unfinished(f"{scope}/{stream}")

    async def pending(self) -> AsyncIterator[tuple[str, str]]:
        """Yield scope and stream of every unfinished workflow."""
        async for key in self._streams.keys():
            scope, _, stream = key.partition("/")
            yield scope, stream

    # Groups, tables and scopes.

    async def add_child(self, kind: ChildKind, scope: str, name: str, work: PendingChildWork) -> ChildWork | None:
        """Announce a workflow on a group, table or scope; return None when another one of it is not finished."""
        return await self._children.announce(_child_key(kind, scope, name), work)

    async def claim_child(self, kind: ChildKind, scope: str, name: str) -> ChildWork | None:
        """Return the unfinished workflow of a group, table or scope; see `claim`."""
        if max(len(scope), len(name)) > _NAME_LENGTH_MAX:
            return None
        return await self._children.claim(_child_key(kind, scope, name), self.host)

    async def withdraw_child(self, announcement: ChildWork) -> None:
        """Note that the workflow is finished."""
        await self._children.withdraw(announcement)

    def is_unfinished_child(self, kind: ChildKind, scope: str, name: str) -> bool:
        """As `is_unfinished`, of a group, table or scope."""
        return self._children.is_unfinished(_child_key(kind, scope, name))

    async def pending_children(self) -> AsyncIterator[tuple[ChildKind, str, str]]:
        """Yield kind, scope and name of every unfinished workflow on a group, table or scope."""
        async for key in self._children.keys():
            kind, scope, name = key.split("/")
            yield ChildKind(kind), scope, name

    # Transactions.

    async def add_transaction(
        self, scope: str, stream: str, transaction: TransactionId, entry: TransactionIndexEntry
    ) -> None:
        """Announce a transaction, or take one over."""
        await self._tables.put(layout.TRANSACTION_INDEX, f"{scope}/{stream}/{transaction.text}", entry)

    async def remove_transactions(self, scope: str, stream: str, transactions: list[TransactionId]) -> None:
        """Note that transactions are completed. Their ids are never used again, so a late duplicate does nothing."""
        if transactions:
            keys = [f"{scope}/{stream}/{transaction.text}" for transaction in transactions]
            await self._tables.remove(layout.TRANSACTION_INDEX, *keys)

    async def transactions(self) -> AsyncIterator[tuple[str, str, TransactionId, TransactionIndexEntry]]:
        """Yield scope, stream, id and entry of every transaction that is not completed."""
        async for key, found in self._tables.walk(layout.TRANSACTION_INDEX, TransactionIndexEntry):
            scope, stream, text = key.split("/")
            yield scope, stream, TransactionId.from_text(text), found.record


def _child_key(kind: ChildKind, scope: str, name: str) -> str:
    return f"{kind.value}/{scope}/{name}"
