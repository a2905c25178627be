"""Streams against `penstock_simulation.model`: any order of calls, with crashes between and in the middle of them.

The production client, controller and segment store run in virtual time (`support.simulated_stack`). Every call ends
as the model says, result or error, and what can be read is what the model has: of each routing key, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from penstock.client.groups.reader import Reader
from penstock.client.groups.reader_group import ReaderGroup
from penstock.client.transactions.transaction import Transaction
from penstock.client.writing.event_writer import EventWriter
from penstock.model.errors import (
    NoSuchStreamError,
    OutcomeUnknownError,
    PenstockError,
    SegmentTruncatedError,
    StreamExistsError,
    StreamSealedError,
    TransactionError,
)
from penstock.model.events import split_events
from penstock.model.names import segment_name
from penstock.model.policies import Scaling
from penstock.model.stream_cuts import StreamCut
from penstock_simulation.model import Cut, GroupModel, StreamModel, StreamsModel
from support.simulated_stack import SimulatedStack, state_machine_settings

T = TypeVar("T")

#: For the nights; by day it takes seconds.
pytestmark = pytest.mark.timeout(3600)

SCOPE = "scope"
NAMES = st.sampled_from(["a", "b"])
KEYS = st.sampled_from(["k1", "k2", "k3", "k4", "k5"])
LENGTHS = st.sampled_from([0, 1, 30, 200, 900])
WRITES = st.lists(st.tuples(KEYS, LENGTHS), max_size=12)
TAGS = st.lists(st.sampled_from(["red", "green", "blue"]), unique=True, max_size=2)
#: When in the course of a call the crash comes, in virtual seconds: a whole call takes some milliseconds.
MOMENTS = st.floats(0.0, 0.02)

#: (stream, its incarnation in the model, cut of the model, cut of the client)
TakenCut = tuple[str, StreamModel, Cut, StreamCut]


# Invariants: what must hold whenever nothing is under way.


async def check_listing(stack: SimulatedStack, model: StreamsModel) -> None:
    """The scope lists the model's streams, each with its tags, and finds them by tag."""
    client = stack.client
    assert [name async for name in client.streams(SCOPE)] == sorted(model.streams)
    for tag in ("red", "green", "blue"):
        expected = sorted(name for name, stream in model.streams.items() if tag in stream.tags)
        assert [name async for name in client.streams(SCOPE, tag=tag)] == expected
    for name, stream in model.streams.items():
        assert sorted((await client.stream_config(f"{SCOPE}/{name}")).tags) == sorted(stream.tags)


async def check_events(stack: SimulatedStack, model: StreamsModel) -> None:
    """Reading each stream from its head to its tail gives the model's events, key by key, and is a tiling of bytes."""
    client = stack.client
    for name, stream in model.streams.items():
        full_name = f"{SCOPE}/{name}"
        head, tail = await client.head(full_name), await client.tail(full_name)
        assert head.positions.keys() == tail.positions.keys()
        found: dict[str, list[bytes]] = {}
        for segment, end in tail.positions.items():
            segment_full_name = segment_name(SCOPE, name, segment)
            info = await client._segment_client.segment_info(segment_full_name)
            assert (info.start_offset, info.length, info.is_sealed) == (head.positions[segment], end, stream.is_sealed)
            async with client.segment_reader(segment_full_name, head.positions[segment], end) as reader:
                data = b"".join([block async for block in reader])
            events, consumed = split_events(data)
            assert consumed == len(data)
            for event in events:
                found.setdefault(key_of(event), []).append(event)
        assert found == stream.visible()


async def check_transactions(stack: SimulatedStack, machine: StreamMachine) -> None:
    """Open transactions are open, ended ones are not."""
    for name, stream, transaction in machine.transactions:
        if machine.model.streams.get(name) is stream:
            is_open = transaction.id in stream.transactions
            assert (await transaction.state() == "OPEN") is is_open


def key_of(event: bytes) -> str:
    return event.partition(b" ")[0].decode()


