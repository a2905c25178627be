"""`Rates`: samples of the cluster's statistics, one a second, while pages that show them are open.

Each account has samples of its own, taken with its rights. An account that may not read the statistics has none.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock import aio
from penstock.client.statistics.statistics import ClusterStatistics, GroupLag, StreamLoad
from penstock.model.errors import PenstockError

#: Accounts that have samples at the same time; the one whose pages were not requested for longest loses them.
ACCOUNTS_MAX = 8
#: Sampling ends when no page was requested for so long.
IDLE_S = 60.0
INTERVAL_S = 1.0
#: Lags of groups need requests for each group, so they are sampled less often.
GROUPS_INTERVAL_S = 15.0
#: After an error.
RETRY_S = 5.0
#: How long a page waits for the first sample.
_FIRST_TIMEOUT_S = 5.0
#: 15 minutes of seconds, 6 hours of groups.
SAMPLES_MAX = 900
GROUP_SAMPLES_MAX = 1440
#: Streams and groups whose history is kept.
STREAMS_MAX = 200
GROUPS_MAX = 200


@dataclass(frozen=True, slots=True)
class ClusterSample:
    """The whole cluster at one moment. `at_s`: time of the event loop."""

    at_s: float
    events_per_s: float
    bytes_per_s: float
    backlog_bytes: int
    cache_bytes: int


@dataclass(slots=True)
class Sampler:
    """The samples of one account.

    Attributes:
        statistics: the latest; None: there is none yet, or the last attempt failed.
        problem: why there is none; empty: there is one, or none was requested yet.
        groups: the lags of reader groups, by name, as of the last time that they were requested.
        groups_problem: why lags could not be read.
        cluster: oldest first.
        stream_rates: events per second of streams, oldest first, with the time of each.
        group_lags: unread bytes of groups, oldest first, with the time of each.
    """

    statistics: ClusterStatistics | None = None
    problem: str = ""
    groups: Mapping[str, GroupLag] | None = None
    groups_problem: str = ""
    cluster: deque[ClusterSample] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))
    stream_rates: dict[str, deque[tuple[float, float]]] = field(default_factory=dict)
    group_lags: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)
    seen_s: float = 0.0
    groups_seen_s: float = float("-inf")
    streams: Mapping[str, StreamLoad] = field(default_factory=dict)
    _since: ClusterStatistics | None = None
    _groups_at_s: float = float("-inf")
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    async def current(self, client: aio.Client, *, with_groups: bool = False) -> Sampler:
        """Return this, with a sample that is at most some seconds old, or with the reason why there is none."""
        now_s = asyncio.get_running_loop().time()
        self.seen_s = now_s
        if with_groups:
            self.groups_seen_s = now_s
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(client), name="samples for the console")
        try:
            async with asyncio.timeout(_FIRST_TIMEOUT_S):
                while not self._has_answer(with_groups=with_groups):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self.problem = self.problem or f"no statistics within {_FIRST_TIMEOUT_S:g} s"
        return self

    def _has_answer(self, *, with_groups: bool) -> bool:
        if self.problem or (self._task is not None and self._task.done()):
            return True
        if self.statistics is None:
            return False
        return not with_groups or self.groups is not None or bool(self.groups_problem)

    async def _run(self, client: aio.Client) -> None:
        loop = asyncio.get_running_loop()
        self._since = None
        try:
            while loop.time() - self.seen_s < IDLE_S:
                await self._sample(client)
                self._changed.set()
                await asyncio.sleep(RETRY_S if self.problem else INTERVAL_S)
        finally:
            self.statistics, self.groups, self.problem, self.groups_problem = None, None, "", ""
            self._changed.set()

    async def _sample(self, client: aio.Client) -> None:
        now_s = asyncio.get_running_loop().time()
        try:
            self._since = await client.statistics(self._since)
        except PenstockError as error:
            self.statistics, self.problem = None, str(error)
            return
        self.statistics, self.problem = self._since, ""
        self.streams = self._since.streams()
        self._note_cluster(now_s, self._since)
        wants_groups = now_s - self.groups_seen_s < IDLE_S
        if wants_groups and now_s - self._groups_at_s >= GROUPS_INTERVAL_S:
            await self._sample_groups(client, now_s)

    async def _sample_groups(self, client: aio.Client, now_s: float) -> None:
        try:
            found = (await client.statistics(self._since, groups="all")).groups
        except PenstockError as error:
            self.groups_problem = str(error)
            return
        finally:
            self._groups_at_s = now_s
        self.groups, self.groups_problem = found, ""
        for name in set(self.group_lags) - set(found):
            del self.group_lags[name]
        for name, lag in found.items():
            if lag.problem is None and (name in self.group_lags or len(self.group_lags) < GROUPS_MAX):
                samples = self.group_lags.setdefault(name, deque(maxlen=GROUP_SAMPLES_MAX))
                samples.append((now_s, lag.total_unread_bytes))

    def _note_cluster(self, now_s: float, found: ClusterStatistics) -> None:
        cache_bytes = sum(store.cache_bytes for store in found.stores.values())
        self.cluster.append(
            ClusterSample(now_s, found.events_per_s, found.bytes_per_s, found.backlog_bytes, cache_bytes)
        )
        for name in set(self.stream_rates) - set(self.streams):
            del self.stream_rates[name]
        for name, load in self.streams.items():
            if name in self.stream_rates or len(self.stream_rates) < STREAMS_MAX:
                samples = self.stream_rates.setdefault(name, deque(maxlen=SAMPLES_MAX))
                samples.append((now_s, load.events_per_s))

    def trend(self, group: str) -> str:
        """Return how the lag of a group has moved in the last minutes: growing, shrinking, steady, or empty."""
        samples = self.group_lags.get(group)
        if samples is None or len(samples) < 2:
            return ""
        recent = list(samples)[-20:]
        before, now = recent[0][1], recent[-1][1]
        if abs(now - before) <= max(before, now) // 20:
            return "steady"
        return "growing" if now > before else "shrinking"

    async def close(self) -> None:
        """End sampling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class Rates:
    """The samplers of accounts, by their clients."""

    def __init__(self) -> None:
        self._samplers: OrderedDict[aio.Client, Sampler] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    async def of(self, client: aio.Client, *, with_groups: bool = False) -> Sampler:
        """Return the samples of the account of a client; see `Sampler.current`."""
        sampler = self._samplers.get(client)
        if sampler is None:
            sampler = self._samplers[client] = Sampler()
            while len(self._samplers) > ACCOUNTS_MAX:
                self._close(self._samplers.popitem(last=False)[1])
        self._samplers.move_to_end(client)
        return await sampler.current(client, with_groups=with_groups)

    def _close(self, sampler: Sampler) -> None:
        task = asyncio.get_running_loop().create_task(sampler.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """End all sampling."""
        for sampler in self._samplers.values():
            self._close(sampler)
        self._samplers.clear()
        await asyncio.gather(*self._closing, return_exceptions=True)
