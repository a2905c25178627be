"""An exactly-once sink of batches: drivers are cancelled, restarted, and run concurrently with a second driver.

After any cancellation or fault, the events of each batch are read once, and no prepared transaction is left.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from functools import partial

from penstock.client.client import Client
from penstock.model.errors import MetadataConflictError, PenstockError, TransactionError
from penstock.spark.errors import BatchOvertakenError
from penstock.spark.exactly_once import BatchIdentity, SinkBatch, SinkLimits, SinkTask, by_stream
from penstock.spark.ledger import Ledger, SinkIdentity, create_ledger
from penstock_simulation.simulated.cancellation import CutShortError, cut_short
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.users import UserHabits, close_client, draw_user_settings, maybe_cut
from penstock_simulation.workloads.world import SCOPE, Workload, World

SINK_STREAM = f"{SCOPE}/sunk"
_SINK = SinkIdentity("copy", SINK_STREAM)
#: Longer than any run.
_LIMITS = SinkLimits(prepared_s=3600.0, visible_s=10.0)
#: A commit is cancelled at any of its awaits; this is about their number.
_COMMIT_CUT_RATE, _COMMIT_AWAITS = 0.5, 50
#: Most drivers that continue although another has replaced them.
_STRAGGLERS_MAX = 3


class Sinks(Workload):
    """See the module."""

    verifies_again = False

    def __init__(self, world: World, host: Host, name: str, rng: random.Random, *, habits: UserHabits) -> None:
        super().__init__(world, host, name, rng)
        self._habits = habits
        self._batches: list[list[bytes]] = []
        self._stragglers: set[asyncio.Task[bool]] = set()

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        await self.world.insist("create", partial(self.client.create_stream, SINK_STREAM, exist_ok=True))
        await self.world.insist("create a ledger", partial(create_ledger, self.client, SINK_STREAM))

    async def run(self) -> None:
        """See `Workload.run`: one batch after another, each until a driver's commit has succeeded."""
        world, rng = self.world, self.rng
        while world.is_writing:
            number = len(self._batches)
            count = rng.randrange(0, 7)
            self._batches.append([b"%d %d " % (number, at) + world.padding(rng) for at in range(count)])
            while not await self._run_beside(number) and world.now_s < world.give_up_s:
                world.counts["batches that came again"] += 1
                await self.rest(0.3)
            world.counts["batches"] += 1
            if rng.random() < 0.3:
                await self.rest(1.0)
        if self._stragglers:
            await asyncio.wait(self._stragglers)

    async def verify(self) -> None:
        """See `Workload.verify`."""
        world = self.world
        make = partial(self.client.reader_group, "sunk", [SINK_STREAM], until="latest")
        group = await world.insist("create group sunk", make)
        reader = await world.insist("start to read", partial(group.reader, "r"))
        found: Counter[bytes] = Counter()
        while not reader.is_finished and world.now_s < world.give_up_s:
            event = await world.insist("read", partial(reader.read, 1.0))
            if event is not None:
                found[event.data] += 1
        await world.insist("leave", reader.close)
        expected = Counter(event for events in self._batches for event in events)
        for text, events in (("missing", expected - found), ("too many", found - expected)):
            if events:
                batches = sorted({int(event.split()[0]) for event in events})
                world.problem(f"{len(events)} events of the sink are {text}, of batches {batches[:9]}")
        await self._check_remains()

    async def _check_remains(self) -> None:
        """One more batch, without faults, leaves nothing behind."""
        world = self.world
        identity = BatchIdentity(_SINK, len(self._batches))

        async def write_the_last() -> None:
            task = SinkTask(self.client, identity, _LIMITS)
            await task.begin()
            await task.write(SINK_STREAM, [b"the last"])
            await SinkBatch(self.client, identity, by_stream([await task.prepare()]), _LIMITS, self._now_ms).commit()

        await world.insist("write the last batch", write_the_last)
        ledger = await world.insist("open the ledger", partial(Ledger.open, self.client, _SINK))
        left = await world.insist("read the ledger", partial(ledger.announced, identity.batch))
        if left:
            world.problem(f"{len(left)} transactions of the sink are announced still: {left[:3]}")
        await world.insist("close the ledger", ledger.close)

    def _now_ms(self) -> int:
        return round(self.world.now_s * 1000)

    async def _run_beside(self, number: int) -> bool:
        """Run a batch, at times twice concurrently; return whether the commit of the main driver has succeeded."""
        if self.rng.random() < 0.2 and len(self._stragglers) < _STRAGGLERS_MAX:
            straggler = asyncio.create_task(self._run_batch(number, counts=False), name=f"straggler {number}")
            self._stragglers.add(straggler)
            straggler.add_done_callback(self._stragglers.discard)
            self.world.counts["drivers beside drivers"] += 1
        return await self._run_batch(number, counts=True)

    async def _run_batch(self, number: int, *, counts: bool) -> bool:
        """Run a batch in a few tasks; return True if it is certainly committed. `counts`: no other driver is ahead."""
        world, rng = self.world, self.rng
        client = world.cluster.client(self.host, draw_user_settings(rng, world.cluster.settings.client, self._habits))
        client._open()
        identity, prepared = BatchIdentity(_SINK, number), list[Mapping[str, str]]()
        rate = self._habits.cut_rate / 2
        try:
            task_count = rng.randrange(1, 4)
            for at in range(task_count):
                task = self._run_task(client, identity, self._batches[number][at::task_count])
                # Spark reruns a failed task, and uses one of two that succeeded.
                prepared.append(await maybe_cut(rng, rate, task))
                if rng.random() < 0.1:
                    again = self._run_task(client, identity, self._batches[number][at::task_count])
                    prepared[-1] = await maybe_cut(rng, rate, again)
                    world.counts["tasks that ran twice"] += 1
            committing = SinkBatch(client, identity, by_stream(prepared), _LIMITS, self._now_ms).commit()
            if rng.random() < _COMMIT_CUT_RATE:
                await cut_short(committing, rng.randrange(1, _COMMIT_AWAITS))
            else:
                await committing
            return True
        except CutShortError:
            world.counts["batches cut short"] += 1
            if rng.random() < 0.5:
                return False  # The driver died.
        except BatchOvertakenError as error:
            if counts:
                world.problem(f"no other run is ahead, but {error}")
            return False
        except PenstockError as error:
            if not world.is_passing(error) and not isinstance(error, MetadataConflictError | TransactionError):
                world.problem(f"batch {number} cannot be written: {error!r}")
        finally:
            await close_client(world, self.host, client)
        await self._abort(identity, prepared)
        return False

    async def _run_task(self, client: Client, identity: BatchIdentity, events: list[bytes]) -> Mapping[str, str]:
        task = SinkTask(client, identity, _LIMITS)
        await task.begin()
        try:
            if events:
                await task.write(SINK_STREAM, events)
            return await task.prepare()
        except PenstockError:
            await task.abort()
            raise

    async def _abort(self, identity: BatchIdentity, prepared: list[Mapping[str, str]]) -> None:
        """Spark's abort after a failed commit, in a separate process."""
        world, rng = self.world, self.rng
        client = world.cluster.client(self.host, draw_user_settings(rng, world.cluster.settings.client, self._habits))
        client._open()
        try:
            batch = SinkBatch(client, identity, by_stream(prepared), _LIMITS, self._now_ms)
            await maybe_cut(rng, self._habits.cut_rate, batch.abort())
        except (CutShortError, MetadataConflictError, TransactionError):
            pass
        except PenstockError as error:
            if not world.is_passing(error):
                world.problem(f"batch {identity.batch} cannot be aborted: {error!r}")
        finally:
            await close_client(world, self.host, client)
