"""Planted bugs of several controllers: work taken from its living owner, or done by two at once. See `catalog`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from penstock.controller.metadata.pending_work import PendingWork
from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.metadata.records import StateRecord
from penstock.controller.metadata.work_claims import WorkClaims
from penstock.model.segments import VERSION_ABSENT, VERSION_ANY
from penstock_simulation.mutations.mutation import Mutation, patched
from penstock_simulation.mutations.users import USERS
from penstock_simulation.workloads.users import UserHabits

CONTROLLERS = replace(
    USERS,
    name="controllers",
    workloads=("events", "readers", "transactions", "streams", "group changes", "user writers", "users"),
    share=0.7,
    plan=replace(USERS.plan, duration_s=18.0, kinds=("Crash", "Partition", "Reset", "SlowLink", "Pause", "ClockJump")),
    writing_s=22.0,
    scale_rate=0.7,
    controller_count_min=2,
    controller_count_max=3,
    controller_fault_gap_s=3.0,
    stream_lives_count=3,
    habits=UserHabits(limits_s=(2.0, 60.0)),
    pace=1.5,
)
"""Two or three controllers that are killed, stand still and are cut off, mostly for longer than a session lasts."""

TRANSACTIONS = replace(
    CONTROLLERS, name="transactions", workloads=("events", "readers", "transaction crowd"), share=1.0, scale_rate=1.0,
    scale_gap_s=1.0,
)  # fmt: skip
"""Many transactions that are open while their stream is scaled all the time, at two or three controllers that fail."""

CLOCKS = replace(
    CONTROLLERS, name="clocks", share=1.0, pace=0.5,
    workloads=("events", "transactions", "kept transactions", "retained streams"), has_retention=True,
    plan=replace(
        CONTROLLERS.plan, duration_s=36.0, kinds=("Crash", "Pause", "ClockJump"), mean_gap_s_max=3.0,
        clock_jump_ms_max=12 * 3_600_000,
    ),
    writing_s=40.0, controller_fault_gap_s=8.0,
)  # fmt: skip
"""Two or three controllers whose wall clocks are hours apart, and jump: leases and retention continue."""

_PEERS = replace(
    CONTROLLERS, name="peers", workloads=("events", "transactions", "streams"), share=1.0, controller_count_min=3
)


def _take_everybody_else_for_dead() -> AbstractContextManager[None]:
    async def live_members(self: WorkClaims) -> frozenset[str]:
        return frozenset({self.owner})

    return patched(WorkClaims, "live_members", live_members)


@contextmanager
def _take_over_without_compare_and_set() -> Iterator[None]:
    original = RecordStore.put

    async def put(self: RecordStore, table: str, key: str, record: object, *, version: int = VERSION_ANY) -> int:
        # WorkClaims are written by `put_all`; `put` only changes the owner.
        return await original(
            self, table, key, record, version=VERSION_ANY if isinstance(record, PendingWork) else version
        )

    with patched(RecordStore, "put", put):
        yield


@contextmanager
def _write_states_without_a_fence() -> Iterator[None]:
    put, put_all = RecordStore.put, RecordStore.put_all

    def any_version(record: object, version: int) -> int:
        return VERSION_ANY if isinstance(record, StateRecord) and version != VERSION_ABSENT else version

    async def put_state(self: RecordStore, table: str, key: str, record: object, *, version: int = VERSION_ANY) -> int:
        return await put(self, table, key, record, version=any_version(record, version))

    async def put_states(self: RecordStore, table: str, records: Sequence[tuple[str, object, int]]) -> Sequence[int]:
        freed = [(key, record, any_version(record, version)) for key, record, version in records]
        return await put_all(self, table, freed)

    with patched(RecordStore, "put", put_state), patched(RecordStore, "put_all", put_states):
        yield


PEER_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "take everybody else for dead", "work of a live controller is finished by no other",
        _PEERS, _take_everybody_else_for_dead,
    ),
    Mutation(
        "take over without compare-and-set", "work has one owner at a time",
        _PEERS, _take_over_without_compare_and_set,
    ),
    Mutation(
        "write states without a fence", "who was overtaken moves a stream out of no state",
        CONTROLLERS, _write_states_without_a_fence,
    ),
)  # fmt: skip
"""Bugs of this kind. No profile with one controller finds them."""
