"""Free memory of the C library's heap goes back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from penstock.runtime.heap import HeapTrim, HeapUse

MIB = 1024 * 1024


class Process:
    """A process with so much in use, so much free that takes memory, and so much outside of the heap, in MiB."""

    def __init__(self, *, used: int = 100, free: int = 0, outside: int = 60, polls_min: int = 1) -> None:
        self.used = used
        self.free = free
        self.outside = outside
        #: Free, without memory after it.
        self.given_back = 0
        self.times = 0
        self.trim = HeapTrim(self.read, self.give_back, slack_bytes=50 * MIB, polls_min=polls_min)

    def read(self) -> HeapUse:
        resident = self.used + self.free + self.outside
        return HeapUse(resident * MIB, self.used * MIB, (self.free + self.given_back) * MIB)

    def give_back(self) -> None:
        self.times += 1
        self.given_back += self.free
        self.free = 0


def test_free_memory_above_the_slack_is_returned() -> None:
    process = Process()
    assert process.trim.check() == 0
    process.used, process.free = 60, 40
    assert process.trim.check() == 0
    process.used, process.free = 40, 60
    assert process.trim.check() == 60 * MIB
    assert process.times == 1


def test_returned_memory_is_not_returned_again() -> None:
    process = Process()
    process.trim.check()
    process.free = 200
    process.trim.check()
    for _ in range(10):
        assert process.trim.check() == 0
    process.free, process.given_back = 51, 149
    assert process.trim.check() == 51 * MIB
    assert process.times == 2


def test_memory_that_is_needed_again_soon_is_not_returned() -> None:
    """The next poll finds it in use, as with buffers of objects. It is returned once it stays free."""
    process = Process(polls_min=3)
    process.trim.check()
    for _ in range(20):
        for process.used, process.free in ((40, 60), (30, 70), (95, 5)):
            assert process.trim.check() == 0
    process.used, process.free = 40, 60
    assert [process.trim.check() for _ in range(4)] == [0, 0, 60 * MIB, 0]
    assert process.times == 1


def test_memory_outside_of_the_heap_is_tried_once_for_each_slack_that_it_grows_by() -> None:
    process = Process()
    process.trim.check()
    process.given_back = 300  # So that it might be the heap's.
    for _ in range(200):
        process.outside += 1
        process.trim.check()
    assert process.times == 3


def test_allocated_memory_causes_no_further_search() -> None:
    process = Process()
    process.trim.check()
    process.used = 1000
    assert process.trim.check() == 0
    assert process.times == 0


def test_freed_memory_outside_the_heap_does_not_raise_the_limit() -> None:
    """The slack counts from the least there was, or what is free would take the place of what went."""
    process = Process(outside=200)
    process.trim.check()
    process.outside = 100
    process.trim.check()
    process.free = 60
    assert process.trim.check() == 60 * MIB


#: 300 MB in blocks of 100 KB; what stays lies between what goes. Says how many MB the process takes less in the end, or
#: as soon as most of them are gone.
CHURN = """
import sys, time
from penstock.runtime.heap import bound_heaps, keep_heap_small
from penstock.runtime.program import resident_bytes
bound_heaps()
if sys.argv[1] == "watched":
    keep_heap_small()
blocks = [bytearray(b"x" * 100_000) for _ in range(3_000)]
before = resident_bytes()
blocks = blocks[::10]
end_s = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end_s and resident_bytes() > before - 200_000_000:
    time.sleep(0.1)
print((before - resident_bytes()) // 1_000_000)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's heap is trimmed")
@pytest.mark.parametrize(("how", "wait_s"), [("watched", 30), ("alone", 1)])
def test_holes_between_live_blocks_are_returned_to_the_system(how: str, wait_s: int) -> None:
    """In separate processes; without a watcher the holes stay."""
    command = [sys.executable, "-c", CHURN, how, str(wait_s)]
    gone_mb = int(subprocess.check_output(command, timeout=60))
    assert gone_mb > 200 if how == "watched" else gone_mb < 50
