"""Transactions that their clients keep open for longer than a lease, through outages: none may expire.

Some are handed on to a client that calls another controller, which then renews the lease that the first one granted.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from penstock.client.client import Client
from penstock.client.transactions.transaction import Transaction
from penstock.model.errors import PenstockError, TransactionAbortedError, TransactionCommittedError
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.world import Workload, World

#: Outages that keep a client from all controllers are shorter than a lease and the slack after it.
LEASE_S = 12.0
#: Mean time that a transaction is kept open: its timers fire while it is used.
_OPEN_S = 20.0
#: Transactions that are open at the same time.
_AT_ONCE = 3
#: Share of transactions that are handed on.
_HANDED_RATE = 0.5


class KeptTransactions(Workload):
    """See the module. The clients run throughout and renew all leases, so only a controller's mistake ends one."""

    verifies_again = False

    def __init__(self, world: World, host: Host, name: str, rng: random.Random, *, stream: str) -> None:
        super().__init__(world, host, name, rng)
        self._stream = stream
        self._open: list[tuple[float, Transaction]] = []

    async def run(self) -> None:
        """See `Workload.run`."""
        world = self.world
        # Clients that are made one after the other begin with different controllers.
        clients = [self.make_client() for _ in range(2)]
        for client in clients:
            client._open()
        while world.is_writing:
            if len(self._open) < _AT_ONCE:
                await self._begin(clients)
            due = [kept for kept in self._open if kept[0] <= world.now_s]
            for kept in due:
                self._open.remove(kept)
                await self._end(kept[1])
            await self.rest(1.0)
        for _, transaction in self._open:
            await self._end(transaction)
        for client in clients:
            await client.close()

    async def _begin(self, clients: Sequence[Client]) -> None:
        one, other = self.rng.sample(clients, 2)
        try:
            transaction = await one.begin_transaction(self._stream, lease_s=LEASE_S)
            if self.rng.random() < _HANDED_RATE:
                # If this fails the transaction is left to its lease, and not judged.
                transaction = await other.transaction(self._stream, await transaction.detach(), lease_s=LEASE_S)
        except PenstockError as error:
            if not self.world.is_passing(error):
                self.world.problem(f"{self.name} cannot begin a transaction, or resume it: {error!r}")
            return
        self._open.append((self.world.now_s + self.rng.uniform(0.5, 1.5) * _OPEN_S, transaction))

    async def _end(self, transaction: Transaction) -> None:
        """Commit a transaction. It was not aborted here, so it must still be open."""
        world = self.world
        while True:
            try:
                await transaction.commit()
            except TransactionCommittedError:
                break  # By an earlier attempt, whose reply was lost.
            except TransactionAbortedError as error:
                world.problem(f"transaction {transaction.id} was kept open by its client, and was aborted: {error!r}")
                return
            except PenstockError as error:
                if not world.is_passing(error) or world.now_s > world.give_up_s:
                    world.problem(f"transaction {transaction.id} cannot be committed: {error!r}")
                    return
                await self.rest(0.5)
            else:
                break
        world.counts["transactions kept open"] += 1
