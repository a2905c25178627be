"""Clients that write: events of several sizes, transactions, values of a table; and one that scales the stream."""

from __future__ import annotations

import asyncio
import random
from functools import partial

from penstock.client.client import Client
from penstock.client.tables.tables import Table
from penstock.client.transactions.transaction import Transaction
from penstock.client.writing.ack import AckState, when_done
from penstock.model.errors import PenstockError, TableConditionError, TransactionError
from penstock_tools.soak.checks import Register, SharedCounter
from penstock_tools.soak.events import ABORT, COMMIT, InTransaction, Numbered, in_transaction, numbered, padding_length
from penstock_tools.soak.session import EVENTS, LEASE_S, PAYMENTS, REGISTERS, Session

KEYS_PER_WRITER = 8
_BURST_MAX = 20
_TRANSACTION_EVENTS_MAX = 8
_ABORT_SHARE = 0.3
REGISTERS_PER_CLIENT = 8
#: Bounds of the number of segments between which the stream is scaled.
SEGMENTS_MIN, SEGMENTS_MAX = 2, 6


class KeyedWriter:
    """Writes events until the end. Each key has numbers from 0; after a failed writer, new keys are begun."""

    def __init__(self, session: Session, name: str, events_per_s: float) -> None:
        self._session = session
        self._name = name
        self._rng = session.rng(name)
        self._events_per_s = events_per_s
        self._generation = 0
        self._written: dict[str, int] = {}

    async def run(self) -> None:
        """Write until the run is over, then until all is acknowledged."""
        session = self._session
        async with session.connect() as client:
            while not session.is_over.is_set():
                writer = await session.patiently(self._name, lambda: client.event_writer(EVENTS))
                try:
                    while not session.is_over.is_set():
                        count = self._rng.randint(1, _BURST_MAX)
                        for _ in range(count):
                            await self._write_one(writer.write)
                        await asyncio.sleep(count / self._events_per_s)
                    await writer.flush()
                    await writer.close()
                except PenstockError as error:
                    session.error(self._name, error)
                    session.counts["writers replaced"] += 1
                    await writer.abandon()
                    # What of the last events was written is not known: their keys get no more.
                    self._generation += 1
                    self._written.clear()

    async def _write_one(self, write: object) -> None:
        key = f"{self._name}.{self._generation}-{self._rng.randrange(KEYS_PER_WRITER)}"
        number = self._written.get(key, 0)
        self._written[key] = number + 1
        event = numbered(Numbered(key, number), padding_length(self._rng))
        ack: AckState = await write(event, key)  # type: ignore[operator]
        when_done(ack, partial(self._done, ack, key, number))

    def _done(self, ack: AckState, key: str, number: int) -> None:
        if ack.error is None:
            found = self._session.acknowledged
            found[key] = max(found.get(key, 0), number + 1)


class Transactor:
    """Begins, writes and ends one transaction after another."""

    def __init__(self, session: Session, name: str, pause_s_max: float) -> None:
        self._session = session
        self._name = name
        self._rng = session.rng(name)
        self._pause_s_max = pause_s_max

    async def run(self) -> None:
        """Work until the run is over. The last outcome is known then."""
        session, number = self._session, 0
        async with session.connect() as client:
            while not await session.pause(self._rng.uniform(0, self._pause_s_max)):
                number += 1
                transaction = await session.patiently(
                    self._name, lambda: client.begin_transaction(PAYMENTS, lease_s=LEASE_S)
                )
                await self._one(client, transaction, f"{self._name}.{number}")

    async def _one(self, client: Client, transaction: Transaction, label: str) -> None:
        session, count = self._session, self._rng.randint(1, _TRANSACTION_EVENTS_MAX)
        plan = ABORT if self._rng.random() < _ABORT_SHARE else COMMIT
        session.transactions.begin(label, plan, count)
        try:
            for index in range(count):
                event = in_transaction(InTransaction(label, plan, index, count), padding_length(self._rng) % 10_000)
                await transaction.write(event, f"{self._name}-{index % 3}")
            await transaction.flush()
        except PenstockError as error:
            session.error(self._name, error)
            plan = ABORT
        is_committed = await self._ended(client, transaction, plan)
        if plan == COMMIT and not is_committed:
            session.counts["transactions aborted by the server"] += 1
        session.check(session.transactions.end(label, is_committed=is_committed))

    async def _ended(self, client: Client, transaction: Transaction, plan: str) -> bool:
        """End the transaction; return whether it is committed, once that is known."""
        session = self._session
        while True:
            try:
                await (transaction.commit() if plan == COMMIT else transaction.abort())
            except TransactionError as error:
                session.error(self._name, error)
            except PenstockError as error:
                session.error(self._name, error)
                await asyncio.sleep(1.0)
                continue
            state = await session.patiently(self._name, lambda: client.transaction_state(PAYMENTS, transaction.id))
            if state in ("COMMITTING", "COMMITTED"):
                return True
            if state in ("ABORTING", "ABORTED"):
                return False
            session.counts[f"transactions in state {state} after their end"] += 1
            await asyncio.sleep(1.0)


