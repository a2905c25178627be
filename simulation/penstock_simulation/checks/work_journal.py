"""`WorkJournal`: who owned which piece of work of several controllers, and who ended it.

What must hold at each moment, whatever the controllers believe: work passes from a controller to another one only when
the first is no member any more, and it ends once, by its owner. That it does end is checked when all is quiet, see
`check_controller`.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from penstock.controller.metadata import layout
from penstock.controller.metadata.pending_work import PendingWork
from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.metadata.work_claims import WorkClaim, WorkClaims
from penstock_simulation.mutations.mutation import watched_in_simulation
from penstock_simulation.simulated.cluster import MemberNames

#: Work whose announcement this task withdraws.
_WITHDRAWN: ContextVar[WorkClaim | None] = ContextVar("penstock_withdrawn_announcement", default=None)


class WorkJournal:
    """See the module. Works once it knows the `sessions` of the controllers; `found` is called with each violation.

    Attributes:
        counts: what went on, for the totals.
    """

    def __init__(self, found: Callable[[str], None]) -> None:
        self.sessions: MemberNames | None = None
        self.counts: Counter[str] = Counter()
        self._found = found
        #: By the id of the work: who owned it last and its attempt, as far as a write of that was answered.
        self._owners: dict[str, tuple[str, int]] = {}
        self._ended: set[str] = set()

    def announced(self, work: PendingWork) -> None:
        """Note that work is about to be announced by its owner."""
        if self._owners.setdefault(work.work_id, (work.owner, work.attempt))[0] == work.owner:
            self.counts["controllers: work announced"] += 1

    def taken_over(self, work: PendingWork) -> None:
        """Note that work has been taken over by its owner."""
        before, attempt = self._owners.get(work.work_id, ("", 0))
        if work.attempt < attempt:
            # The answer came late, as to a controller that was suspended: another one has taken it over since.
            return
        self._owners[work.work_id] = work.owner, work.attempt
        self.counts["controllers: work taken over"] += 1
        # A session that has ended does not begin again: a present member was a member when its work was taken.
        if self.sessions is not None and before in self.sessions.names and before != work.owner:
            self._found(f"{work.kind} of {work.subject}: {work.owner} took it over from {before}, which is alive")
        if work.work_id in self._ended:
            self._found(f"{work.kind} of {work.subject}: {work.owner} took it over when it had ended")

    def ended(self, claim: WorkClaim) -> None:
        """Note that an announcement was removed."""
        work = claim.work
        if work.work_id in self._ended:
            self._found(f"{work.kind} of {work.subject} ended twice, the second time by {work.owner}")
        owner, attempt = self._owners.get(work.work_id, (work.owner, work.attempt))
        if owner != work.owner and work.attempt > attempt:
            # It was taken over by a write whose reply was lost, and read back as its own.
            self.taken_over(work)
            owner = work.owner
        self._ended.add(work.work_id)
        if owner != work.owner:
            self._found(f"{work.kind} of {work.subject}: {work.owner} ended what {owner} had taken over")
        if work.attempt > 1:
            self.counts["controllers: work ended for another controller"] += 1


@contextmanager
def kept(journal: WorkJournal) -> Iterator[None]:
    """Keep `journal` meanwhile, by what all controllers in this process ask of their metadata."""
    put_original, put_all_original = RecordStore.put, RecordStore.put_all
    remove_original, withdraw_original = RecordStore.remove_version, WorkClaims.withdraw

    @functools.wraps(put_original)
    async def put(self: RecordStore, table: str, key: str, record: object, **options: int) -> int:
        version = await put_original(self, table, key, record, **options)
        if isinstance(record, PendingWork):
            journal.taken_over(record)
        return version

    @functools.wraps(put_all_original)
    async def put_all(self: RecordStore, table: str, records: Sequence[tuple[str, object, int]]) -> Sequence[int]:
        for _, record, _ in records:
            if isinstance(record, PendingWork):
                journal.announced(record)
        return await put_all_original(self, table, records)

    @functools.wraps(withdraw_original)
    async def withdraw(self: WorkClaims, claim: WorkClaim) -> None:
        token = _WITHDRAWN.set(claim)
        try:
            await withdraw_original(self, claim)
        finally:
            _WITHDRAWN.reset(token)

    @functools.wraps(remove_original)
    async def remove_version(self: RecordStore, table: str, key: str, version: int) -> None:
        await remove_original(self, table, key, version)
        claim = _WITHDRAWN.get()
        if table == layout.PENDING_WORK and claim is not None:
            journal.ended(claim)

    with (
        watched_in_simulation(RecordStore, "put", put),
        watched_in_simulation(RecordStore, "put_all", put_all),
        watched_in_simulation(RecordStore, "remove_version", remove_version),
        watched_in_simulation(WorkClaims, "withdraw", withdraw),
    ):
        yield
