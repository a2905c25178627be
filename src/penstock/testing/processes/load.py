"""Clients that write, read and change tables while servers come and go, and write down what happened.

Each uses the production client in production ways and records calls and observations in one `History`. They stop
when told to, settle what is open (no fault may be under way by then), and end. The load's shape (keys, sizes, which
call next) comes from a seed.

An event says its own key, writer and number: ``key writer number padding``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from penstock.client.ack import AckState
from penstock.client.client import Client
from penstock.client.event import Event
from penstock.client.event_writer import EventWriter
from penstock.client.transaction import Transaction
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
from penstock.testing.checks.history_events import (
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

#: Errors that a fault may cause in a call that promises no more than to say so.
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
        burst_event_count_max: events that a writer writes at once.
        unacknowledged_bytes_max: of a writer; above that it waits for its last burst.
        pause_s_max: longest pause of any client between two steps.
        padding_bytes_max: of an event.
        transaction_client_count, transaction_event_count_max: transactions, one after another, per client.
        lease_s: of a transaction; longer than the server is ever away.
        table_client_count, table_key_count: clients that race for the keys of one table.
        settle_timeout_s: how long clients may take to end once the servers are well.
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
        """Full name of the segment that is appended to without events."""
        return segment_name(split_scoped_name(self.stream)[0], "bytes", 0)


class Load:
    """The clients of one run. `connect` makes a client; each task makes its own, as separate programs would.

    `problems` has errors that no fault explains.
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
        """Make the stream, the table and the segment. While nothing fails yet."""
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
                    pass  # A run on data of an earlier one.

    def stop(self) -> None:
        """Let the clients begin nothing new. Call it when the servers are well."""
        self._is_over.set()

    async def run(self) -> None:
        """Run all clients until `stop`, then until each has settled what it had begun.

        Those that have not after `settle_timeout_s` are ended, and told of in `problems`.
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
            for task in (*tasks, following):
                task.cancel()
            await asyncio.gather(*tasks, following, return_exceptions=True)

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
        """Read the stream from its head to its tail as pass `name`. While nothing is written and nothing fails."""
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
        """Note an error, unless it is one that a fault explains."""
        text = f"{name}: {type(error).__name__}: {error}"
        # Each once: one error ends many events.
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
                    last._when_done(partial(self._written, name, called, last))
                # Some bursts are acknowledged before the next begins, others go out on top of each other.
                is_full = writer.unacknowledged_bytes > settings.unacknowledged_bytes_max
                if last is not None and (is_full or rng.random() < 0.3):
                    await last._settled()
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
                    ack._when_done(partial(self._written, name, called, ack))
                    await self._pause(rng)
                await transaction.flush()
            except PenstockError as error:
                self._problem(name, error)
                await self._end(name, transaction, is_commit=False)
            else:
                await self._end(name, transaction, is_commit=rng.random() < 0.7)
            await self._pause(rng)

    async def _end(self, name: str, transaction: Transaction, *, is_commit: bool) -> None:
        """Commit or abort, again and again until the answer is known and carried out."""
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
                # Readers see it soon; only then may anybody read to the end.
                if await transaction.state() not in ("COMMITTING", "ABORTING"):
                    return
            except TransactionError as error:
                if called is not None:
                    self.history.refuse(called, error)
                # The lease is longer than any fault, and nobody else ends it.
                self.problems.append(f"{name}: {error}")
                return
            except PenstockError as error:
                if called is not None:
                    self.history.unknown(called, error)
                self._problem(name, error)
            await asyncio.sleep(_POLL_S)

    async def _follow(self, name: str, client: Client, rng: random.Random) -> None:
        """Read as the events come, through all faults: each once, in order, and all in the end."""
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
            # What it saw so far counts: a full read with a long beginning.
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
        """Read a key, then change it on condition that it is as read; sometimes without condition."""
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
                # Near the tail, where a crash could take something back, and anywhere.
                offset = rng.choice((max(info.length - 500, 0), rng.randrange(info.length)))
                called = self.history.invoke(name, ReadRange(segment, offset))
                found = await client._segment_client.read(segment, offset, 4000)
                self.history.ok(called, found.joined())
            except PenstockError as error:
                self._problem(name, error)
                if called is not None:
                    self.history.unknown(called, error)
