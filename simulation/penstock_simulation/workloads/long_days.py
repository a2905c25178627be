"""A stream that keeps six hours, over days of restarts: it is truncated, and what is recorded of it does not grow."""

from __future__ import annotations

import random
from functools import partial

from penstock.model.errors import NoSuchSegmentError, PenstockError
from penstock.model.policies import Retention, Scaling
from penstock_simulation.simulated.errors import HostDownError
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.world import SCOPE, Workload, World

STREAM = "six-hours"
KEPT_S = 6 * 3600.0
#: Mean time between two writes, each of which may end with a recorded cut.
_WRITE_GAP_S = 1200.0
#: Data that is older than the policy says, but was not truncated yet: cuts are recorded at ends of writes, and streams
#: are inspected every ten minutes; outages last for up to half an hour.
_SLACK_S = 2 * 3600.0
#: More cuts than this are not needed for six hours and the slack.
_CUT_COUNT_MAX = 60


class LongDays(Workload):
    """See the module. Also creates and deletes segments, so that chunks come and go."""

    def __init__(self, world: World, host: Host, name: str, rng: random.Random) -> None:
        super().__init__(world, host, name, rng)
        self._stream = f"{SCOPE}/{STREAM}"
        #: Times and lengths of the stream, after each write.
        self._tails: list[tuple[float, int]] = [(world.now_s, 0)]
        self._life = 0

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        policy = Retention.by_time(seconds=KEPT_S)
        make = partial(
            self.client.create_stream, self._stream, scaling=Scaling.fixed(1), retention=policy, exist_ok=True
        )
        await self.world.insist(f"create {self._stream}", make)

    async def run(self) -> None:
        """See `Workload.run`."""
        while self.world.is_writing:
            await self.rest(_WRITE_GAP_S)
            try:
                await self._write()
                if self.rng.random() < 0.2:
                    await self._live()
                await self._check_head()
                await self._check_cuts()
            except (PenstockError, HostDownError) as error:
                if isinstance(error, PenstockError) and not self.world.is_passing(error):
                    self.world.problem(f"{self.name}: {error!r}")

    async def verify(self) -> None:
        """See `Workload.verify`."""
        await self.world.insist("find the head", self._check_head)

    async def _write(self) -> None:
        async with self.client.event_writer(self._stream) as writer:
            await writer.write_many([bytes(self.rng.randrange(1, 400)) for _ in range(3)], "k")
        tail = (await self.client.tail(self._stream)).positions[0]
        self._tails.append((self.world.now_s, tail))
        self.world.counts["writes over days"] += 1

    async def _live(self) -> None:
        """Create a segment, fill it, and mostly delete it a day's part later."""
        segments, self._life = self.client._segment_client, self._life + 1
        name = f"{SCOPE}/day-{self._life}/0.#epoch.0"
        await segments.create_segment(name)
        await segments.append(name, bytes(self.rng.randrange(1, 5000)))
        earlier = f"{SCOPE}/day-{self._life - 1}/0.#epoch.0"
        try:
            await segments.delete_segment(earlier)
        except NoSuchSegmentError:
            return  # It is the first one, or was not created.

    async def _check_head(self) -> None:
        asked_s = self.world.now_s
        head = (await self.client.head(self._stream)).positions[0]
        # A write without a reply may have stored its events: up to the next noted length.
        kept_from = next((length for at_s, length in self._tails if at_s >= asked_s - KEPT_S), head)
        if head > kept_from:
            self.world.problem(f"{self._stream} begins at {head}: {KEPT_S:g} s ago its length was at most {kept_from}")
        gone_until = max((length for at_s, length in self._tails if at_s <= asked_s - KEPT_S - _SLACK_S), default=0)
        if head < gone_until:
            self.world.problem(
                f"{self._stream} begins at {head}: {KEPT_S + _SLACK_S:g} s ago its length was {gone_until} already"
            )

    async def _check_cuts(self) -> None:
        cluster = self.world.cluster
        service = cluster.controller_service()
        if service is None:
            return
        explained = await cluster.controller.run(service.retention_explanations.of(SCOPE, STREAM))
        if explained.cut_count > _CUT_COUNT_MAX:
            self.world.problem(
                f"{self._stream} has {explained.cut_count} recorded cuts, {_CUT_COUNT_MAX} are enough for its policy"
            )
        self.world.counts["checks of recorded cuts"] += 1
