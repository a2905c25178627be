"""`Throttle`: how long operations from outside are held back, so that what fills up can be emptied.

Delays of several sources do not add up, the longest counts. Nothing that relieves pressure is ever held: deletions,
checkpoints, the storage writer's own records (lesson L8).

Not here: the delay that batches small writes (the pipeline gathers records per turn of the loop instead).

Source: segment store specification, section 1.5, rules R1.27 to R1.31.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from penstock.segmentstore.settings import CacheSettings, ThrottleSettings


@dataclass(frozen=True, slots=True)
class Load:
    """How full everything is.

    Attributes:
        cache_utilisation: used share of the cache's hard limit.
        outstanding_bytes: bytes accepted and not yet durable, ...
        outstanding_bytes_max: ... of at most so many.
        log_s: how long the log will take for them.
        backlog_operations: durable operations that wait for long-term storage.
        backlog_bytes: bytes that wait for long-term storage.
        is_out_of_space: the log's file system has no room for what users write.
    """

    cache_utilisation: float = 0.0
    outstanding_bytes: int = 0
    outstanding_bytes_max: int = 1
    log_s: float = 0.0
    backlog_operations: int = 0
    backlog_bytes: int = 0
    is_out_of_space: bool = False


def delay_s(load: Load, settings: ThrottleSettings, cache: CacheSettings) -> float:
    """Return how long to hold operations at `load`: 0 to `delay_s_max` seconds."""
    if load.is_out_of_space:
        return settings.delay_s_max
    shares = [
        _share(
            load.cache_utilisation,
            (cache.target_percent + settings.cache_margin_percent) / 100,
            cache.essential_percent / 100,
        ),
        _share(load.backlog_operations, *_backlog(settings.backlog_operations_max, settings)),
        _share(load.backlog_bytes, *_backlog(settings.container_backlog_bytes_max(cache), settings)),
    ]
    begin = settings.log_begin_percent / 100
    if load.log_s > begin * settings.log_write_timeout_s:
        shares.append(_share(load.outstanding_bytes / load.outstanding_bytes_max, begin, 1.0))
    return settings.delay_s_max * max(shares)


def _backlog(limit: int, settings: ThrottleSettings) -> tuple[float, float]:
    return (limit * settings.backlog_begin_percent / 100, limit) if limit else (float("inf"), float("inf"))


def _share(value: float, begin: float, full: float) -> float:
    """Return where `value` lies between `begin` (0) and `full` (1)."""
    if value <= begin:
        return 0.0
    return 1.0 if value >= full else (value - begin) / (full - begin)


class Throttle:
    """Holds operations back. One per container; any number may wait.

    Attributes:
        waiting_count: calls of `wait` that are held now.
    """

    def __init__(
        self,
        settings: ThrottleSettings,
        cache: CacheSettings,
        load: Callable[[], Load],
        is_exempt: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_exempt`: whether an operation that must not be held waits behind those that are."""
        self._settings = settings
        self._cache_settings = cache
        self._load = load
        self._is_exempt = is_exempt
        self._is_closed = False
        #: Each ends with whether the whole time is over.
        self._waiters: dict[asyncio.Future[bool], None] = {}

    @property
    def waiting_count(self) -> int:
        """See the class."""
        return len(self._waiters)

    def delay_s(self) -> float:
        """Return the delay for an operation that comes now, in seconds; 0: let it in."""
        return delay_s(self._load(), self._settings, self._cache_settings)

    def notify(self) -> None:
        """Compute the delays under way anew: something was relieved, or an exempt operation has come."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(False)

    def close(self) -> None:
        """End all waits, now and in future: the container stops (R1.31)."""
        self._is_closed = True
        self.notify()

    async def wait(self) -> None:
        """Return when an operation may go on.

        As long as something is full, however long that takes (R1.27). Otherwise after the delay computed at first, or
        earlier: an interruption may shorten it, never prolong it (R1.28). At once when an exempt operation is there
        (R1.30).
        """
        rest_s: float | None = None
        while not self._is_closed and not self._is_exempt():
            computed_s = self.delay_s()
            is_full = computed_s >= self._settings.delay_s_max
            delay = computed_s if rest_s is None else min(computed_s, rest_s)
            if delay <= 0.0:
                if not is_full:
                    return
                rest_s = None  # Waited for the whole of it, and still full.
                continue
            waited_s = await self._sleep(delay)
            if waited_s < delay:
                rest_s = delay - waited_s
            elif is_full:
                rest_s = None
            else:
                return

    async def _sleep(self, seconds: float) -> float:
        """Sleep until the time is over or `notify`; return how long it was, at least `seconds` if it was over."""
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiters[waiter] = None
        # Not asked when it is due: uvloop's timer of less than a millisecond does not say.
        timer = loop.call_later(seconds, _wake, waiter)
        try:
            is_over = await waiter
        finally:
            timer.cancel()
            del self._waiters[waiter]
        return seconds if is_over else loop.time() - begin_s


def _wake(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(True)