class StreamMachine(RuleBasedStateMachine):
    """Streams of one scope, their transactions, cuts and reader groups."""

    cuts = Bundle("cuts")
    open_transactions = Bundle("transactions")
    groups = Bundle("groups")

    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed: int) -> None:
        self.stack = SimulatedStack(seed)
        self.model = StreamsModel()
        self.transactions: list[tuple[str, StreamModel, Transaction]] = []
        self.writers: dict[str, EventWriter] = {}
        self._count = 0
        self.stack.call(lambda: self.stack.client.create_scope(SCOPE))

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            try:
                self.stack.pass_time(1.0)
                self.stack.crash()
                self.stack.call(lambda: check_events(self.stack, self.model))
                self.stack.call(lambda: check_listing(self.stack, self.model))
            finally:
                self.stack.close()

    # -- both sides ---------------------------------------------------------------------------------------------

    def _both(
        self, expect: Callable[[], object], work: Callable[[], Coroutine[object, object, T]], crash_s: float | None
    ) -> tuple[T | None, type[PenstockError] | None]:
        """Do it to the model and to the cluster; both must end alike. Return the cluster's result, and the error."""
        expected: type[PenstockError] | None = None
        try:
            expect()
        except PenstockError as error:
            expected = type(error)

        async def attempt() -> tuple[T | None, type[PenstockError] | None]:
            try:
                return await work(), None
            except PenstockError as error:
                if type(error) is not expected:
                    raise
                return None, expected

        run = self.stack.call if crash_s is None else (lambda call: self.stack.call_and_crash(call, crash_s))
        result, raised = run(attempt)
        assert raised is expected, f"the model says {expected}, the cluster {raised}"
        return result, raised

    def _events(self, writes: list[tuple[str, int]]) -> list[tuple[str, bytes]]:
        events = []
        for key, length in writes:
            self._count += 1
            events.append((key, f"{key} {self._count} ".encode() + b"." * length))
        return events

    # -- streams ------------------------------------------------------------------------------------------------

    @rule(name=NAMES, segments=st.integers(1, 3), tags=TAGS, crash_s=st.none() | MOMENTS)
    def create(self, name: str, segments: int, tags: list[str], crash_s: float | None) -> None:
        """After a crash the client may not know whether the stream is its own; there is one in any case."""
        is_new = name not in self.model.streams

        async def work() -> None:
            try:
                await self.stack.client.create_stream(f"{SCOPE}/{name}", scaling=Scaling.fixed(segments), tags=tags)
            except OutcomeUnknownError as error:
                if not is_new:
                    raise StreamExistsError("as it turns out") from error

        self._both(lambda: self.model.create(name, tags), work, crash_s)

    @rule(name=NAMES, tags=TAGS, crash_s=st.none() | MOMENTS)
    def update(self, name: str, tags: list[str], crash_s: float | None) -> None:
        self._both(
            lambda: self.model.update(name, tags),
            lambda: self.stack.client.update_stream(f"{SCOPE}/{name}", tags=tags),
            crash_s,
        )

    @rule(name=NAMES, is_meant=st.sampled_from([False, False, True]), crash_s=st.none() | MOMENTS)
    def seal(self, name: str, is_meant: bool, crash_s: float | None) -> None:
        if is_meant:  # Most examples should have streams to write to.
            self._both(lambda: self.model.seal(name), lambda: self.stack.client.seal_stream(f"{SCOPE}/{name}"), crash_s)

    @rule(name=NAMES, crash_s=st.none() | MOMENTS)
    def delete(self, name: str, crash_s: float | None) -> None:
        if name not in self.model.streams:
            crash_s = None  # A client that had to ask twice takes "there is none" for success.
        _, error = self._both(
            lambda: self.model.delete(name), lambda: self.stack.client.delete_stream(f"{SCOPE}/{name}"), crash_s
        )
        if error is None and name in self.writers:
            self.stack.call(self.writers.pop(name).abandon)

    @rule(target=cuts, name=NAMES)
    def take_cut(self, name: str) -> TakenCut | object:
        stream = self.model.streams.get(name)
        if stream is None:
            return multiple()
        return name, stream, stream.tail(), self.stack.call(lambda: self.stack.client.tail(f"{SCOPE}/{name}"))

    @rule(taken=cuts, crash_s=st.none() | MOMENTS)
    def truncate(self, taken: TakenCut, crash_s: float | None) -> None:
        name, stream, cut, real_cut = taken
        if self.model.streams.get(name, stream) is stream:
            self._both(
                lambda: self.model.truncate(name, cut), lambda: self.stack.client.truncate_stream(real_cut), crash_s
            )

    # -- events -------------------------------------------------------------------------------------------------

    @rule(name=NAMES, writes=WRITES, crash_s=st.none() | MOMENTS)
    def write(self, name: str, writes: list[tuple[str, int]], crash_s: float | None) -> None:
        """A crash in the middle changes nothing: the writer finds out which events are stored and sends the rest."""
        events = self._events(writes)

        async def work() -> None:
            async with self.stack.client.event_writer(f"{SCOPE}/{name}") as writer:
                for key, event in events:
                    await writer.write(event, key)

        self._both(lambda: self.model.write(name, events), work, crash_s)

    @rule(name=NAMES, writes=WRITES.filter(bool), crash_s=st.none() | MOMENTS)
    def write_with_a_lasting_writer(self, name: str, writes: list[tuple[str, int]], crash_s: float | None) -> None:
        """A writer that stays open lives through crashes, also while it has nothing to do, until a seal ends it."""
        events = self._events(writes)

        async def work() -> None:
            if name not in self.writers:
                self.writers[name] = await self.stack.client.event_writer(f"{SCOPE}/{name}")
            try:
                for key, event in events:
                    await self.writers[name].write(event, key)
                await self.writers[name].flush()
            except StreamSealedError:
                await self.writers.pop(name).abandon()
                raise

        self._both(lambda: self.model.write(name, events), work, crash_s)

    @rule(target=open_transactions, name=NAMES, crash_s=st.none() | MOMENTS)
    def begin_transaction(self, name: str, crash_s: float | None) -> tuple[str, StreamModel, Transaction] | object:
        transaction, _ = self._both(
            lambda: self.model.writable(name),
            lambda: self.stack.client.begin_transaction(f"{SCOPE}/{name}"),  # type: ignore[arg-type, return-value]
            crash_s,
        )
        if transaction is None:
            return multiple()
        self.model.begin(name, transaction.id)  # type: ignore[unreachable]
        opened = (name, self.model.stream(name), transaction)
        self.transactions.append(opened)
        return opened

    @rule(opened=open_transactions, writes=WRITES, crash_s=st.none() | MOMENTS)
    def write_in_transaction(
        self, opened: tuple[str, StreamModel, Transaction], writes: list[tuple[str, int]], crash_s: float | None
    ) -> None:
        _, stream, transaction = opened
        if transaction.id not in stream.transactions:
            return  # Sealing the stream aborted it; committing it shows that.
        events = self._events(writes)

        async def work() -> None:
            for key, event in events:
                await transaction.write(event, key)
            await transaction.flush()

        self._both(lambda: stream.transactions[transaction.id].extend(events), work, crash_s)

    @rule(opened=consumes(open_transactions), is_commit=st.booleans(), crash_s=st.none() | MOMENTS)
    def end_transaction(
        self, opened: tuple[str, StreamModel, Transaction], is_commit: bool, crash_s: float | None
    ) -> None:
        name, stream, transaction = opened
        self.transactions = [known for known in self.transactions if known[2] is not transaction]
        if self.model.streams.get(name) is not stream:
            # The stream is gone, perhaps a new one has its name: not a trace of the transaction either way.
            async def forget() -> None:
                try:
                    await transaction.abort()
                except (TransactionError, NoSuchStreamError):
                    pass

            self.stack.call(forget)
            return
        if not is_commit and transaction.id not in stream.transactions:
            self.stack.call(transaction.abort)  # Aborted by the seal: aborting again is fine.
            return

        async def work() -> None:
            await (transaction.commit() if is_commit else transaction.abort())
            # The controller sends no notification when it is done.
            while await transaction.state() in ("COMMITTING", "ABORTING"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        self._both(lambda: (self.model.commit if is_commit else self.model.abort)(name, transaction.id), work, crash_s)

    # -- reader groups ------------------------------------------------------------------------------------------

    @rule(target=groups, name=NAMES, is_from_tail=st.booleans())
    def create_group(self, name: str, is_from_tail: bool) -> object:
        stream = self.model.streams.get(name)
        if stream is None:
            return multiple()
        self._count += 1
        group_name = f"group-{self._count}"

        async def work() -> tuple[ReaderGroup, Reader]:
            start = "tail" if is_from_tail else "head"
            group = await self.stack.client.reader_group(group_name, [f"{SCOPE}/{name}"], start=start)
            return group, await group.reader("reader")

        group, reader = self.stack.call(work)
        model = GroupModel(stream, stream.tail() if is_from_tail else dict(stream.head))
        return [name, stream, model, group, reader]

    @rule(joined=groups, count=st.integers(1, 20), crash_s=st.none() | MOMENTS)
    def read(self, joined: list[object], count: int, crash_s: float | None) -> None:
        """A group reads the next event of some key; it gets one error for events that were truncated before it."""
        name, stream, model, _, reader = joined
        assert isinstance(model, GroupModel)
        assert isinstance(reader, Reader)
        if self.model.streams.get(str(name)) is not stream:
            return

        async def work() -> None:
            for _ in range(min(count, sum(map(len, model.unread().values())))):
                while True:
                    try:
                        event = await reader.read(60.0)
                        break
                    except SegmentTruncatedError:
                        assert model.has_lost()
                if event is None:
                    assert not model.unread()
                    return
                model.read(key_of(event.data), event.data)

        if crash_s is None:
            self.stack.call(work)
        else:
            self.stack.call_and_crash(work, crash_s)

    @rule(joined=groups)
    def replace_reader(self, joined: list[object]) -> None:
        """Close a group's reader and start another one: it resumes where the first was."""
        name, stream, _, group, reader = joined
        assert isinstance(group, ReaderGroup)
        assert isinstance(reader, Reader)
        if self.model.streams.get(str(name)) is not stream:
            return

        async def work() -> Reader:
            await reader.close()
            return await group.reader(f"reader-{self._count}")

        self._count += 1
        joined[4] = self.stack.call(work)

    # -- the world ----------------------------------------------------------------------------------------------

    @rule()
    def crash(self) -> None:
        self.stack.crash()

    @rule(seconds=st.sampled_from([0.1, 2.0, 20.0]))
    def pass_time(self, seconds: float) -> None:
        """Flushes, checkpoints, log truncation, lease renewals."""
        self.stack.pass_time(seconds)

    @rule()
    def compare(self) -> None:
        self.stack.call(lambda: check_events(self.stack, self.model))
        self.stack.call(lambda: check_listing(self.stack, self.model))
        self.stack.call(lambda: check_transactions(self.stack, self))

    @invariant()
    def server_lives(self) -> None:
        if hasattr(self, "stack"):
            assert not self.stack.server.failures


def test_a_sealed_stream_refuses_a_transaction_at_once() -> None:
    """A controller can only say INTERNAL, which the client took for a passing fault and repeated for seconds."""
    stack = SimulatedStack()

    async def scenario() -> float:
        await stack.client.create_stream("scope/a")
        await stack.client.seal_stream("scope/a")
        begin_s = asyncio.get_running_loop().time()
        with pytest.raises(StreamSealedError, match="scope/a is sealed"):
            await stack.client.begin_transaction("scope/a")
        return asyncio.get_running_loop().time() - begin_s

    assert stack.call(scenario) < 1.0
    stack.close()


TestStreams = StreamMachine.TestCase
TestStreams.settings = state_machine_settings(max_examples=40, stateful_step_count=40)
