"""Transactions that are handed over: one user begins, another resumes it by its id and decides.

After any cancellation or fault, the events that were handed over are complete. At the end a committed transaction has
all events that were reported as stored, each once and in order; an aborted one has none.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial

from penstock.client.client import Client
from penstock.client.transactions.transaction import Transaction
from penstock.model.errors import PenstockError, TransactionError
from penstock_simulation.simulated.cancellation import CutShortError
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.users import UserHabits, close_client, draw_user_settings, in_time, maybe_cut
from penstock_simulation.workloads.world import SCOPE, Workload, World

_STREAM = f"{SCOPE}/handed"
_LEASE_S = 10.0
_OVER = ("COMMITTED", "ABORTED", "UNKNOWN")


@dataclass(slots=True)
class _Handed:
    """A transaction, and its state as its users know it.

    Attributes:
        events: those that a detach or a commit has reported as stored.
        accepted: those of the present user, not reported as stored. If the user fails, they may be lost.
    """

    id: str
    events: list[bytes] = field(default_factory=list)
    accepted: list[bytes] = field(default_factory=list)
    #: A call has returned that it is committed.
    is_committed: bool = False
    state: str = ""

    def note_stored(self) -> None:
        """Record that a detach or a commit has reported all accepted events as stored."""
        self.events += self.accepted
        self.accepted = []


class HandedTransactions(Workload):
    """See the module."""

    verifies_again = False

    def __init__(self, world: World, host: Host, name: str, rng: random.Random, *, habits: UserHabits) -> None:
        super().__init__(world, host, name, rng)
        self._habits = habits
        self._number = 0
        self._all: list[_Handed] = []

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        await self.world.insist(f"create {_STREAM}", partial(self.client.create_stream, _STREAM, exist_ok=True))

    async def run(self) -> None:
        """See `Workload.run`."""
        while self.world.is_writing:
            await self.rest(0.3)
            handed = await self._begin()
            # The user that resumes it may be stopped as well; the next one finds it open or ended.
            for _ in range(3):
                if handed is None or not await self._go_on(handed):
                    break
        for each in self._all:
            await self._await_end(each)

    async def verify(self) -> None:
        """See `Workload.verify`."""
        world = self.world
        make = partial(self.client.reader_group, "handed", [_STREAM], until="latest")
        group = await world.insist("create group handed", make)
        reader = await world.insist("start to read", partial(group.reader, "r"))
        found: list[bytes] = []
        while not reader.is_finished and world.now_s < world.give_up_s:
            event = await world.insist("read", partial(reader.read, 1.0))
            if event is not None:
                found.append(event.data)
        await world.insist("leave", reader.close)
        for each in self._all:
            self._judge(each, [event for event in found if event.startswith(each.id.encode())])

    # -- handing over -------------------------------------------------------------------------------------------

    def _client(self) -> Client:
        settings = draw_user_settings(self.rng, self.world.cluster.settings.client, self._habits)
        client = self.world.cluster.client(self.host, settings)
        client._open()
        return client

    async def _begin(self) -> _Handed | None:
        """Begin a transaction and leave it open. Returns None if there is none, or if it must not be resumed."""
        world, rng, client = self.world, self.rng, self._client()
        try:
            limit_s = client.settings.retry_time_max_s
            beginning = maybe_cut(rng, self._habits.cut_rate, client.begin_transaction(_STREAM, lease_s=_LEASE_S))
            transaction = await in_time(world, self.host, "beginning a transaction", limit_s, beginning)
            handed = _Handed(transaction.id)
            self._all.append(handed)
            await self._write(transaction, handed)
            # It is not handed over before its events are known to be stored.
            if await maybe_cut(rng, self._habits.cut_rate, transaction.detach()) != handed.id:
                world.problem(f"transaction {handed.id} was detached as another one")
            handed.note_stored()
            world.counts["transactions handed on"] += 1
            return handed
        except CutShortError:
            return None
        except PenstockError as error:
            self._check_passing("begin", error)
            return None
        finally:
            await close_client(world, self.host, client)

    async def _go_on(self, handed: _Handed) -> bool:
        """Resume a transaction. Returns True if it may still be open."""
        world, rng, client = self.world, self.rng, self._client()
        try:
            limit_s = client.settings.retry_time_max_s
            resuming = maybe_cut(rng, self._habits.cut_rate, client.transaction(_STREAM, handed.id, lease_s=_LEASE_S))
            transaction = await in_time(world, self.host, "going on with a transaction", limit_s, resuming)
            if handed.is_committed:
                world.problem(f"transaction {handed.id} is committed, and could be resumed")
            await self._write(transaction, handed)
            choice = rng.random()
            if choice < 0.2:
                await maybe_cut(rng, self._habits.cut_rate, transaction.abort())
            elif choice < 0.4:
                await maybe_cut(rng, self._habits.cut_rate, transaction.detach())
                handed.note_stored()
                return True
            else:
                await maybe_cut(rng, self._habits.cut_rate, transaction.commit())
                handed.note_stored()
                handed.is_committed = True
                world.counts["handed transactions committed"] += 1
                return rng.random() < 0.3
            return False
        except CutShortError:
            return True
        except TransactionError:
            return False  # It has ended, by a lease, an abort or a commit whose reply was lost.
        except PenstockError as error:
            self._check_passing("resume", error)
            return True
        finally:
            await close_client(world, self.host, client)

    async def _write(self, transaction: Transaction, handed: _Handed) -> None:
        handed.accepted = []
        for _ in range(self.rng.randrange(1, 6)):
            self._number += 1
            event = b"%s %06d " % (handed.id.encode(), self._number) + self.world.padding(self.rng)
            handed.accepted.append(event)
            await maybe_cut(self.rng, self._habits.cut_rate, transaction.write(event, "k"))

    def _check_passing(self, what: str, error: PenstockError) -> None:
        if not self.world.is_passing(error) and not isinstance(error, TransactionError):
            self.world.problem(f"{self.name} cannot {what}: {error!r}")

    # -- checks -------------------------------------------------------------------------------------------------

    async def _await_end(self, handed: _Handed) -> None:
        world = self.world
        while True:
            read = partial(self.client.transaction_state, _STREAM, handed.id)
            handed.state = await world.insist(f"state of transaction {handed.id}", read)
            if handed.state in _OVER:
                return
            if world.now_s > world.give_up_s:
                world.problem(f"transaction {handed.id} stays {handed.state}")
                return
            await self.rest(0.2)

    def _judge(self, handed: _Handed, found: list[bytes]) -> None:
        problem = self.world.problem
        if handed.is_committed and handed.state == "ABORTED":
            problem(f"transaction {handed.id} was committed, and is {handed.state}")
        if len(set(found)) != len(found) or found != sorted(found):
            problem(f"transaction {handed.id} has events more than once, or out of order: {found[:9]}")
        is_seen = bool(found)
        if is_seen and handed.state == "ABORTED":
            problem(f"transaction {handed.id} is aborted, and {found[:3]} are read")
        missing = [event for event in handed.events if event not in found]
        if missing and (is_seen or handed.is_committed or handed.state == "COMMITTED"):
            problem(f"transaction {handed.id} ({handed.state}) is read without {missing[:3]}")
