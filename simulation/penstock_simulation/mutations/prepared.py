"""Planted bugs of prepared transactions: a lease, or sealing the stream, decides them instead of their sink."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

from penstock.controller import service
from penstock.controller.metadata.record_store import Versioned
from penstock.controller.metadata.records import ActiveTransaction
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.transactions import service as transactions_service
from penstock.controller.workflows.context import WorkflowContext
from penstock.controller.workflows.prepare import prepare_transaction
from penstock.controller.workflows.seal_stream import seal_stream
from penstock_simulation.mutations.mutation import Mutation, patched
from penstock_simulation.mutations.users import USERS
from penstock_simulation.workloads.users import UserHabits

#: No clock jumps: the limit depends on the controllers' clocks, and a jump of an hour would exceed it.
PREPARED = replace(
    USERS,
    name="prepared transactions",
    workloads=("events", "prepared transactions"),
    plan=replace(USERS.plan, kinds=tuple(kind for kind in USERS.plan.kinds if kind != "ClockJump")),
    controller_count_min=1,
    controller_count_max=2,
    controller_fault_gap_s=4.0,
    habits=UserHabits(limits_s=(2.0, 60.0)),
)
"""A sink that prepares transactions and decides them later, on one controller or two that are killed and cut off."""


def _keep_the_lease() -> AbstractContextManager[None]:
    async def prepare(
        context: WorkflowContext, tables: StreamTables, transaction: TransactionId, limit_ms: int
    ) -> Versioned[ActiveTransaction] | None:
        before = await tables.transaction(transaction)
        found = await prepare_transaction(context, tables, transaction, limit_ms)
        if before is None or found is None or not found.record.is_prepared:
            return found
        record = replace(found.record, lease_expiry_ms=before.record.lease_expiry_ms)
        return Versioned(record, await tables.put_transaction(transaction, record, found.version))

    return patched(transactions_service, "prepare_transaction", prepare)


def _seal_all_the_same() -> AbstractContextManager[None]:
    async def seal(context: WorkflowContext, tables: StreamTables) -> None:
        await seal_stream(context, tables, spares_prepared=False)

    return patched(service, "seal_stream", seal)


PREPARED_MUTATIONS = (
    Mutation(
        "end a prepared transaction with its lease", "only a decision ends what is prepared, before its limit",
        PREPARED, _keep_the_lease,
    ),
    Mutation(
        "seal a stream with a prepared transaction", "a stream with a prepared transaction is not sealed",
        PREPARED, _seal_all_the_same,
    ),
)  # fmt: skip
"""Bugs of this kind."""
