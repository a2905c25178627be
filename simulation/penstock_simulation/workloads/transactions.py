"""Clients of transactions: one begins, writes, commits or aborts, and determines the outcome of each; one reads."""

from __future__ import annotations

import random

from penstock.client.transactions.transaction import Transaction
from penstock.client.writing.ack import settled
from penstock.model.errors import (
    ControllerUnavailableError,
    OutcomeUnknownError,
    PenstockError,
    StorageFullError,
    StreamError,
    TransactionError,
)
from penstock_simulation.checks.history import AbortTransaction, CommitTransaction, WriteEvent
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.events import make_event, read_fully
from penstock_simulation.workloads.world import Workload, World

WHOLE_READ_COUNT = 4
_OVER = ("COMMITTED", "ABORTED", "UNKNOWN")


class TransactionWriter(Workload):
    """See the module. It uses its own keys: order of a key between transactions and event writers is not promised."""

    def __init__(
        self, world: World, host: Host, name: str, rng: random.Random, *, stream: str, lease_s: float,
        mean_gap_s: float, mean_open_s: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(world, host, name, rng)
        self._stream = stream
        self._lease_s = lease_s
        self._mean_gap_s = mean_gap_s
        # Mean time that a transaction stays open without a write, so that others and scales overlap it.
        self._mean_open_s = mean_open_s
        self._keys = tuple(f"{name}-key-{number}" for number in range(3))
        self._number = 0
        self._begun: list[Transaction] = []

    async def run(self) -> None:
        """See `Workload.run`."""
        while self.world.is_writing:
            await self.rest(self._mean_gap_s)
            try:
                transaction = await self.client.begin_transaction(self._stream, lease_s=self._lease_s)
            except (ControllerUnavailableError, OutcomeUnknownError, StorageFullError):
                continue  # One without a reply expires. A full disk may outlast the retries.
            except StreamError as error:
                if not error.is_retriable:
                    self.world.problem(f"{self.name} cannot begin a transaction: {error!r}")
                continue
            self._begun.append(transaction)
            await self._use(transaction)
        for transaction in self._begun:
            await self._await_end(transaction)

    async def _use(self, transaction: Transaction) -> None:
        rng = self.rng
        is_whole = await self._fill(transaction)
        if self._mean_open_s > 0.0:
            await self.rest(self._mean_open_s)
        if is_whole and rng.random() < 0.8:
            await self._commit(transaction)
        else:
            await self._abort(transaction)

    async def _fill(self, transaction: Transaction) -> bool:
        """Write some events; return whether all are stored."""
        world, rng, history = self.world, self.rng, self.world.history
        for _ in range(rng.randint(1, 6)):
            key = rng.choice(self._keys)
            self._number += 1
            event = make_event(self._stream, self.name, key, self._number, world.padding(rng))
            call = history.invoke(self.name, WriteEvent(self._stream, key, event, transaction.id))
            try:
                ack = await transaction.write(event, key)
                await settled(ack)
            except PenstockError as error:
                history.unknown(call, error)
                return False
            if ack.error is not None:
                history.unknown(call, ack.error)
                return False
            history.ok(call)
        return True

    async def _commit(self, transaction: Transaction) -> None:
        world, history = self.world, self.world.history
        while True:
            call = history.invoke(self.name, CommitTransaction(self._stream, transaction.id))
            try:
                await transaction.commit()
            except TransactionError as error:
                history.fail(call, error)
                return
            except PenstockError as error:
                history.unknown(call, error)
                if world.now_s > world.give_up_s:
                    world.problem(f"transaction {transaction.id} cannot be committed: {error!r}")
                    return
                await self.rest(0.5)
            else:
                history.ok(call)
                world.counts["transactions committed"] += 1
                return

    async def _abort(self, transaction: Transaction) -> None:
        history = self.world.history
        call = history.invoke(self.name, AbortTransaction(self._stream, transaction.id))
        try:
            await transaction.abort()
        except TransactionError as error:
            history.fail(call, error)
        except PenstockError as error:
            history.unknown(call, error)
        else:
            history.ok(call)
            self.world.counts["transactions aborted"] += 1

    async def _await_end(self, transaction: Transaction) -> None:
        """Wait until the state of a transaction is final, as a full read requires."""
        world = self.world
        while True:
            state = await world.insist(f"state of transaction {transaction.id}", transaction.state)
            if state in _OVER:
                return
            if world.now_s > world.give_up_s:
                world.problem(f"transaction {transaction.id} stays {state}")
                return
            await self.rest(0.2)


class WholeReader(Workload):
    """Reads a stream up to whole tails during commits: each transaction is visible completely or not at all."""

    def __init__(self, world: World, host: Host, name: str, rng: random.Random, *, stream: str) -> None:
        super().__init__(world, host, name, rng)
        self._stream = stream

    async def run(self) -> None:
        """See `Workload.run`. Only a few passes, since each reads the whole stream."""
        for _ in range(WHOLE_READ_COUNT):
            await self.rest(max(0.1, (self.world.stop_s - self.world.now_s) / WHOLE_READ_COUNT))
            if not self.world.is_writing:
                return
            await read_fully(self, self._stream, to_whole_tail=True)
            self.world.counts["reads to a whole tail"] += 1
