"""`Runtime`: the determinism seam.

Code under `segmentstore`, `controller` and `client` takes the time from the running loop (`loop.time()`), the wall
clock, randomness, the disk and blocking work from here, and sockets from the loop. In production these are the real
ones; in simulation a seeded loop, a simulated disk and a virtual clock stand behind the same names.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from penstock.runtime.disk import Disk, LocalDisk

T = TypeVar("T")


class BlockingWork(Protocol):
    """Runs blocking functions off the event loop."""

    def run(self, function: Callable[..., T], *args: object) -> Awaitable[T]:
        """Start `function(*args)` at once and return an awaitable of its result.

        Cancelling the awaitable does not stop the function.
        """

    async def close(self) -> None:
        """Wait for running functions; accept no new ones."""


class ThreadedWork:
    """`BlockingWork` on a bounded thread pool: the one place of the process that owns threads."""

    def __init__(self, thread_count_max: int = 8) -> None:
        self._pool = ThreadPoolExecutor(thread_count_max, thread_name_prefix="penstock-blocking")

    def run(self, function: Callable[..., T], *args: object) -> Awaitable[T]:
        """See `BlockingWork.run`."""
        return asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    async def close(self) -> None:
        """See `BlockingWork.close`."""
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)


class Runtime:
    """What the outside world looks like to the server and the client.

    Attributes:
        disk: files and directories.
        work: blocking functions.
        rng: randomness; the only source of it.
        wall_clock_ms: milliseconds since the epoch, for timestamps that people or policies see. Never for intervals.
        monotonic_s: seconds since some moment, for intervals that must not be too short. Unlike the loop's time it is
            right in the midst of a turn that took long, and goes on while the machine sleeps; by default it is that.
    """

    __slots__ = ("disk", "monotonic_s", "rng", "wall_clock_ms", "work")

    def __init__(
        self,
        *,
        disk: Disk,
        work: BlockingWork,
        rng: random.Random,
        wall_clock_ms: Callable[[], int],
        monotonic_s: Callable[[], float] | None = None,
    ) -> None:
        self.disk = disk
        self.work = work
        self.rng = rng
        self.wall_clock_ms = wall_clock_ms
        self.monotonic_s = monotonic_s or _loop_time_s

    def random_id(self) -> bytes:
        """Return 16 random bytes."""
        return self.rng.randbytes(16)


def real_runtime(thread_count_max: int = 8) -> Runtime:
    """Return the runtime of production: real disk, threads, entropy and clock."""
    return Runtime(
        disk=LocalDisk(),
        work=ThreadedWork(thread_count_max),
        rng=random.Random(os.urandom(32)),
        wall_clock_ms=lambda: time.time_ns() // 1_000_000,
        monotonic_s=_boot_time_s if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic,
    )


def _loop_time_s() -> float:
    return asyncio.get_running_loop().time()


def _boot_time_s() -> float:
    # Linux: `time.monotonic` stands still while the machine sleeps, and others do not.
    return time.clock_gettime(time.CLOCK_BOOTTIME)
