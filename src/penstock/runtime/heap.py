"""The C library's heap in a server: bounds the number of arenas, and returns free memory to the system.

glibc does not return free memory between live allocations. After many allocations of different lengths, evictions from
a cache leave holes that new entries do not fit into. A cache of 384 MiB, with appends of 300 KB evicted for read-ahead
of 1 MiB, had 260 MB of holes. A fixed `M_MMAP_THRESHOLD` avoids holes, but the kernel clears the pages of each block:
a tenth of the CPU of one segment at full speed. Trimming the heap from time to time costs only where there are many
holes.

Memory that is free now may be needed again in a moment: a log in a bucket and long-term storage in a bucket allocate
copies of 8 and 16 MB for each object. The kernel clears each page that comes back, 0.75 ms for a MB. So the heap is
trimmed only if more than the slack was free at each poll for some time.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

from penstock.runtime.program import resident_bytes

logger: logging.Logger = logging.getLogger(__name__)

#: Parameter of `mallopt`, and the number of arenas: one per thread would leave memory idle in each.
_M_ARENA_MAX = -8
_ARENA_COUNT_MAX = 2
#: Free memory that the heap may keep. Trimming this much takes 2 to 10 ms, during which other allocations wait; twice
#: as much would take twice as long.
SLACK_BYTES = 48 * 1024 * 1024
#: Time between two polls, each of which takes 0.2 ms. A server at full speed frees 100 MB a second.
INTERVAL_S = 0.25
#: Consecutive polls with more than the slack before a trim: 2 s.
POLLS_MIN = 8


@dataclass(frozen=True, slots=True)
class HeapUse:
    """Memory use of a process, in bytes.

    Attributes:
        resident_bytes: resident memory of the whole process.
        used_bytes: allocated from the heap.
        free_bytes: free in the heap, whether it is still resident or not.
    """

    resident_bytes: int
    used_bytes: int
    free_bytes: int


class HeapTrim:
    """Decides when to trim the heap, by polling `read`; `give_back` trims it.

    glibc does not report how much of the free memory is resident. Resident memory minus allocated memory is that plus
    memory outside of the heap; the minimum of this difference since the last trim is taken as the memory outside. Where
    the latter has grown, one trim frees nothing; the next one comes only after it has grown by as much again.
    `polls_min`: see `POLLS_MIN`.
    """

    def __init__(
        self,
        read: Callable[[], HeapUse],
        give_back: Callable[[], object],
        *,
        slack_bytes: int = SLACK_BYTES,
        polls_min: int = POLLS_MIN,
    ) -> None:
        self._read = read
        self._give_back = give_back
        self._slack_bytes = slack_bytes
        self._polls_min = polls_min
        #: Polls in sequence with more than the slack.
        self._poll_count = 0
        self._outside_bytes: int | None = None

    def check(self) -> int:
        """Trim the heap if more than the slack has been free for some time.

        Returns by how much resident memory shrank, in bytes.
        """
        use = self._read()
        beyond = use.resident_bytes - use.used_bytes
        if self._outside_bytes is None or beyond < self._outside_bytes:
            self._outside_bytes = beyond
        if min(beyond - self._outside_bytes, use.free_bytes) <= self._slack_bytes:
            self._poll_count = 0
            return 0
        self._poll_count += 1
        if self._poll_count < self._polls_min:
            return 0
        self._poll_count = 0
        self._give_back()
        after = self._read()
        self._outside_bytes = after.resident_bytes - after.used_bytes
        return use.resident_bytes - after.resident_bytes


class _MallocCounts(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip

    uordblks: int
    hblkhd: int
    fordblks: int


def bound_heaps() -> None:
    """Bound the number of glibc's arenas. No effect with another C library."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_ARENA_MAX, _ARENA_COUNT_MAX)


def keep_heap_small() -> None:
    """Start a daemon thread that trims the heap from time to time.

    It is a thread of its own because the heap belongs to the process, not to an event loop or a pool; the event loop
    runs meanwhile, unless it allocates. The thread touches nothing but the heap. Does nothing with another C library,
    or with glibc older than 2.33.
    """
    trim = _glibc_trim()
    if trim is not None:
        trim.check()  # Measures memory outside of the heap, while nothing is free in it.
        threading.Thread(target=_keep_small, args=(trim,), name="penstock-heap", daemon=True).start()


def _keep_small(trim: HeapTrim) -> None:
    pause = threading.Event()
    while not pause.wait(INTERVAL_S):
        gone = trim.check()
        if gone:
            logger.debug("returned %.1f MB of free memory to the system", gone / 1e6)


def _glibc_trim() -> HeapTrim | None:
    """Return a function that trims glibc's heap; None if it is not available."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    counts, malloc_trim = getattr(library, "mallinfo2", None), getattr(library, "malloc_trim", None)
    if counts is None or malloc_trim is None:
        return None
    counts.restype = _MallocCounts
    malloc_trim.argtypes = [ctypes.c_size_t]

    def read() -> HeapUse:
        found: _MallocCounts = counts()
        return HeapUse(resident_bytes(), found.uordblks + found.hblkhd, found.fordblks)

    return HeapTrim(read, lambda: malloc_trim(0))
