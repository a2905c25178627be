"""Runs the PyPI client in a process of its own: its calls block with the interpreter's lock held, so a test that must
restart the server meanwhile cannot make them itself.

``write URI STREAM FIRST LAST`` writes keyed events; ``read URI STREAM GROUP READERS COUNT`` prints what it reads.
Both print ``begun`` once a good part is done.

``transact URI STREAM WRITER EVENTS`` has four transactions open at the same time and writes to them by turns. It
commits one and aborts one of them, prints the ids of the other two and ``begun``, and waits for a line of its input:
then it commits one of those and aborts the last. It prints the names of those it has committed.

``find URI STREAM ID`` prints whether a transaction, by its number, is ``open`` or ``over``.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

import pravega_client

SCOPE = "shop"
KEY_COUNT = 64
IN_FLIGHT_MAX = 5000
#: Readers that get no event for this long have failed. The client itself pauses for up to 10 s between its attempts.
STALL_S = 120.0
CREATIONS_MAX = 3


def write(uri: str, stream: str, first: int, last: int) -> None:
    """Write the events [first, last) with one writer and wait until all are acknowledged."""
    # The manager must outlive what it made: it owns the client's threads.
    manager = pravega_client.StreamManager(uri)
    writer = manager.create_writer(SCOPE, stream, IN_FLIGHT_MAX)
    for number in range(first, last):
        writer.write_event(f"key{number % KEY_COUNT}:{number}", f"key{number % KEY_COUNT}")
        if number == first + (last - first) // 3:
            say("begun")
    writer.flush()
    say("done")


def create_reader(group: pravega_client.StreamReaderGroup, name: str) -> pravega_client.StreamReader:
    """Create a reader; under another name if the client refuses to repeat a creation whose answer it lost.

    It then finds its own reader in the group, and panics: "reader already online".
    """
    for attempt in range(CREATIONS_MAX):
        try:
            return group.create_reader(f"{name}-{attempt}" if attempt else name)
        except BaseException as error:
            # The panic of Rust is no `Exception`.
            if "already online" not in str(error) or attempt == CREATIONS_MAX - 1:
                raise
    raise AssertionError("not reached")


async def read(uri: str, stream: str, group_name: str, reader_count: int, count: int) -> None:
    """Read `count` events with some readers of one group at the same time, and print them in order of arrival."""
    manager = pravega_client.StreamManager(uri)
    group = manager.create_reader_group(group_name, SCOPE, stream)
    events: list[bytes] = []
    latest_s = time.monotonic()

    async def read_one(name: str) -> None:
        nonlocal latest_s
        reader = create_reader(group, name)
        while len(events) < count:
            pending = asyncio.ensure_future(reader.get_segment_slice_async())
            while not pending.done() and len(events) < count:
                await asyncio.wait((pending,), timeout=0.1)
                if time.monotonic() - latest_s > STALL_S:
                    raise TimeoutError(f"{name}: no event for {STALL_S:g} s; {missing(events, count)}")
            if not pending.done():
                break
            latest_s = time.monotonic()
            piece = pending.result()
            for event in piece:
                events.append(event.data())
                if len(events) == count // 3:
                    say("begun")
            reader.release_segment(piece)
            # Give the other reader its turn.
            await asyncio.sleep(0.01)

    await asyncio.gather(*(read_one(f"reader{index}") for index in range(reader_count)))
    for event in events:
        say(event.decode())
    say("done")


def missing(events: list[bytes], count: int) -> str:
    """Return which of `count` events, as `write` makes them, have not been read."""
    numbers = sorted(set(range(count)) - {int(event.rpartition(b":")[2]) for event in events})
    return f"{len(events)} read, {len(numbers)} are missing, the first of them {numbers[:5]}"


def transact(uri: str, stream: str, writer_id: int, event_count: int) -> None:
    """Write ``name:number`` to four transactions by turns; end two of them, and the other two when told."""
    manager = pravega_client.StreamManager(uri)
    writer = manager.create_transaction_writer(SCOPE, stream, writer_id)
    names = [f"w{writer_id}t{index}" for index in range(4)]
    transactions = [writer.begin_txn() for _ in names]
    for number in range(event_count):
        for name, transaction in zip(names, transactions, strict=True):
            transaction.write_event(f"{name}:{number}", name)
    transactions[0].commit()
    transactions[1].abort()
    say(f"committed {names[0]}")
    for transaction in transactions[2:]:
        say(f"open {transaction.get_txn_id()}")
    say("begun")
    sys.stdin.readline()
    transactions[2].commit()
    say(f"committed {names[2]}")
    transactions[3].abort()
    say("done")


def find(uri: str, stream: str, number: int) -> None:
    """Find a transaction of another process by its id, and print its state; the client offers no other call for it."""
    manager = pravega_client.StreamManager(uri)
    found = manager.create_transaction_writer(SCOPE, stream, 8).get_txn(number)
    if found.is_open():
        try:
            found.write_event("never:0", "key0")
        except pravega_client.TxnFailedException:
            say("open")
    else:
        say("over")


def say(line: str) -> None:
    """Print one line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    what, uri, stream, *rest = sys.argv[1:]
    if what == "write":
        write(uri, stream, int(rest[0]), int(rest[1]))
    elif what == "transact":
        transact(uri, stream, int(rest[0]), int(rest[1]))
    elif what == "find":
        find(uri, stream, int(rest[0]))
    else:
        asyncio.run(read(uri, stream, rest[0], int(rest[1]), int(rest[2])))
    # Not an ordinary end: a thread of the client that asks for the interpreter then aborts the process at times, with
    # "FATAL: exception not rethrown". All that had to be said has been said.
    os._exit(0)
