"""Planted bugs in logs in BookKeeper: each breaks one rule of the protocol in docs/bookkeeper-log.md.

`support.bookie_fleet` in the tests finds them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from penstock.model.errors import StorageConflictError
from penstock.model.errors.ledgers import LedgerError, LedgerFencedError, LedgerLostError
from penstock.runtime.ledgers import LedgerReader
from penstock.segmentstore.tier1.bookkeeper.bookkeeper_log import BookKeeperLog
from penstock.segmentstore.tier1.bookkeeper.ledger_chain import LedgerChain, OpenLedger
from penstock.segmentstore.tier1.bookkeeper.log_reader import LogReader
from penstock.segmentstore.tier1.bookkeeper.log_record import LogLedger, LogRecord
from penstock.segmentstore.tier1.bookkeeper.record_store import RecordStore, StoredLogRecord
from penstock.segmentstore.tier1.durable_log import LogAddress
from penstock_simulation.mutations.mutation import Mutation, patched
from penstock_simulation.workloads.profile import Profile

_IsPlanted = Callable[[StoredLogRecord | None, LogRecord], bool]


def _change_without_condition(is_planted: _IsPlanted) -> AbstractContextManager[None]:
    change = RecordStore.change

    async def change_always(self: RecordStore, before: StoredLogRecord | None, record: LogRecord) -> StoredLogRecord:
        while is_planted(before, record):
            try:
                return await change(self, await self.read(record.container_id), record)
            except StorageConflictError:
                continue
        return await change(self, before, record)

    return patched(RecordStore, "change", change_always)


def _is_open(before: StoredLogRecord | None, record: LogRecord) -> bool:
    return before is None or record.epoch > before.record.epoch


def _is_roll(before: StoredLogRecord | None, record: LogRecord) -> bool:
    return (
        before is not None and record.epoch == before.record.epoch and record.next_ordinal > before.record.next_ordinal
    )


@contextmanager
def _continue_after_a_fence() -> Iterator[None]:
    failed = LedgerChain.failed

    def failed_or_fenced(self: LedgerChain, ledger: OpenLedger, error: LedgerError) -> None:
        if isinstance(error, LedgerFencedError):
            error = LedgerLostError(error.code, str(error))
        failed(self, ledger, error)

    with patched(LedgerChain, "failed", failed_or_fenced), _change_without_condition(_is_roll):
        yield


def _send_again_what_was_stored() -> AbstractContextManager[None]:
    fixed_end = LedgerChain._fixed_end

    async def last_confirmed(self: LedgerChain, ledger: OpenLedger) -> int:
        await fixed_end(self, ledger)
        return ledger.last_confirmed

    return patched(LedgerChain, "_fixed_end", last_confirmed)


def _believe_the_last_confirmed_entry() -> AbstractContextManager[None]:
    fenced = LogReader.fenced

    async def opened(self: LogReader, ledger: LogLedger) -> LedgerReader:
        if ledger.last_entry is not None:
            return await fenced(self, ledger)
        return await self._open(ledger, is_fencing=False)

    return patched(LogReader, "fenced", opened)


def _delete_before_the_record() -> AbstractContextManager[None]:
    truncate = BookKeeperLog.truncate

    async def truncate_late(self: BookKeeperLog, address: LogAddress) -> None:
        if self._stored is not None and self._chain is not None:
            record = self._pruned(self._stored.record.with_ends(self._chain.ends).truncated(address))
            kept = {each.ledger_id for each in record.ledgers}
            self._process.delete_ledgers(
                [each.ledger_id for each in self._stored.record.ledgers if each.ledger_id not in kept]
            )
            await asyncio.sleep(1.0)
        await truncate(self, address)

    return patched(BookKeeperLog, "truncate", truncate_late)


def _trust_a_fence_for_ever() -> AbstractContextManager[None]:
    return patched(BookKeeperLog, "sure_until_s", property(lambda self: float("inf")))


def _planted(name: str, breaks: str, apply: Callable[[], AbstractContextManager[None]]) -> Mutation:
    return Mutation(name, breaks, Profile(name="logs in bookkeeper"), apply)


_READ = "what is acknowledged is in what each later incarnation reads"

BOOKKEEPER_LOG_MUTATIONS: tuple[Mutation, ...] = (
    _planted("open a log in BookKeeper without the condition", _READ, lambda: _change_without_condition(_is_open)),
    _planted("continue after a fence without a condition", _READ, _continue_after_a_fence),
    _planted("open an old ledger without recovery", _READ, _believe_the_last_confirmed_entry),
    _planted("delete ledgers before the truncation is recorded", _READ, _delete_before_the_record),
)  # fmt: skip
"""Planted bugs that the fleet of logs finds; whole clusters do not use BookKeeper in the simulation."""

FORGOTTEN_FENCE: Mutation = _planted("trust a fence of a deleted ledger", _READ, _trust_a_fence_for_ever)
"""A planted bug that a scenario of its own finds."""

REPEATED_ENTRY: Mutation = _planted(
    "send entries again that a ledger has", "no frame is stored twice", _send_again_what_was_stored
)
"""A planted bug that a scenario of its own finds: the record often has the ledger's end before an open reads it."""
