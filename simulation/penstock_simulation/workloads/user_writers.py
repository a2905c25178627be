"""Users that write: their writers and transactions end in all ways, and every acknowledgement must settle."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from functools import partial

from penstock.client.client import Client
from penstock.client.transactions.transaction import Transaction
from penstock.client.writing.ack import AckState, when_done
from penstock.client.writing.event_writer import EventWriter
from penstock.model.errors import PenstockError, StreamError, TransactionError
from penstock.rpc import controller_pb2 as pb
from penstock_simulation.checks.history import AbortTransaction, CommitTransaction, Invocation, WriteEvent
from penstock_simulation.simulated.cancellation import CutShortError, cut_short
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.events import make_event
from penstock_simulation.workloads.users import (
    End,
    UserHabits,
    close_client,
    draw_suspension,
    draw_user_settings,
    in_time,
    maybe_cut,
)
from penstock_simulation.workloads.world import Workload, World

#: Time after closing everything until an acknowledgement that has not settled is a failure.
_SETTLE_S = 0.01
_OVER = ("COMMITTED", "ABORTED", "UNKNOWN")


class UserWriter(Workload):
    """Writes keyed events through a sequence of writers. Accepted events are stored or reported as failed."""

    def __init__(
        self, world: World, host: Host, name: str, rng: random.Random, *, stream: str, keys: tuple[str, ...],
        habits: UserHabits,
    ) -> None:  # fmt: skip
        super().__init__(world, host, name, rng)
        self._stream = stream
        self._keys = keys
        self._habits = habits
        self._cut_rate = habits.cut_rate
        self._number = 0
        self._session = 0

    async def run(self) -> None:
        """See `Workload.run`."""
        world = self.world
        while world.is_writing:
            await self.rest(0.2)
            client = world.cluster.client(
                self.host, draw_user_settings(self.rng, world.cluster.settings.client, self._habits)
            )
            client._open()
            try:
                await self._use(client)
            finally:
                await close_client(self.world, self.host, client)

    async def _use(self, client: Client) -> None:
        limit_s = client.settings.retry_time_max_s
        try:
            if self.rng.random() < 0.3:
                await in_time(self.world, self.host, "tail", limit_s, client.tail(self._stream))
                joining = client.reader_group("idle", [self._stream])
                await in_time(self.world, self.host, "joining a group", limit_s, joining)
            starting = client.event_writer(self._stream)._start()
            writer = await in_time(self.world, self.host, "opening a writer", limit_s, starting)
        except PenstockError as error:
            if not self.world.is_passing(error):
                self.world.problem(f"{self.name} cannot open a writer: {error!r}")
            return
        # A separate writer in the history: data in flight of an abandoned writer may be stored after later events.
        self._session += 1
        acks: list[AckState] = []
        end = self.rng.choice(self._habits.ends)
        for _ in range(self.rng.randint(1, 40)):
            if not await self._write(writer, acks):
                break
            if self.rng.random() < 0.3:
                await self.rest(0.1)
        is_stored = await self._end(end, client, writer, acks)
        await close_client(self.world, self.host, client)
        await asyncio.sleep(_SETTLE_S)
        unsettled = sum(not ack.is_done for ack in acks)
        if unsettled:
            self.world.problem(f"{self.name}: {unsettled} of {len(acks)} acks have not settled after {end.value}")
        failed = [ack.error for ack in acks if ack.error is not None]
        if is_stored and failed:
            share = f"{len(failed)} of {len(acks)}"
            self.world.problem(f"{self.name}: {end.value} raised nothing, but {share} events failed: {failed[0]!r}")
        self.world.counts[f"user writers: {end.value}"] += 1

    async def _write(self, writer: EventWriter, acks: list[AckState]) -> bool:
        """Write an event; return whether another may follow."""
        world, rng = self.world, self.rng
        key = rng.choice(self._keys)
        self._number += 1
        event = make_event(self._stream, self.name, key, self._number, world.padding(rng))
        call = world.history.invoke(f"{self.name}.{self._session}", WriteEvent(self._stream, key, event))
        try:
            ack = await maybe_cut(rng, self._cut_rate, writer.write(event, key))
        except (CutShortError, PenstockError) as error:
            world.history.unknown(call, error)
            return isinstance(error, CutShortError)
        acks.append(ack)
        world.counts["events of users"] += 1
        when_done(ack, partial(self._settled, call, ack))
        return True

    async def _end(self, end: End, client: Client, writer: EventWriter, acks: list[AckState]) -> bool:
        """Stop using the writer. Returns True if everything was reported as stored."""
        closing: asyncio.Task[None] | None = None
        try:
            match end:
                case End.CLOSES:
                    await self._closing(client, writer.close())
                case End.CLOSES_WHILE_WRITING:
                    closing = asyncio.create_task(self._closing(client, writer.close()))
                    for _ in range(self.rng.randint(1, 50)):
                        if not await self._write(writer, acks):
                            break
                        await asyncio.sleep(0.0)
                    await closing
                case End.CLOSES_THE_CLIENT:
                    await self._closing(client, client.close())
                case End.IS_CANCELLED:
                    await self._closing(client, cut_short(writer.close(), draw_suspension(self.rng)))
                case End.ABANDONS:
                    await in_time(self.world, self.host, "abandoning a writer", 0.0, writer.abandon())
                    return False
        except (CutShortError, PenstockError):
            return False
        return True

    async def _closing(self, client: Client, closing: Awaitable[None]) -> None:
        await in_time(self.world, self.host, "closing a writer", client.settings.close_timeout_s, closing)

    def _settled(self, call: Invocation, ack: AckState) -> None:
        if ack.error is None:
            self.world.history.ok(call)
        else:
            self.world.history.unknown(call, ack.error)


def _signed(text: str) -> int:
    """Return a signed 64-bit number from its 16 hexadecimal digits."""
    return int.from_bytes(bytes.fromhex(text), "big", signed=True)


class UserTransactions(Workload):
    """Commits and aborts, and retries failed commits. A successful commit has everything that was written."""

    def __init__(
        self, world: World, host: Host, name: str, rng: random.Random, *, stream: str, habits: UserHabits
    ) -> None:
        super().__init__(world, host, name, rng)
        self._stream = stream
        self._habits = habits
        self._cut_rate = habits.cut_rate
        self._keys = tuple(f"{name}-key-{number}" for number in range(3))
        self._number = 0
        self._begun: list[str] = []

    async def run(self) -> None:
        """See `Workload.run`."""
        world = self.world
        while world.is_writing:
            await self.rest(0.5)
            client = world.cluster.client(
                self.host, draw_user_settings(self.rng, world.cluster.settings.client, self._habits)
            )
            client._open()
            try:
                await self._use(client)
            except CutShortError:
                continue  # One without a reply expires by itself.
            except StreamError as error:
                if not world.is_passing(error):
                    world.problem(f"{self.name} cannot use a transaction: {error!r}")
            except PenstockError as error:
                if not world.is_passing(error):
                    raise
            finally:
                await close_client(self.world, self.host, client)
        for transaction in self._begun:
            await self._await_end(transaction)

    async def _use(self, client: Client) -> None:
        rng, history, limit_s = self.rng, self.world.history, client.settings.retry_time_max_s
        beginning = maybe_cut(rng, self._cut_rate, client.begin_transaction(self._stream, lease_s=10.0))
        transaction = await in_time(self.world, self.host, "beginning a transaction", limit_s, beginning)
        self._begun.append(transaction.id)
        written: list[Invocation] = []
        is_committed = False
        try:
            for _ in range(rng.randint(1, 10)):
                key = rng.choice(self._keys)
                self._number += 1
                event = make_event(self._stream, self.name, key, self._number, self.world.padding(rng))
                call = history.invoke(self.name, WriteEvent(self._stream, key, event, transaction.id))
                try:
                    await maybe_cut(rng, self._cut_rate, transaction.write(event, key))
                except (CutShortError, PenstockError) as error:
                    history.unknown(call, error)
                    break
                written.append(call)
            if rng.random() < 0.8:
                is_committed = await self._commit(transaction)
            else:
                await self._abort(transaction)
        finally:
            for call in written:
                if is_committed:
                    # The commit has confirmed all of them.
                    history.ok(call)
                else:
                    history.unknown(call, "not committed as far as the user knows")

    async def _commit(self, transaction: Transaction) -> bool:
        """Commit, with retries if necessary. Returns True if it is committed."""
        world, history = self.world, self.world.history
        for _ in range(6):
            call = history.invoke(self.name, CommitTransaction(self._stream, transaction.id))
            try:
                await maybe_cut(self.rng, self._cut_rate, transaction.commit())
            except TransactionError as error:
                history.fail(call, error)
                return False
            except (CutShortError, PenstockError) as error:
                history.unknown(call, error)
                await self.rest(0.5)
            else:
                history.ok(call)
                world.counts["user transactions committed"] += 1
                return True
        return False

    async def _abort(self, transaction: Transaction) -> None:
        history = self.world.history
        call = history.invoke(self.name, AbortTransaction(self._stream, transaction.id))
        try:
            await maybe_cut(self.rng, self._cut_rate, transaction.abort())
        except TransactionError as error:
            history.fail(call, error)
        except (CutShortError, PenstockError) as error:
            history.unknown(call, error)
        else:
            history.ok(call)
            self.world.counts["user transactions aborted"] += 1

    async def _await_end(self, transaction: str) -> None:
        """Wait until the state of a transaction is final: no task may renew its lease indefinitely."""
        world = self.world
        scope, _, stream = self._stream.partition("/")
        identity = pb.TxnId(highBits=_signed(transaction[:16]), lowBits=_signed(transaction[16:]))
        while True:
            read = partial(self.client._controller_client.transaction_state, scope, stream, identity)
            state = await world.insist(f"state of transaction {transaction}", read)
            if state in _OVER:
                return
            if world.now_s > world.give_up_s:
                world.problem(f"transaction {transaction} stays {state}")
                return
            await self.rest(0.2)
