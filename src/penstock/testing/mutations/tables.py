"""Planted bugs in what tables and shared state of the Python client promise their users."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from penstock.client.retry import Backoff
from penstock.client.table_segments import TableSegments, _Batch
from penstock.client.table_watch import KeyChange, TableWatch
from penstock.model.errors import OutcomeUnknownError
from penstock.testing.mutations.mutation import Mutation, patched
from penstock.testing.mutations.users import USERS
from penstock.testing.workloads.users import UserHabits

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
    async def look(self: TableWatch) -> AsyncIterator[KeyChange]:
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

    return patched(TableWatch, "_look", look)


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
)  # fmt: skip
"""Bugs of this kind."""
