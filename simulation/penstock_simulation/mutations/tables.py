"""Planted bugs in the promises of tables and shared state of the Python client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from penstock.client.common.retry import Backoff
from penstock.client.state.shared_state import SharedState
from penstock.client.state.state_entries import StateEntry
from penstock.client.state.state_watch import StateChange, StateChanges
from penstock.client.tables.table_segments import TableSegments, _Batch
from penstock.client.tables.table_watch import KeyChange, TableWatch
from penstock.model.errors import OutcomeUnknownError
from penstock_simulation.mutations.mutation import Mutation, patched
from penstock_simulation.mutations.users import USERS
from penstock_simulation.workloads.users import UserHabits

TABLES_AND_STATES = replace(
    USERS,
    name="tables and states",
    workloads=("events", "user tables", "user states"),
    plan=replace(USERS.plan, mean_gap_s_min=1.0, mean_gap_s_max=3.0),
    habits=UserHabits(limits_s=(2.0, 60.0)),
    pace=2.0,
)
"""Users of tables and of shared state, under faults close together."""


def _take_a_refusal_behind_a_lost_reply_for_one() -> AbstractContextManager[None]:
    async def apply(self: TableSegments, batch: _Batch) -> Sequence[int]:
        backoff = Backoff(self._cluster.settings, self._cluster.rng)
        while True:
            try:
                return await self._send(batch)
            except OutcomeUnknownError as error:
                if not any(change.version >= 0 for change in batch.changes):
                    raise
                await backoff.pause(error)

    return patched(TableSegments, "_apply", apply)


def _count_what_was_not_told_as_told() -> AbstractContextManager[None]:
    async def poll(self: TableWatch) -> AsyncIterator[KeyChange]:
        for segment in self._names:
            length = await self._length(segment)
            if self._lengths.get(segment) == length:
                continue
            known, now = self._versions[segment], await self._read_versions(segment)
            self._lengths[segment], self._versions[segment] = length, now
            newer = [key for key, version in now.items() if known.get(key) != version]
            for key, entry in zip(newer, await self._table.get(newer), strict=True):
                yield KeyChange(key, entry)
            for key in known.keys() - now.keys():
                yield KeyChange(key, None)

    return patched(TableWatch, "_poll", poll)


def _write_on_condition_of_what_is_there() -> AbstractContextManager[None]:
    write_if = SharedState._try

    async def try_behind_all(self: SharedState[object, object], entry: StateEntry, state: object) -> bool:
        self._revision = await self._stream.latest()
        return await write_if(self, entry, state)

    return patched(SharedState, "_try", try_behind_all)


def _take_a_state_for_told_before_it_is() -> AbstractContextManager[None]:
    async def next_change(self: StateChanges[object]) -> StateChange[object]:
        while True:
            if self._seen_bytes is not None:
                await self._growth.wait(self._seen_bytes)
                # The following poll may fail or be cancelled.
                self._seen_bytes = (await self._growth._segments.segment_info(self._growth._segment)).length
            change = await self._poll()
            told, self._told = self._told, change.revision
            if told != change.revision:
                return change
            self._seen_bytes = change.revision.offset

    return patched(StateChanges, "__anext__", next_change)


TABLE_MUTATIONS = (
    Mutation(
        "take a refusal behind a lost reply for one", "a lost reply is neither success nor failure",
        replace(TABLES_AND_STATES, name="table users", workloads=("events", "user tables")),
        _take_a_refusal_behind_a_lost_reply_for_one,
    ),
    Mutation(
        "count a change as told before it is", "a watch misses nothing that lasts",
        replace(TABLES_AND_STATES, name="watches", workloads=("events", "user tables")),
        _count_what_was_not_told_as_told,
    ),
    Mutation(
        "write a state on condition of what is there", "who changes a shared state knows all of it",
        replace(TABLES_AND_STATES, name="state users", workloads=("events", "user states")),
        _write_on_condition_of_what_is_there,
    ),
    Mutation(
        "take a state for told before it is", "a watch of a shared state misses nothing that lasts",
        replace(TABLES_AND_STATES, name="watched states", workloads=("events", "user states")),
        _take_a_state_for_told_before_it_is,
    ),
)  # fmt: skip
"""Bugs of this kind."""
