"""`WorkflowContext`: the dependencies of all workflows."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from penstock.controller.locks import StreamLocks
from penstock.controller.metadata.catalog import Catalog
from penstock.controller.metadata.completed import CompletedTransactions
from penstock.controller.metadata.listed_streams import ListedStreams
from penstock.controller.metadata.marked_streams import MarkedStreams
from penstock.controller.metadata.pending_work import Order, PendingWork, Subject
from penstock.controller.metadata.scope_records import KeyValueTableRecord, ReaderGroupRecord
from penstock.controller.metadata.scoped_records import ScopedRecords
from penstock.controller.metadata.transaction_index import TransactionIndex
from penstock.controller.metadata.work_claims import WorkClaim, WorkClaims
from penstock.controller.segment_requests import SegmentRequests
from penstock.controller.settings import ControllerSettings
from penstock.controller.transaction_state.commit_order import CommitOrder
from penstock.controller.transaction_state.committed import CommittedTransactions
from penstock.controller.transaction_state.creations import Creations
from penstock.controller.watermarks.writer_marks import MarkWrites
from penstock.controller.work.deferred_removals import DeferredRemovals
from penstock.runtime.runtime import Runtime


@dataclass(frozen=True, slots=True)
class WorkflowContext:
    """The controller's stores, locks and limits.

    Locks are taken in the order stream, group or table; then mark stream; then scope,
    or the subscribers of a stream. They let callers of one controller wait instead of failing; between controllers only
    announcements and versions exclude concurrent work.
    """

    catalog: Catalog
    groups: ScopedRecords[ReaderGroupRecord]
    key_value_tables: ScopedRecords[KeyValueTableRecord]
    completed: CompletedTransactions
    claims: WorkClaims
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
        """This controller's name in announcements and indexes."""
        return self.claims.owner

    @property
    def mark_writes(self) -> MarkWrites:
        """What writes of writers' marks need."""
        return MarkWrites(self.marked, self.settings.conflict_attempts_max)

    def new_id(self) -> str:
        """Return a fresh UUID as text."""
        return str(uuid.UUID(bytes=self.runtime.random_id(), version=4))

    def work(self, subject: Subject, order: Order, life: str) -> PendingWork:
        """Return the announcement of work on incarnation `life` of a subject that begins now."""
        return PendingWork(subject, order, life, self.host, self.runtime.wall_clock_ms(), self.new_id())

    async def begin(self, subject: Subject, order: Order, life: str, *, in_turn: bool = True) -> WorkClaim:
        """Announce work on incarnation `life` of a subject. Call it before any of the work is done.

        `in_turn` False: it is part of work already begun, and precedes waiting work. Raises `WorkElsewhereError` when
        other work is announced there, or another controller's turn comes first.
        """
        return await self.claims.announce(self.work(subject, order, life), in_turn=in_turn)
