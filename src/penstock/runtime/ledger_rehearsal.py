"""`rehearse`: has a client of BookKeeper do once what a take-over of containers needs of it.

Java loads and compiles code when it is first used. A store whose containers were all created in it has never recovered
a ledger; the first ten that a process recovered and read took 1.2 s of CPU, the next ten 0.3 s, and the first ten after
one such ledger 0.3 s, too. When a store takes over the containers of a lost one, that time is not there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.model.errors.ledgers import LedgerError, LedgerSilentError
from penstock.model.segments import Buffer
from penstock.runtime.ledgers import LedgerQuorum, LedgerStore

#: The application that the labels of these ledgers name. `penstock cluster sweep` deletes those that are left.
REHEARSAL: bytes = b"penstock rehearsal"
#: Ledgers one after the other, and entries of each.
LEDGER_COUNT = 2
ENTRY_COUNT = 8
#: Time for the entries of a ledger.
_TIMEOUT_S = 30.0


class _Outcome:
    """`LedgerObserver` that waits for the last entry."""

    def __init__(self) -> None:
        self._last_entry = -1
        self._failure: LedgerError | None = None
        self._changed = asyncio.Event()

    def confirmed(self, last_entry: int) -> None:
        """See `LedgerObserver.confirmed`."""
        self._last_entry = last_entry
        self._changed.set()

    def failed(self, error: LedgerError) -> None:
        """See `LedgerObserver.failed`."""
        self._failure = error
        self._changed.set()

    async def wait(self) -> None:
        """Wait until all entries are confirmed. Raises `LedgerError`."""
        while self._last_entry < ENTRY_COUNT - 1:
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()


class _Entry:
    """`LedgerEntry` of a few bytes."""

    length: int = 16

    def parts(self) -> Sequence[Buffer]:
        """See `LedgerEntry.parts`."""
        return (bytes(self.length),)


async def rehearse(store: LedgerStore, ledger_count: int = LEDGER_COUNT) -> None:
    """Create, recover, read and delete ledgers, of one bookie each.

    Raises `LedgerError`; then, and if the process ends meanwhile, a ledger may be left over.
    """
    for _ in range(ledger_count):
        await _rehearse_ledger(store)


async def _rehearse_ledger(store: LedgerStore) -> None:
    outcome = _Outcome()
    writer = await store.create(LedgerQuorum(1, 1), {"application": REHEARSAL}, outcome)
    try:
        for _ in range(ENTRY_COUNT):
            writer.append(_Entry())
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await outcome.wait()
        except TimeoutError as error:
            raise LedgerSilentError(0, f"entries have no answer for {_TIMEOUT_S:g} s") from error
        # As an open of a log: the newest entries are inspected, then the ledger is recovered and read.
        seen = await store.open(writer.ledger_id, is_fencing=False)
        try:
            await seen.read_unconfirmed(ENTRY_COUNT - 1)
        finally:
            await seen.close()
        reader = await store.open(writer.ledger_id, is_fencing=True)
        try:
            await reader.read(0, ENTRY_COUNT - 1)
        finally:
            await reader.close()
    finally:
        try:
            await writer.close()
        except LedgerError:
            pass  # It was fenced. What is left is deleted.
        await store.delete(writer.ledger_id)
