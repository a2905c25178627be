"""`Runtime`: the determinism seam.

Code under `segmentstore`, `controller` and `client` takes the time from the running loop (`loop.time()`); the wall
clock, randomness, the disk and blocking work from `Runtime`; and sockets from the loop. In production these are the
real ones; a simulation has a seeded loop, a simulated disk and a virtual clock behind the same names.
"""

from __future__ import annotations

import asyncio
import copy
import os
import random
import time
from collections.abc import Callable

from penstock.model.errors import InvalidArgumentError
from penstock.runtime.disk import Disk, LocalDisk
from penstock.runtime.files import FilePlace, FileStore, FileStoreSettings, OpenFileStore
from penstock.runtime.ledgers import LedgerClientSettings, LedgerPlace, LedgerStore, OpenLedgerStore
from penstock.runtime.object_requests import ObjectRequests
from penstock.runtime.objects import (
    DIRECTORY_SCHEME,
    ObjectPlace,
    ObjectStore,
    ObjectStoreSettings,
    OpenObjectStore,
)
from penstock.runtime.program import WatchProgram, resident_bytes, watch_program
from penstock.runtime.standard_descriptors import open_standard_descriptors
from penstock.runtime.turns import Turns
from penstock.runtime.work import BlockingWork, ThreadedWork

__all__ = ["BlockingWork", "Runtime", "ThreadedWork", "real_runtime"]


class Runtime:
    """The environment of a server or a client.

    Attributes:
        disk: files and directories.
        work: blocking functions.
        rng: randomness; the only source of it.
        wall_clock_ms: milliseconds since the epoch, for timestamps that people or policies see. Never for intervals.
        monotonic_s: seconds since some moment, for intervals that must not be too short. Unlike the loop's time it is
            current even during a long turn, and advances while the machine sleeps; the default is the loop's time.
        cpu_s: CPU time that the calling thread has used, in seconds; 0 where unknown, as in a simulation.
        resident_bytes: resident memory of this process; 0 where unknown, as in a simulation. Does not block.
        watch_program: registers an object for forks and the exit of this program; None where there is no program.
        open_objects: opens a bucket of an object store.
        object_requests: counts the requests to the opened buckets.
        open_files: opens a remote file system.
        open_ledgers: opens a BookKeeper cluster.
        turns: of the event loop, for steps of background work.
    """

    __slots__ = (
        "cpu_s", "disk", "monotonic_s", "object_requests", "open_files", "open_ledgers", "open_objects",
        "resident_bytes", "rng", "turns", "wall_clock_ms", "watch_program", "work",
    )  # fmt: skip

    def __init__(
        self,
        *,
        disk: Disk,
        work: BlockingWork,
        rng: random.Random,
        wall_clock_ms: Callable[[], int],
        monotonic_s: Callable[[], float] | None = None,
        cpu_s: Callable[[], float] = lambda: 0.0,
        resident_bytes: Callable[[], int] = lambda: 0,
        watch_program: WatchProgram | None = None,
        open_objects: OpenObjectStore | None = None,
        open_files: OpenFileStore | None = None,
        open_ledgers: OpenLedgerStore | None = None,
    ) -> None:
        self.disk: Disk = disk
        self.work: BlockingWork = work
        self.rng: random.Random = rng
        self.wall_clock_ms: Callable[[], int] = wall_clock_ms
        self.monotonic_s: Callable[[], float] = monotonic_s or _loop_time_s
        self.cpu_s: Callable[[], float] = cpu_s
        self.resident_bytes: Callable[[], int] = resident_bytes
        self.watch_program: WatchProgram | None = watch_program
        self.object_requests: ObjectRequests = ObjectRequests()
        self.open_objects: OpenObjectStore = self.object_requests.counting(open_objects or _no_objects)
        self.open_files: OpenFileStore = open_files or _no_files
        self.open_ledgers: OpenLedgerStore = open_ledgers or _no_ledgers
        self.turns: Turns = Turns()

    def random_id(self) -> bytes:
        """Return 16 random bytes."""
        return self.rng.randbytes(16)

    def with_disk(self, disk: Disk) -> Runtime:
        """Return the same runtime with another disk."""
        same = copy.copy(self)
        same.disk = disk
        return same


def real_runtime(thread_count_max: int = 8) -> Runtime:
    """Return the runtime of production: real disk, threads, entropy and clock.

    `thread_count_max`: of the general pool; the tiers have pools of their own.
    """
    open_standard_descriptors()
    return Runtime(
        disk=LocalDisk(),
        work=ThreadedWork(thread_count_max),
        rng=random.Random(os.urandom(32)),
        wall_clock_ms=lambda: time.time_ns() // 1_000_000,
        monotonic_s=_boot_time_s if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic,
        cpu_s=time.thread_time,
        resident_bytes=resident_bytes,
        watch_program=watch_program,
        open_objects=_open_objects,
        open_files=_open_files,
        open_ledgers=_open_ledgers,
    )


# Each opens its kind of store with code that is loaded only then: most processes use none of them.


def _open_objects(place: ObjectPlace, settings: ObjectStoreSettings) -> ObjectStore:
    if place.scheme == DIRECTORY_SCHEME:
        from penstock.runtime.directory_objects import DirectoryObjects

        return DirectoryObjects(f"/{place.prefix}", settings)
    from penstock.runtime.obstore_objects import open_object_store

    return open_object_store(place, settings)


def _open_files(place: FilePlace, settings: FileStoreSettings, work: BlockingWork) -> FileStore:
    from penstock.runtime.hdfs_files import open_file_store

    return open_file_store(place, settings, work)


def _open_ledgers(place: LedgerPlace, settings: LedgerClientSettings, work: BlockingWork) -> LedgerStore:
    from penstock.runtime.bookkeeper import open_ledger_store

    return open_ledger_store(place, settings, work)


def _no_objects(place: ObjectPlace, settings: ObjectStoreSettings) -> ObjectStore:
    raise InvalidArgumentError(f"{place}: this runtime has no object stores")


def _no_files(place: FilePlace, settings: FileStoreSettings, work: BlockingWork) -> FileStore:
    raise InvalidArgumentError(f"{place}: this runtime has no remote file systems")


def _no_ledgers(place: LedgerPlace, settings: LedgerClientSettings, work: BlockingWork) -> LedgerStore:
    raise InvalidArgumentError(f"{place}: this runtime has no BookKeeper")


def _loop_time_s() -> float:
    return asyncio.get_running_loop().time()


def _boot_time_s() -> float:
    # On Linux `time.monotonic` does not advance while the machine sleeps; other systems' clocks do.
    return time.clock_gettime(time.CLOCK_BOOTTIME)
