"""`WorkflowContext`: what every workflow works with."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from penstock.controller.locks import StreamLocks
from penstock.controller.metadata.catalog import Catalog
from penstock.controller.metadata.completed import CompletedTransactions
from penstock.controller.metadata.records import PendingWork, ScaleOrder, WorkKind
from penstock.controller.metadata.scope_records import (
    ChildWorkKind,
    KeyValueTableRecord,
    PendingChildWork,
    ReaderGroupRecord,
)
from penstock.controller.metadata.scoped_records import ScopedRecords
from penstock.controller.metadata.work_index import WorkIndex
from penstock.controller.segment_requests import SegmentRequests
from penstock.controller.settings import ControllerSettings
from penstock.controller.transactions.creations import Creations
from penstock.model.policies import StreamConfig
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
    index: WorkIndex
    segments: SegmentRequests
    locks: StreamLocks
    runtime: Runtime
    settings: ControllerSettings
    creations: Creations

    @property
    def host(self) -> str:
        """Names this controller in indexes."""
        return self.index.host

    def new_id(self) -> str:
        """Return a fresh UUID as text."""
        return str(uuid.UUID(bytes=self.runtime.random_id(), version=4))

    def work(
        self,
        kind: WorkKind,
        stream_id: str,
        *,
        configuration: StreamConfig | None = None,
        stream_cut: dict[int, int] | None = None,
        scale: ScaleOrder | None = None,
    ) -> PendingWork:
        """Return the announcement of a workflow that begins now."""
        now_ms = self.runtime.wall_clock_ms()
        return PendingWork(kind, self.host, stream_id, now_ms, configuration, stream_cut or {}, self.new_id(), scale)

    def child_work(self, kind: ChildWorkKind, life: str) -> PendingChildWork:
        """Return the announcement of a workflow on the group, table or scope with the id `life`."""
        return PendingChildWork(kind, self.host, life, self.runtime.wall_clock_ms(), self.new_id())
