"""``python -m support.ledger_load URL JARS``: append entries to one ledger until standard input ends.

First it prints the bookies of the ledger, then the number of confirmed entries again and again, or ``failed`` and the
code of the error. Java gets `DIRECT_MB` of memory for buffers.
"""

from __future__ import annotations

import asyncio
import sys

from penstock.model.errors.ledgers import LedgerError
from penstock.runtime.java_machine import start_java
from penstock.runtime.ledgers import LedgerClientSettings, LedgerPlace, LedgerQuorum
from penstock.runtime.runtime import real_runtime
from penstock.segmentstore.tier1.bookkeeper.entry_format import FrameEntry

DIRECT_MB = 48
ENTRY_BYTES = 200_000
_MIB = 1024 * 1024
_IN_FLIGHT_COUNT = 20


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class _Outcomes:
    """Prints what is confirmed, and the failure."""

    def __init__(self) -> None:
        self.count = 0
        self.changed = asyncio.Event()
        self.is_over = False

    def confirmed(self, last_entry: int) -> None:
        self.count = last_entry + 1
        self.changed.set()
        _tell(str(self.count))

    def failed(self, error: LedgerError) -> None:
        self.is_over = True
        self.changed.set()
        _tell(f"failed {error.code}")


async def _append(url: str) -> None:
    runtime = real_runtime()
    client = LedgerClientSettings("penstock", in_flight_bytes_max=4 * _MIB)
    store = runtime.open_ledgers(LedgerPlace.parse(url), client, runtime.work)
    outcomes = _Outcomes()
    writer = await store.create(LedgerQuorum(), {}, outcomes)
    _tell(" ".join(writer.bookies))
    end = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    sent, frame = 0, bytes(ENTRY_BYTES)
    while not outcomes.is_over and not end.done():
        while sent - outcomes.count < _IN_FLIGHT_COUNT:
            writer.append(FrameEntry([frame], len(frame)))
            sent += 1
        outcomes.changed.clear()
        await asyncio.wait((asyncio.ensure_future(outcomes.changed.wait()), end), return_when=asyncio.FIRST_COMPLETED)
    await store.close()
    await runtime.work.close()


if __name__ == "__main__":
    start_java("the load", sys.argv[2], heap_mb=128, direct_mb=DIRECT_MB)
    asyncio.run(_append(sys.argv[1]))
