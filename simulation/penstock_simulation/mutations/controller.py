"""Planted bugs of the controller's workflows: announcements that do not fence, unfinished workflows. See `catalog`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from penstock.controller.metadata import layout
from penstock.controller.metadata.catalog import Catalog
from penstock.controller.metadata.pending_work import Subject
from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.metadata.work_claims import WorkClaim, WorkClaims
from penstock.controller.workflow_runner import WorkflowRunner
from penstock_simulation.mutations.mutation import Mutation, patched, short_profile
from penstock_simulation.mutations.peers import CONTROLLERS
from penstock_simulation.simulated.late_requests import LateRequestSettings


def _withdraw_whatever_is_there() -> AbstractContextManager[None]:
    async def withdraw(self: WorkClaims, claim: WorkClaim) -> None:
        await self._records.remove(layout.PENDING_WORK, claim.subject.key)
        self._unfinished.discard(claim.subject)

    return patched(WorkClaims, "withdraw", withdraw)


@contextmanager
def _announce_without_a_fence() -> Iterator[None]:
    original = RecordStore.put_all

    async def put_all(self: RecordStore, table: str, records: list[tuple[str, object, int]]) -> object:
        if table != layout.PENDING_WORK:
            return await original(self, table, records)
        written = await original(self, table, records[:1])
        return [*written, *(version for _, _, version in records[1:])]

    with patched(RecordStore, "put_all", put_all):
        yield


def _unlist_whatever_is_there() -> AbstractContextManager[None]:
    async def remove_stream(self: Catalog, scope: str, stream: str, stream_id: str) -> None:
        self._stream_ids.pop((scope, stream), None)
        await self.in_scope(
            scope, lambda scope_id: self._records.remove(layout.streams_in_scope(scope, scope_id), stream)
        )

    return patched(Catalog, "remove_stream", remove_stream)


def _give_up_after_the_retries() -> AbstractContextManager[None]:
    def finish_what_is_left(self: WorkflowRunner, subject: Subject) -> None:
        """Do nothing: leave it to the next restart."""

    return patched(WorkflowRunner, "finish_what_is_left", finish_what_is_left)


_LATE = LateRequestSettings(duplicate_rate=0.3, stuck_rate=0.05, delay_s_max=6.0)
#: Several stores, with outages longer than the retries of a controller that tries once.
_OUTAGES = replace(
    short_profile("outages", "streams", kinds=("Crash", "Partition"), gap_s=1.0),
    controller_attempts_max=1,
    store_count_max=3,
    # Limits of memory and logs do not matter here.
    refused_rate=0.0,
    cache_bytes_min=4096 * 1024,
    log_bytes_max=1024 * 1024,
)

CONTROLLER_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "withdraw everything announced", "a late duplicate does nothing",
        # Work is left unfinished only if the controller crashes after its announcement was removed.
        replace(
            CONTROLLERS, workloads=("events", "streams"), share=1.0, controller_count_min=1, controller_count_max=1,
            controller_fault_gap_s=1.0, late_requests=LateRequestSettings(0.9, 0.0, 4.0),
        ),
        _withdraw_whatever_is_there,
    ),
    Mutation(
        "announce without a fence", "a late request begins nothing again",
        replace(short_profile("late requests", "streams"), late_requests=_LATE), _announce_without_a_fence,
    ),
    Mutation(
        "unlist whatever has the name", "a late duplicate does nothing",
        replace(short_profile("late requests", "streams"), late_requests=_LATE), _unlist_whatever_is_there,
    ),
    Mutation(
        "give work up after its retries", "work that was begun ends without a restart",
        # No crashes: the controller is restarted together with a store, and would then find the unfinished work.
        replace(_OUTAGES, plan=replace(_OUTAGES.plan, kinds=("Partition",))), _give_up_after_the_retries,
    ),
)  # fmt: skip
