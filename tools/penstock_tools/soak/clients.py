"""The process with all clients: ``python -m penstock_tools.soak.clients URI SEED DIRECTORY``.

It writes its counts to ``status.jsonl`` at intervals, and broken promises to ``violations.jsonl`` as they are found.
A line on standard input ends the load: everything is read and checked, ``end.json`` is written, and the process ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.model.errors import PenstockError
from penstock.model.policies import Retention, Scaling
from penstock.runtime.waits import cancel_and_wait
from penstock_tools.soak.checks import SharedCounter
from penstock_tools.soak.reading import Churn, Follower
from penstock_tools.soak.session import EVENTS, PAYMENTS, REGISTERS, Session
from penstock_tools.soak.writing import KeyedWriter, TableClient, Transactor, scale_at_intervals

WRITERS, EVENTS_PER_S = 3, 50.0
TRANSACTORS, TABLE_CLIENTS, READERS = 2, 2, 3
SCALE_INTERVAL_S = 240.0
READER_LIFE_S = 200.0
STATUS_INTERVAL_S = 10.0
#: Bound of the reading after the last write.
DRAIN_S_MAX = 1800.0
#: Data younger than this is never deleted: the Spark query and the export may be that late.
EVENTS_KEPT_MINUTES, PAYMENTS_KEPT_BYTES = 15, 32 * 1024 * 1024


async def prepare(session: Session) -> None:
    """Create the streams and the table."""
    async with session.connect() as client:
        await session.patiently(
            "prepare",
            lambda: client.create_stream(
                EVENTS,
                scaling=Scaling.fixed(3),
                retention=Retention.by_time(minutes=EVENTS_KEPT_MINUTES),
                exist_ok=True,
            ),
        )
        await session.patiently(
            "prepare",
            lambda: client.create_stream(
                PAYMENTS, scaling=Scaling.fixed(2), retention=Retention.by_size(PAYMENTS_KEPT_BYTES), exist_ok=True
            ),
        )
        await session.patiently(
            "prepare", lambda: client.create_table(REGISTERS, key_length=10, partition_count=3, exist_ok=True)
        )


async def drain(session: Session) -> None:
    """Wait until the readers have seen everything, within `DRAIN_S_MAX`."""
    deadline_s = time.monotonic() + DRAIN_S_MAX
    while any(_missing(session)) and time.monotonic() < deadline_s:  # noqa: ASYNC110  # it changes with every event
        await asyncio.sleep(1.0)
    session.check(_missing(session))


def _missing(session: Session) -> Iterator[str]:
    yield from session.order.missing(session.acknowledged)
    yield from session.group.missing(session.acknowledged)
    yield from session.transactions.missing()


async def write_status(session: Session, path: Path) -> None:
    """Write a line of counts at intervals, until cancelled."""
    while True:
        with path.open("a") as file:
            file.write(json.dumps({"at": round(time.time(), 3), **session.status()}) + "\n")
        await asyncio.sleep(STATUS_INTERVAL_S)


async def run(uri: str, seed: int, directory: Path) -> None:
    """Run all clients until a line arrives on standard input."""
    session = Session(uri, seed, directory)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await prepare(session)
    counter = SharedCounter("counter---")
    work = [
        *(KeyedWriter(session, f"w{n}", EVENTS_PER_S).run() for n in range(WRITERS)),
        *(Transactor(session, f"t{n}", 1.0).run() for n in range(TRANSACTORS)),
        *(TableClient(session, f"table-{n}", counter, 0.5).run() for n in range(TABLE_CLIENTS)),
        scale_at_intervals(session, SCALE_INTERVAL_S),
    ]
    writing = [asyncio.create_task(each) for each in work]
    reading = [asyncio.create_task(Follower(session).run())]
    reading += [asyncio.create_task(Churn(session, n, READER_LIFE_S).run()) for n in range(READERS)]
    status = asyncio.create_task(write_status(session, directory / "status.jsonl"))
    ending = asyncio.create_task(reader.readline())
    try:
        # No client ends before the run is over, unless with an error that no fault explains: that ends the run.
        done, _ = await asyncio.wait([*writing, *reading, status, ending], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        session.is_over.set()
        await asyncio.gather(*writing)
        await drain(session)
        session.is_read.set()
        await asyncio.gather(*reading)
    except (PenstockError, TimeoutError) as error:
        session.check([f"a client failed: {type(error).__name__}: {error}"])
    finally:
        await cancel_and_wait(*writing, *reading, status, ending)
    (directory / "end.json").write_text(json.dumps({"at": time.time(), **session.status()}))


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
