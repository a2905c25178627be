"""Planted bugs that long outages and wrong clocks reveal: time counted in which nothing could be observed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from penstock.client.groups.group_liveness import Liveness, Sign, _Silence
from penstock.controller.metadata.record_store import Versioned
from penstock.controller.metadata.records import ActiveTransaction
from penstock.controller.metadata.retention_records import StreamCutRecord
from penstock.controller.metadata.retention_tables import RetentionTables
from penstock.controller.transactions.lease_timers import LeaseTimers, OpenTransaction
from penstock.controller.transactions.work import TransactionWork
from penstock_simulation.mutations.mutation import Mutation, patched
from penstock_simulation.mutations.peers import CLOCKS
from penstock_simulation.mutations.users import LONG_OUTAGES


def _count_an_outage_as_silence() -> AbstractContextManager[None]:
    def observe(self: Liveness[Sign], signs: Mapping[str, Sign], now_s: float, timeout_s: float) -> None:
        gap_s = 0.0 if self._observed_s is None else now_s - self._observed_s
        self._observed_s = now_s
        known, self._silences = self._silences, {}
        for name, sign in signs.items():
            silence = known.get(name)
            is_silent = silence is not None and silence.sign == sign
            self._silences[name] = _Silence(sign, silence.lasts_s + gap_s if silence and is_silent else 0.0)

    return patched(Liveness, "observe", observe)


@contextmanager
def _count_a_pause_against_leases() -> Iterator[None]:
    def due(self: LeaseTimers, transaction: OpenTransaction) -> None:
        self._on_expiry(transaction, self._timers.pop(transaction).version)

    with patched(LeaseTimers, "_due", due), patched(LeaseTimers, "since_ping_ms", lambda self, transaction: None):
        yield


def _end_leases_by_wall_clock() -> AbstractContextManager[None]:
    def remaining_ms(
        self: TransactionWork, opened: OpenTransaction, found: Versioned[ActiveTransaction], version: int
    ) -> int:
        now_ms = self._context.runtime.wall_clock_ms()
        return found.record.lease_expiry_ms + self._context.settings.lease_slack_ms - now_ms

    return patched(TransactionWork, "_remaining_ms", remaining_ms)


@contextmanager
def _wait_for_the_clock_to_catch_up() -> Iterator[None]:
    original = RetentionTables.add

    async def restamp(self: RetentionTables, now_ms: int) -> bool:
        return False

    async def add(self: RetentionTables, cut: StreamCutRecord, *, goes_by_size: bool = False) -> bool:
        return await original(self, cut)

    with patched(RetentionTables, "restamp", restamp), patched(RetentionTables, "add", add):
        yield


OUTAGE_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "count an outage as the silence of others", "an outage of the store costs no reader its segments",
        LONG_OUTAGES, _count_an_outage_as_silence,
    ),
    Mutation(
        "count a pause of the controller against leases", "a transaction whose client renews its lease stays open",
        LONG_OUTAGES, _count_a_pause_against_leases,
    ),
    Mutation(
        "end leases by the wall clock", "a transaction whose client renews its lease stays open",
        CLOCKS, _end_leases_by_wall_clock,
    ),
    Mutation(
        "wait until the clock has caught up with the cuts", "retention continues after the clock was ahead",
        CLOCKS, _wait_for_the_clock_to_catch_up,
    ),
)  # fmt: skip
"""Bugs of this kind."""
