"""`WorkflowContext`: what every workflow works with."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from penstock.controller.deferred_removals import DeferredRemovals
from penstock.controller.locks import StreamLocks
from penstock.controller.metadata.announcements import Announcement, Announcements
from penstock.controller.metadata.catalog import Catalog
from penstock.controller.metadata.completed import CompletedTransactions
from penstock.controller.metadata.listed_streams import ListedStreams
from penstock.controller.metadata.marked_streams import MarkedStreams
from penstock.controller.metadata.pending_work import Order, PendingWork, Subject
from penstock.controller.metadata.scope_records import KeyValueTableRecord, ReaderGroupRecord
from penstock.controller.metadata.scoped_records import ScopedRecords
from penstock.controller.metadata.transaction_index import TransactionIndex
from penstock.controller.segment_requests import SegmentRequests
from penstock.controller.settings import ControllerSettings
from penstock.controller.transactions.commit_order import CommitOrder
from penstock.controller.transactions.committed import CommittedTransactions
from penstock.controller.transactions.creations import Creations
from penstock.runtime.runtime import Runtime


@dataclass(frozen=True, slots=True)
class WorkflowContext:
    """The controller's stores, locks and limits.

    Locks are taken in the order stream, group or table; then mark stream; then scope,
    or the subscribers of a stream. They keep callers of one controller apart, so that nobody is refused who can wait;
    controllers are kept apart by announcements and versions alone.
    """

    catalog: Catalog
    groups: ScopedRecords[ReaderGroupRecord]
    key_value_tables: ScopedRecords[KeyValueTableRecord]
    completed: CompletedTransactions
    announcements: Announcements
    index: TransactionIndex
    marked: MarkedStreams
    retained: ListedStreams
    segments: SegmentRequests
    locks: StreamLocks
    runtime: Runtime
    settings: ControllerSettings
    creations: Creations
    removals: DeferredRemovals
    commit_order: CommitOrder
    committed: CommittedTransactions

    @property
    def host(self) -> str:
        """Names this controller in announcements and indexes."""
        return self.announcements.owner

    def new_id(self) -> str:
        """Return a fresh UUID as text."""
        return str(uuid.UUID(bytes=self.runtime.random_id(), version=4))

    def work(self, subject: Subject, order: Order, life: str) -> PendingWork:
        """Return the announcement of work on the `life` of a subject that begins now."""
        return PendingWork(subject, order, life, self.host, self.runtime.wall_clock_ms(), self.new_id())

    async def begin(self, subject: Subject, order: Order, life: str, *, in_turn: bool = True) -> Announcement:
        """Announce work on the `life` of a subject. Nothing of it may be done before.

        `in_turn` False: it is a part of what has begun, and comes before what waits. Raises `WorkElsewhereError` when
        something else is announced there, or it is the turn of somebody else.
        """
        return await self.announcements.announce(self.work(subject, order, life), in_turn=in_turn)
