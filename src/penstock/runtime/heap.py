"""The C library's heap in a server: how many there are, and that what is free goes back to the system.

glibc keeps what is freed between things that live on: after a while of blocks of changing lengths, what a cache lets go
of leaves holes that what comes next does not fit into. A cache of 384 MiB, full of appends of 300 KB that make way for
read-ahead of 1 MiB, had 260 MB of them beside it. A fixed threshold above which each block is a mapping of its own
does without, but pays for each block with pages to be cleared: a tenth of the CPU of one segment at full speed. Given
back from time to time, holes cost only where there are many.
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

#: Parameter of `mallopt`, and the number of heaps: one per thread would leave memory idle in each.
_M_ARENA_MAX = -8
_ARENA_COUNT_MAX = 2
#: What may be free in the heap and yet take memory, before it goes back. To give back so much takes 2 to 10 ms, in
#: which others wait when they want memory; with twice as much it would be twice that.
SLACK_BYTES = 48 * 1024 * 1024
#: Between two looks, which take 0.2 ms. A server at full speed lets go of 100 MB a second.
INTERVAL_S = 0.25


@dataclass(frozen=True, slots=True)
class HeapUse:
    """What a process takes, in bytes.

    Attributes:
        resident_bytes: memory of the whole process.
        used_bytes: what the heap has given out.
        free_bytes: what it has not, whether memory is behind it or not any more.
    """

    resident_bytes: int
    used_bytes: int
    free_bytes: int


class HeapTrim:
    """Decides when free memory goes back, by looks at `read`; `give_back` does it.

    Nobody tells how much of what is free takes memory. But what a process takes beyond what its heap has given out is
    that, and things outside of the heap; so what it has been at least since the last time is taken for the latter.
    Where those have grown, one attempt finds nothing to give back, and is not repeated before they have grown as much
    again.
    """

    def __init__(
        self, read: Callable[[], HeapUse], give_back: Callable[[], object], *, slack_bytes: int = SLACK_BYTES
    ) -> None:
        self._read = read
        self._give_back = give_back
        self._slack_bytes = slack_bytes
        self._outside_bytes: int | None = None

    def look(self) -> int:
        """Give free memory back if there is more of it than the slack; return how much the process takes less."""
        use = self._read()
        beyond = use.resident_bytes - use.used_bytes
        if self._outside_bytes is None or beyond < self._outside_bytes:
            self._outside_bytes = beyond
        if min(beyond - self._outside_bytes, use.free_bytes) <= self._slack_bytes:
            return 0
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
    """Keep glibc from giving every thread a heap of its own. Harmless where the C library is another one."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_ARENA_MAX, _ARENA_COUNT_MAX)


def keep_heap_small() -> None:
    """Have what is free in the heap given back from now on, by a thread that ends with the process.

    By a thread of its own: it belongs to the process, as the heap does, whatever loops and pools come and go in it; and
    meanwhile the event loop goes on, unless it asks for memory. It holds nothing and touches nothing but the heap. Does
    nothing where the C library is another one, or older than glibc 2.33.
    """
    trim = _glibc_trim()
    if trim is not None:
        trim.look()  # At what is outside of the heap, while nothing is free in it.
        threading.Thread(target=_keep_small, args=(trim,), name="penstock-heap", daemon=True).start()


def _keep_small(trim: HeapTrim) -> None:
    pause = threading.Event()
    while not pause.wait(INTERVAL_S):
        gone = trim.look()
        if gone:
            logger.debug("gave %.1f MB of free memory back", gone / 1e6)


def _glibc_trim() -> HeapTrim | None:
    """Return what gives back glibc's free memory; None if it cannot be asked."""
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