class TableClient:
    """Reads and changes keys of its own, and increments a counter that all clients share."""

    def __init__(self, session: Session, name: str, counter: SharedCounter, pause_s_max: float) -> None:
        self._session = session
        self._name = name
        self._rng = session.rng(name)
        self._counter = counter
        self._pause_s_max = pause_s_max
        self._registers = [Register(f"{name}-{number:02d}") for number in range(REGISTERS_PER_CLIENT)]
        self._change_count = 0

    async def run(self) -> None:
        """Work until the run is over; then read everything once more."""
        session = self._session
        async with session.connect() as client:
            table = await session.patiently(self._name, lambda: client.table(REGISTERS))
            while not await session.pause(self._rng.uniform(0, self._pause_s_max)):
                try:
                    if self._rng.random() < 0.3:
                        await self._increment(table)
                    else:
                        await self._change(table, self._rng.choice(self._registers))
                except PenstockError as error:
                    session.error(self._name, error)
            for register in self._registers:
                entry = await session.patiently(self._name, lambda key=register.key: table.entry(key.encode()))  # type: ignore[misc]
                session.check(register.see(None if entry is None else entry.value.decode()))

    async def _change(self, table: Table[bytes, bytes], register: Register) -> None:
        key = register.key.encode()
        entry = await table.entry(key)
        self._session.check(register.see(None if entry is None else entry.value.decode()))
        self._change_count += 1
        value = f"{self._change_count}:{'v' * self._rng.choice((4, 40, 400))}"
        try:
            if entry is None:
                await table.insert(key, value.encode())
            else:
                await table.put(key, value.encode(), version=entry.version)
        except TableConditionError:
            # A change of unknown outcome has taken effect since the read.
            self._session.counts["table changes refused"] += 1
            return
        except PenstockError:
            register.unknown(value)
            raise
        register.changed(value)
        self._session.counts["table changes"] += 1

    async def _increment(self, table: Table[bytes, bytes]) -> None:
        counter, key = self._counter, self._counter.key.encode()
        least = counter.least
        entry = await table.entry(key)
        before = 0 if entry is None else int(entry.value)
        self._session.check(counter.see(before, least))
        counter.begin()
        try:
            if entry is None:
                await table.insert(key, b"1")
            else:
                await table.put(key, b"%d" % (before + 1), version=entry.version)
        except TableConditionError:
            counter.refused()
            return
        self._session.check(counter.changed(before + 1))
        self._session.counts["table increments"] += 1


async def scale_at_intervals(session: Session, interval_s: float) -> None:
    """Split or merge segments of both streams at intervals, until the run is over."""
    rng = session.rng("scaling")
    async with session.connect() as client:
        while not await session.pause(interval_s * rng.uniform(0.5, 1.5)):
            stream = rng.choice((EVENTS, EVENTS, PAYMENTS))
            try:
                await _scale_once(client, stream, rng)
                session.counts[f"scales of {stream}"] += 1
            except PenstockError as error:
                session.error("scaling", error)


async def _scale_once(client: Client, stream: str, rng: random.Random) -> None:
    segments = list(await client.segments_of(stream))
    is_split = len(segments) < SEGMENTS_MAX and (len(segments) <= SEGMENTS_MIN or rng.random() < 0.5)
    if is_split:
        one = rng.choice(segments)
        middle = (one.key_low + one.key_high) / 2
        await client.scale_stream(
            stream, seal=[one.segment_id], key_ranges=[(one.key_low, middle), (middle, one.key_high)], timeout_s=300.0
        )
    else:
        at = rng.randrange(len(segments) - 1)
        left, right = segments[at], segments[at + 1]
        await client.scale_stream(
            stream,
            seal=[left.segment_id, right.segment_id],
            key_ranges=[(left.key_low, right.key_high)],
            timeout_s=300.0,
        )
