"""Planted bugs of an exactly-once sink: each leaves out a step or takes it too early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from penstock.spark.exactly_once import Decisions, SinkBatch
from penstock.spark.ledger import Ledger, LedgerRow
from penstock_simulation.mutations.mutation import Mutation, patched
from penstock_simulation.mutations.users import USERS
from penstock_simulation.workloads.users import UserHabits

#: No clock jumps: limits depend on the controllers' clocks, and a jump of an hour would exceed them.
SINKS = replace(
    USERS,
    name="sinks",
    workloads=("events", "sinks"),
    plan=replace(USERS.plan, kinds=tuple(kind for kind in USERS.plan.kinds if kind != "ClockJump")),
    controller_count_min=1,
    controller_count_max=2,
    controller_fault_gap_s=8.0,
    habits=UserHabits(cut_rate=0.3, limits_s=(2.0, 10.0)),
)
"""A sink whose drivers are cut off, come again, and have a second one beside them, on controllers that are killed."""


def _commit_before_the_intent() -> AbstractContextManager[None]:
    plain = Decisions.extend_prepared

    async def extend_prepared(self: Decisions, transactions: Mapping[str, Sequence[str]]) -> object:
        refusal = await plain(self, transactions)
        if refusal is None:
            await self.commit({stream: ids[:1] for stream, ids in transactions.items()})
        return refusal

    return patched(Decisions, "extend_prepared", extend_prepared)


def _abort_what_is_named() -> AbstractContextManager[None]:
    async def abort(self: SinkBatch) -> None:
        await self._decisions.abort((stream, each) for stream, ids in self._own.items() for each in ids)

    return patched(SinkBatch, "abort", abort)


def _abort_without_a_fence() -> AbstractContextManager[None]:
    async def fence(self: Ledger, now_ms: int) -> LedgerRow:
        return (await self.read())[0]

    return patched(Ledger, "fence", fence)


def _write_the_intent_over_any_other() -> AbstractContextManager[None]:
    async def replace_row(self: Ledger, row: LedgerRow, version: int) -> int:
        return await self._table.put(self._primary + bytes(24), row.encode())

    return patched(Ledger, "replace", replace_row)


def _leave_other_attempts() -> AbstractContextManager[None]:
    async def clean(self: SinkBatch, ledger: Ledger, row: LedgerRow) -> None:
        """Leave all transactions."""

    return patched(SinkBatch, "_clean", clean)


SINK_MUTATIONS = (
    Mutation(
        "commit a transaction of a batch before the intent", "a batch that comes again finds what may be committed",
        SINKS, _commit_before_the_intent,
    ),
    Mutation(
        "abort what the ledger names", "transactions named by an intent must commit, in any later run", SINKS,
        _abort_what_is_named,
    ),
    Mutation(
        "write an intent without a condition", "one intent of a batch counts", SINKS, _write_the_intent_over_any_other,
    ),
    Mutation(
        "leave what other attempts of a batch have prepared", "a batch that is done leaves nothing behind", SINKS,
        _leave_other_attempts,
    ),
)  # fmt: skip
