"""Clients that write, read and change tables during server faults, and record what happened.

Each client uses the production client and records calls and observations in one `History`. After `stop` they settle
open calls (no fault may be active by then) and end. The load's shape (keys, sizes, order of calls) comes from a seed.

An event contains its own key, writer and number: ``key writer number padding``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from penstock.client.client import Client
from penstock.client.reading.event import Event
from penstock.client.transactions.transaction import Transaction
from penstock.client.writing.ack import AckState, settled, when_done
from penstock.client.writing.event_writer import EventWriter
from penstock.model.errors import (
    ControllerUnavailableError,
    OutcomeUnknownError,
    PenstockError,
    SegmentExistsError,
    TableKeyMissingError,
    TableKeyVersionError,
    TransactionError,
)
from penstock.model.names import segment_name, split_scoped_name
from penstock.model.policies import Scaling
from penstock.model.segments import VERSION_ABSENT, VERSION_ANY, TableRemoval, TableUpdate
from penstock.runtime.waits import cancel_and_wait
from penstock_simulation.checks.history_events import (
    AbortTransaction,
    AppendBytes,
    CommitTransaction,
    EventSeen,
    FullRead,
    GetKey,
    History,
    Invocation,
    KeyValue,
    OffsetSeen,
    PutKey,
    ReadRange,
    RemoveKey,
    WriteEvent,
)

T = TypeVar("T")

#: Errors that a fault may cause in a call.
PASSING_ERRORS = (OutcomeUnknownError, ControllerUnavailableError)
_POLL_S = 0.1
_PROBLEMS_KEPT_MAX = 100


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """The load.

    Attributes:
        stream: ``scope/stream`` of the events, with `segment_count` segments.
        writer_count: writers of single events, each with a client of its own.
        key_count: routing keys, shared by all writers.
        burst_event_count_max: events that a writer writes in one burst.
        unacknowledged_bytes_max: per writer; above that it waits for its last burst.
        pause_s_max: longest pause of any client between two steps.
        padding_bytes_max: per event.
        transaction_client_count, transaction_event_count_max: sequential transactions, per client.
        lease_s: of a transaction; longer than any outage of the server.
        table_client_count, table_key_count: clients that race for the keys of one table.
        settle_timeout_s: how long clients may take to end once the servers are healthy.
    """

    stream: str = "faults/events"
    segment_count: int = 3
    writer_count: int = 3
    key_count: int = 6
    burst_event_count_max: int = 30
    unacknowledged_bytes_max: int = 100_000
    pause_s_max: float = 0.02
    padding_bytes_max: int = 2000
    transaction_client_count: int = 2
    transaction_event_count_max: int = 12
    lease_s: float = 60.0
    table_client_count: int = 3
    table_key_count: int = 4
    settle_timeout_s: float = 90.0

    @property
    def table(self) -> str:
        """Full name of the table segment."""
        return segment_name(split_scoped_name(self.stream)[0], "table", 0)

    @property
    def bytes_segment(self) -> str:
        """Full name of the segment of raw appends."""
        return segment_name(split_scoped_name(self.stream)[0], "bytes", 0)


class Load:
    """The clients of one run. `connect` opens a client; each task opens its own, as separate programs would.

    `problems` has the errors that no fault explains.
    """

    def __init__(
        self, connect: Callable[[], Client], history: History, seed: int, settings: LoadSettings | None = None
    ) -> None:
        self.settings: LoadSettings = settings or LoadSettings()
        self.history = history
        self.problems: list[str] = []
        self._connect = connect
        self._seed = seed
        self._is_over = asyncio.Event()
        self._is_written = asyncio.Event()
        self._values = 0

    async def prepare(self) -> None:
        """Create the stream, the table and the segment. Call it before the first fault."""
        settings = self.settings
        async with self._connect() as client:
            await client.create_stream(settings.stream, scaling=Scaling.fixed(settings.segment_count), exist_ok=True)
            for create in (
                client._segment_client.create_table(settings.table),
                client._segment_client.create_segment(settings.bytes_segment),
            ):
                try:
                    await create
                except SegmentExistsError:
                    pass  # The run uses the data of an earlier run.

    def stop(self) -> None:
        """Stop new work of the clients. Call it when the servers are healthy."""
        self._is_over.set()

    async def run(self) -> None:
        """Run all clients until `stop`, then until each has settled its open work.

        Clients that have not ended after `settle_timeout_s` are cancelled and reported in `problems`.
        """
        settings = self.settings
        tasks = [
            asyncio.create_task(self._client(f"{kind}-{number}", work), name=f"{kind}-{number}")
            for kind, count, work in (
                ("writer", settings.writer_count, self._write),
                ("transactor", settings.transaction_client_count, self._transact),
                ("table", settings.table_client_count, self._use_table),
                ("appender", 1, self._append),
                ("byte-reader", 1, self._read_bytes),
            )
            for number in range(count)
        ]
        following = asyncio.create_task(self._client("follower", self._follow), name="follower")
        try:
            await self._is_over.wait()
            await self._ended(tasks)
            self._is_written.set()
            await self._ended([following])
        finally:
            await cancel_and_wait(*tasks, following)

    async def _ended(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        done, pending = await asyncio.wait(tasks, timeout=self.settings.settle_timeout_s)
        for task in pending:
            self.problems.append(f"{task.get_name()} has not ended {self.settings.settle_timeout_s:g} s after the end")
        for task in done:
            error = task.exception()
            if isinstance(error, (PenstockError, TimeoutError)):
                self.problems.append(f"{task.get_name()} failed: {type(error).__name__}: {error}")
            elif error is not None:
                raise error

    async def read_whole(self, name: str) -> None:
        """Read the stream from head to tail as pass `name`. Call it when there are no writes and no faults."""
        reading = self.history.invoke(name, FullRead(self.settings.stream, name))
        try:
            async with (
                self._connect() as client,
                await client.reader_group(name, [self.settings.stream]) as group,
                await group.reader(name) as reader,
            ):
                await self._read_to_tail(client, name, reader.read, {})
        except (PenstockError, TimeoutError) as error:
            self.history.fail(reading, error)
            self.problems.append(f"pass {name} did not reach the tail: {type(error).__name__}: {error}")
        else:
            self.history.ok(reading)

    # -- clients ------------------------------------------------------------------------------------------------

    async def _client(self, name: str, work: Callable[[str, Client, random.Random], Awaitable[None]]) -> None:
        async with self._connect() as client:
            await work(name, client, random.Random(f"{self._seed}/{name}"))

    async def _pause(self, rng: random.Random) -> None:
        await asyncio.sleep(rng.uniform(0.0, self.settings.pause_s_max))

    def _problem(self, name: str, error: PenstockError) -> None:
        """Record an error, unless a fault explains it."""
        text = f"{name}: {type(error).__name__}: {error}"
        # Record each error once: one error fails many events.
        is_new = text not in self.problems and len(self.problems) < _PROBLEMS_KEPT_MAX
        if is_new and not isinstance(error, PASSING_ERRORS):
            self.problems.append(text)

    def _event(self, name: str, rng: random.Random, number: int) -> tuple[str, bytes]:
        key = f"key-{rng.randrange(self.settings.key_count)}"
        padding = "." * rng.choice((0, 10, 100, self.settings.padding_bytes_max))
        return key, f"{key} {name} {number} {padding}".encode()

    async def _write(self, name: str, client: Client, rng: random.Random) -> None:
        settings, history = self.settings, self.history
        number = 0
        writer: EventWriter | None = None
        while not self._is_over.is_set():
            try:
                if writer is None:
                    writer = await client.event_writer(settings.stream)
                last: AckState | None = None
                for _ in range(rng.randint(1, settings.burst_event_count_max)):
                    number += 1
                    key, event = self._event(name, rng, number)
                    called = history.invoke(name, WriteEvent(settings.stream, key, event))
                    last = await writer.write(event, key)
                    when_done(last, partial(self._written, name, called, last))
                # Some bursts are acknowledged before the next begins; others overlap.
                is_full = writer.unacknowledged_bytes > settings.unacknowledged_bytes_max
                if last is not None and (is_full or rng.random() < 0.3):
                    await settled(last)
                await self._pause(rng)
            except PenstockError as error:
                self._problem(name, error)
                if writer is not None:
                    await writer.abandon()
                    writer = None
                await asyncio.sleep(_POLL_S)
        if writer is not None:
            try:
                await writer.close()
            except PenstockError as error:
                self._problem(name, error)

    def _written(self, name: str, called: Invocation, ack: AckState) -> None:
        if ack.error is None:
            self.history.ok(called)
        else:
            self._problem(name, ack.error)
            self.history.unknown(called, ack.error)

    async def _transact(self, name: str, client: Client, rng: random.Random) -> None:
        stream = self.settings.stream
        number = 0
        while not self._is_over.is_set():
            try:
                transaction = await client.begin_transaction(stream, lease_s=self.settings.lease_s)
            except PenstockError as error:
                self._problem(name, error)
                await asyncio.sleep(_POLL_S)
                continue
            try:
                for _ in range(rng.randint(1, self.settings.transaction_event_count_max)):
                    number += 1
                    key, event = self._event(name, rng, number)
                    called = self.history.invoke(name, WriteEvent(stream, key, event, transaction.id))
                    ack = await transaction.write(event, key)
                    when_done(ack, partial(self._written, name, called, ack))
                    await self._pause(rng)
                await transaction.flush()
            except PenstockError as error:
                self._problem(name, error)
                await self._end(name, transaction, is_commit=False)
            else:
                await self._end(name, transaction, is_commit=rng.random() < 0.7)
            await self._pause(rng)

    async def _end(self, name: str, transaction: Transaction, *, is_commit: bool) -> None:
        """Retry commit or abort until the outcome is known and applied."""
        stream = self.settings.stream
        make = CommitTransaction if is_commit else AbortTransaction
        is_decided = False
        while True:
            called = None if is_decided else self.history.invoke(name, make(stream, transaction.id))
            try:
                if called is not None:
                    await (transaction.commit() if is_commit else transaction.abort())
                    self.history.ok(called)
                    is_decided = True
                    called = None
                # Readers see the events soon; only then may the final read start.
                if await transaction.state() not in ("COMMITTING", "ABORTING"):
                    return
            except TransactionError as error:
                if called is not None:
                    self.history.refuse(called, error)
                # The lease is longer than any fault, and no other client ends the transaction.
                self.problems.append(f"{name}: {error}")
                return
            except PenstockError as error:
                if called is not None:
                    self.history.unknown(called, error)
                self._problem(name, error)
            await asyncio.sleep(_POLL_S)

    async def _follow(self, name: str, client: Client, rng: random.Random) -> None:
        """Read events as they arrive, through all faults: each once, in order, and finally all of them."""
        stream = self.settings.stream
        ends: dict[int, int] = {}
        group = await self._patiently(lambda: client.reader_group(name, [stream]))
        async with group, await self._patiently(lambda: group.reader(name)) as reader:
            while not self._is_written.is_set():
                try:
                    event = await reader.read(_POLL_S)
                except PASSING_ERRORS:
                    continue
                if event is not None:
                    self._seen(name, event, ends)
            # The events so far are the first part of a full read.
            reading = self.history.invoke(name, FullRead(stream, name))
            await self._read_to_tail(client, name, reader.read, ends)
            self.history.ok(reading)

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except PASSING_ERRORS:
                await asyncio.sleep(_POLL_S)

    async def _read_to_tail(
        self, client: Client, name: str, read: Callable[[float], Awaitable[Event | None]], ends: dict[int, int]
    ) -> None:
        tail = (await client.tail(self.settings.stream)).positions
        async with asyncio.timeout(self.settings.settle_timeout_s):
            while any(ends.get(segment, 0) < offset for segment, offset in tail.items()):
                event = await read(_POLL_S)
                if event is not None:
                    self._seen(name, event, ends)

    def _seen(self, name: str, event: Event, ends: dict[int, int]) -> None:
        ends[event.segment_id] = event.position
        key = event.data.partition(b" ")[0].decode()
        segment = segment_name(*split_scoped_name(event.stream), event.segment_id)
        self.history.see(name, EventSeen(event.stream, name, segment, event.offset, event.data, key))

    # -- tables and bytes ---------------------------------------------------------------------------------------

    async def _use_table(self, name: str, client: Client, rng: random.Random) -> None:
        """Read a key, then change it on condition of the version read, or sometimes unconditionally."""
        table, segments = self.settings.table, client._segment_client
        while not self._is_over.is_set():
            await self._pause(rng)
            key = f"key-{rng.randrange(self.settings.table_key_count)}".encode()
            called = self.history.invoke(name, GetKey(table, key))
            try:
                (entry,) = await segments.table_get(table, [key])
            except PenstockError as error:
                self._problem(name, error)
                self.history.unknown(called, error)
                continue
            self.history.ok(called, None if entry is None else KeyValue(entry.value, entry.version))
            expected = VERSION_ABSENT if entry is None else entry.version
            if rng.random() < 0.1:
                expected = VERSION_ANY
            is_put = entry is None or rng.random() < 0.8
            self._values += 1
            value = f"{name} {self._values}".encode()
            called = self.history.invoke(
                name, PutKey(table, key, value, expected) if is_put else RemoveKey(table, key, expected)
            )
            try:
                if is_put:
                    (version,) = await segments.table_put(table, [TableUpdate(key, value, expected)])
                    self.history.ok(called, version)
                else:
                    await segments.table_remove(table, [TableRemoval(key, expected)])
                    self.history.ok(called)
            except (TableKeyVersionError, TableKeyMissingError) as error:
                self.history.refuse(called, error)
            except PenstockError as error:
                self._problem(name, error)
                self.history.unknown(called, error)

    async def _append(self, name: str, client: Client, rng: random.Random) -> None:
        segment = self.settings.bytes_segment
        while not self._is_over.is_set():
            await self._pause(rng)
            data = rng.randbytes(rng.choice((1, 100, self.settings.padding_bytes_max)))
            called = self.history.invoke(name, AppendBytes(segment, data))
            try:
                end = await client._segment_client.append(segment, data)
            except PenstockError as error:
                self._problem(name, error)
                self.history.unknown(called, error)
            else:
                self.history.ok(called, end - len(data))
                self.history.see(name, OffsetSeen(segment, end))

    async def _read_bytes(self, name: str, client: Client, rng: random.Random) -> None:
        segment = self.settings.bytes_segment
        while not self._is_over.is_set():
            await self._pause(rng)
            called: Invocation | None = None
            try:
                info = await client._segment_client.segment_info(segment)
                self.history.see(name, OffsetSeen(segment, info.length))
                if not info.length:
                    continue
                # Near the tail, where a crash could lose data, and at random offsets.
                offset = rng.choice((max(info.length - 500, 0), rng.randrange(info.length)))
                called = self.history.invoke(name, ReadRange(segment, offset))
                found = await client._segment_client.read(segment, offset, 4000)
                self.history.ok(called, found.joined())
            except PenstockError as error:
                self._problem(name, error)
                if called is not None:
                    self.history.unknown(called, error)
