"""Planted bugs in the isolation of stalled resources from other work, and of owners from each other. See `catalog`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from penstock.model.errors import CorruptionError
from penstock.runtime.disk import Disk
from penstock.runtime.work import PoolSettings, WorkPools, WorkQueue
from penstock.segmentstore.container.reads.storage_turns import StorageTurns
from penstock.segmentstore.container.reads.tail_waits import TailWaits
from penstock.segmentstore.container.transients import TransientSegments
from penstock.segmentstore.ingest_budget import IngestBudget
from penstock.segmentstore.ingest_control import IngestControl
from penstock.segmentstore.own_transients import OwnTransients
from penstock.segmentstore.tier1 import log_recovery
from penstock.segmentstore.tier1.log_recovery import ChainFile
from penstock_simulation.mutations.mutation import Mutation, patched, short_profile

#: Cache size: small, so that most reads go to storage.
_SMALL_CACHE = 16 * 1024


@contextmanager
def _use_one_pool() -> Iterator[None]:
    original = WorkPools.pool
    originally_closed = WorkQueue.close
    shared: dict[WorkQueue, None] = {}

    def pool(self: WorkPools, name: str, settings: PoolSettings) -> WorkQueue:
        if self.pools:
            return next(iter(self.pools))
        made = original(self, name, settings)
        shared[made] = None
        return made

    def close(self: WorkQueue) -> None:
        if self not in shared:
            originally_closed(self)

    with patched(WorkPools, "pool", pool), patched(WorkQueue, "close", close):
        yield


def _let_reads_wait_behind_appends() -> AbstractContextManager[None]:
    def begin_delay(self: IngestControl) -> None:
        """Block reads until there is room for appends."""

    return patched(IngestControl, "_begin_delay", begin_delay)


def _lose_reads_of_what_was_put_away() -> AbstractContextManager[None]:
    def activated(self: TailWaits, segment: object) -> None:
        """Leave the waits where they are."""

    return patched(TailWaits, "activated", activated)


def _give_nobody_the_next_turn() -> AbstractContextManager[None]:
    def give_next(self: StorageTurns) -> None:
        """Leave the waiting requests in the queue."""

    return patched(StorageTurns, "_give_next", give_next)


def _give_each_connection_a_budget() -> AbstractContextManager[None]:
    def lets_read(self: IngestBudget, contributor: object, held_bytes: int) -> bool:
        return held_bytes <= self._share_bytes_max

    return patched(IngestBudget, "lets_read", lets_read)


@contextmanager
def _read_late_writes() -> Iterator[None]:
    original = log_recovery._chain

    def good_end(disk: Disk, directory: str, file: ChainFile) -> int:
        try:
            tail = log_recovery._scan_tail(disk, f"{directory}/{file.name}", file.name, file.header)
        except CorruptionError:
            return file.end
        return max(file.end, tail.file.end) if tail is not None else file.end

    def chain(disk: Disk, directory: str, container_id: int, *rest: object) -> Sequence[ChainFile]:
        *before, last = original(disk, directory, container_id, *rest)  # type: ignore[arg-type]  # passed on unchanged
        return [*(replace(file, end=good_end(disk, directory, file)) for file in before), last]

    with patched(log_recovery, "_chain", chain):
        yield


@contextmanager
def _let_transients_take_all_slots() -> Iterator[None]:
    def check(self: TransientSegments | OwnTransients, name: str) -> None:
        """Accept one more in any case."""

    with patched(TransientSegments, "check", check), patched(OwnTransients, "_check", check):
        yield


def _leave_transients_behind() -> AbstractContextManager[None]:
    async def delete_all(self: OwnTransients) -> None:
        self._made = {}

    return patched(OwnTransients, "delete_all", delete_all)


_HANGING = short_profile("long-term storage hangs", "bytes", "tables", "crowd", "attributes", kinds=("DiskStall",))
#: Long enough for all threads to hang and for the log to be affected.
_HANGS = replace(
    _HANGING, plan=replace(_HANGING.plan, lasts_s_max=20.0, mean_gap_s_min=2.0, mean_gap_s_max=4.0), pace=4.0,
)  # fmt: skip

_CROWDED = short_profile("a stalled log under many connections", "writers", "bytes", "crowd", kinds=("DiskStall",))
#: Writers that keep sending while the log stalls, to a store with a small ingest budget.
_STALLED = replace(
    _CROWDED, plan=replace(_CROWDED.plan, lasts_s_max=20.0, mean_gap_s_min=2.0, mean_gap_s_max=4.0), pace=16.0,
    ingest_bytes_max=8 * 1024, refused_rate=0.0,
)  # fmt: skip

ISOLATION_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "use one pool of threads for everything", "a long-term storage that hangs stops no log",
        _HANGS, _use_one_pool,
    ),
    Mutation(
        "let reads wait behind appends", "requests after appends that cannot be accepted are answered within a bound",
        _STALLED, _let_reads_wait_behind_appends,
    ),
    Mutation(
        "give each connection a budget of its own", "memory is bounded over connections",
        short_profile("a crowd of connections to a stalled log", "connections", kinds=("DiskStall",)),
        _give_each_connection_a_budget,
    ),
    Mutation(
        "let transient segments take all slots", "one client's large events stop no creation of others",
        short_profile("transient segments without end", "transients"), _let_transients_take_all_slots,
    ),
    Mutation(
        "leave transient segments behind", "transient segments go with their connection",
        short_profile("transient segments whose clients go", "transients"), _leave_transients_behind,
    ),
    Mutation(
        "lose the reads of segments that were put away", "a read that waits is woken",
        replace(
            short_profile("segments come and go under their readers", "followers", "crowd"), has_lowest_limits=True
        ),
        _lose_reads_of_what_was_put_away,
    ),
    Mutation(
        "skip the next turn at storage", "reads of storage end",
        replace(
            short_profile("reads of storage in line", "bytes", "followers"), cache_bytes_min=_SMALL_CACHE,
            slow_read_rate=0.5,
        ),
        _give_nobody_the_next_turn,
    ),
    Mutation(
        "read what a predecessor wrote late", "an old owner can do no harm",
        replace(
            short_profile("late writes", "bytes", kinds=("SlowLink", "Pause")), takeover_gap_s=1.0,
            store_count_min=2, store_count_max=3, shared_storage_rate=1.0, work_cut_rate=0.1, pace=4.0,
        ),
        _read_late_writes,
    ),
)  # fmt: skip
"""Planted bugs, part of `MUTATIONS`."""
