"""A sink that prepares its transactions, goes away, and later decides them by their ids.

After any cancellation or fault, and however long after its lease: a prepared transaction ends as decided, with all of
its events, each once and in order, or with none. Until then its stream is not sealed.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from functools import partial

from penstock.client.client import Client
from penstock.model.errors import (
    InvalidArgumentError,
    MetadataConflictError,
    PenstockError,
    TransactionError,
    TransactionPreparedError,
)
from penstock_simulation.simulated.cancellation import CutShortError
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.users import UserHabits, close_client, draw_user_settings, in_time, maybe_cut
from penstock_simulation.workloads.world import SCOPE, Workload, World

PREPARED_STREAM = f"{SCOPE}/prepared"
_LEASE_S = 10.0
#: Longer than any run.
_LIMIT_S = 3600.0
_OVER = ("COMMITTED", "ABORTED", "UNKNOWN")


@dataclass(slots=True)
class _Intent:
    """A transaction, and its state as the sink knows it."""

    stream: str
    id: str
    begun_s: float
    events: list[bytes] = field(default_factory=list)
    #: A call has returned that it is prepared.
    is_prepared: bool = False
    #: COMMITTED or ABORTED, once that is decided; and whether a call has confirmed it.
    decision: str = ""
    is_told: bool = False
    state: str = ""


class PreparedTransactions(Workload):
    """See the module."""

    verifies_again = False

    def __init__(self, world: World, host: Host, name: str, rng: random.Random, *, habits: UserHabits) -> None:
        super().__init__(world, host, name, rng)
        self._habits = habits
        self._number = 0
        self._all: list[_Intent] = []

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        create = partial(self.client.create_stream, PREPARED_STREAM, exist_ok=True)
        await self.world.insist(f"create {PREPARED_STREAM}", create)

    async def run(self) -> None:
        """See `Workload.run`."""
        while self.world.is_writing:
            await self.rest(0.3)
            await self._prepare_one()
            if self.rng.random() < 0.15:
                await self._scale()
            undecided = [intent for intent in self._all if not intent.is_told]
            if undecided and self.rng.random() < 0.4:
                await self._decide(self.rng.choice(undecided))
        # The sink is away for longer than any lease.
        await asyncio.sleep(2 * _LEASE_S)
        for intent in self._all:
            while not intent.is_told and self.world.now_s < self.world.give_up_s:
                await self._decide(intent)
                await self.rest(0.2)
            await self._await_end(intent)

    async def verify(self) -> None:
        """See `Workload.verify`."""
        world = self.world
        streams = sorted({PREPARED_STREAM, *(intent.stream for intent in self._all)})
        make = partial(self.client.reader_group, "prepared", streams, until="latest")
        group = await world.insist("create group prepared", make)
        reader = await world.insist("start to read", partial(group.reader, "r"))
        found: list[bytes] = []
        while not reader.is_finished and world.now_s < world.give_up_s:
            event = await world.insist("read", partial(reader.read, 1.0))
            if event is not None:
                found.append(event.data)
        await world.insist("leave", reader.close)
        for intent in self._all:
            self._judge(intent, [event for event in found if event.startswith(intent.id.encode())])

    # -- the sink -----------------------------------------------------------------------------------------------

    def _client(self) -> Client:
        settings = draw_user_settings(self.rng, self.world.cluster.settings.client, self._habits)
        client = self.world.cluster.client(self.host, settings)
        client._open()
        return client

    async def _prepare_one(self) -> None:
        world, rng, cut_rate = self.world, self.rng, self._habits.cut_rate
        client = self._client()
        # A separate stream, which may be sealed later, after the decision.
        is_to_be_sealed = rng.random() < 0.2
        stream = f"{PREPARED_STREAM}-{len(self._all)}" if is_to_be_sealed else PREPARED_STREAM
        try:
            limit_s = client.settings.retry_time_max_s
            if is_to_be_sealed:
                await client.create_stream(stream, exist_ok=True)
            beginning = maybe_cut(rng, cut_rate, client.begin_transaction(stream, lease_s=_LEASE_S))
            transaction = await in_time(world, self.host, "beginning a transaction", limit_s, beginning)
            intent = _Intent(stream, transaction.id, world.now_s)
            self._all.append(intent)
            for _ in range(rng.randrange(1, 6)):
                self._number += 1
                event = b"%s %06d " % (intent.id.encode(), self._number) + world.padding(rng)
                await maybe_cut(rng, cut_rate, transaction.write(event, "k"))
                intent.events.append(event)
            if await maybe_cut(rng, cut_rate, transaction.prepare(limit_s=_LIMIT_S)) != intent.id:
                world.problem(f"transaction {intent.id} was prepared as another one")
            intent.is_prepared = True
            world.counts["transactions prepared"] += 1
            if is_to_be_sealed:
                await self._seal(client, intent)
        except CutShortError:
            pass
        except PenstockError as error:
            if not world.is_passing(error) and not isinstance(error, TransactionError):
                world.problem(f"{self.name} cannot prepare: {error!r}")
        finally:
            await close_client(world, self.host, client)

    async def _scale(self) -> None:
        """Split a segment, or merge two neighbours: earlier prepared transactions need a rolling commit."""
        world, rng = self.world, self.rng
        try:
            segments = await self.client._controller_client.current_segments(*PREPARED_STREAM.split("/"))
            segments = sorted(segments, key=lambda segment: segment.key_low)
            at = rng.randrange(len(segments))
            chosen = segments[at : at + 1]
            low, high = chosen[0].key_low, chosen[0].key_high
            ranges = [(low, (low + high) / 2), ((low + high) / 2, high)]
            if len(segments) > 3:
                at = rng.randrange(len(segments) - 1)
                chosen = segments[at : at + 2]
                ranges = [(chosen[0].key_low, chosen[1].key_high)]
            await self.client.scale_stream(
                PREPARED_STREAM, seal=[segment.segment_id for segment in chosen], key_ranges=ranges
            )
            world.counts["scales beside prepared transactions"] += 1
        except (InvalidArgumentError, MetadataConflictError):
            pass  # A rolling commit has changed the segments, or an earlier attempt did it.
        except PenstockError as error:
            if not world.is_passing(error):
                world.problem(f"{self.name} cannot scale {PREPARED_STREAM}: {error!r}")

    async def _seal(self, client: Client, intent: _Intent) -> None:
        try:
            await client.seal_stream(intent.stream)
        except (MetadataConflictError, TransactionPreparedError):
            self.world.counts["seals refused for prepared transactions"] += 1
        except PenstockError as error:
            if not self.world.is_passing(error):
                self.world.problem(f"{self.name} cannot ask for a seal: {error!r}")
        else:
            self.world.problem(f"{intent.stream} was sealed, and its transaction {intent.id} is prepared")

    async def _decide(self, intent: _Intent) -> None:
        """Decide a transaction by its id, as decided before; one that may not be prepared is aborted."""
        world, rng = self.world, self.rng
        if not intent.decision:
            intent.decision = "COMMITTED" if intent.is_prepared and rng.random() < 0.7 else "ABORTED"
        client = self._client()
        call = client.commit_transaction if intent.decision == "COMMITTED" else client.abort_transaction
        try:
            limit_s = client.settings.retry_time_max_s
            deciding = maybe_cut(rng, self._habits.cut_rate, call(intent.stream, intent.id))
            await in_time(world, self.host, "deciding upon a transaction", limit_s, deciding)
            intent.is_told = True
            if intent.is_prepared:
                world.counts[f"prepared transactions {intent.decision.lower()}"] += 1
                if world.now_s - intent.begun_s > 2 * _LEASE_S:
                    world.counts["prepared transactions decided beyond their lease"] += 1
        except CutShortError:
            pass
        except PenstockError as error:
            if not world.is_passing(error):
                world.problem(f"transaction {intent.id} cannot be {intent.decision.lower()}: {error!r}")
                intent.is_told = True
        finally:
            await close_client(world, self.host, client)

    # -- checks -------------------------------------------------------------------------------------------------

    async def _await_end(self, intent: _Intent) -> None:
        world = self.world
        while True:
            read = partial(self.client.transaction_state, intent.stream, intent.id)
            intent.state = await world.insist(f"state of transaction {intent.id}", read)
            if intent.state in _OVER:
                return
            if world.now_s > world.give_up_s:
                world.problem(f"transaction {intent.id} stays {intent.state}")
                return
            await self.rest(0.2)

    def _judge(self, intent: _Intent, found: list[bytes]) -> None:
        problem = self.world.problem
        if intent.state != intent.decision:
            problem(f"transaction {intent.id} was decided to be {intent.decision}, and is {intent.state}")
        expected = intent.events if intent.decision == "COMMITTED" else []
        if found != expected:
            problem(f"transaction {intent.id} ({intent.state}) has {len(expected)} events, and {found[:9]} are read")
