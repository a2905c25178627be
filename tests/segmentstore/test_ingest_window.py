"""How much of a connection may be under way: what is done in the wait that is aimed at."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from penstock.segmentstore.ingest_window import IngestWindow

KIB = 1024
MIB = 1024 * KIB


class Line:
    """A client without end, and a log that does `bytes_per_s`, each piece not before `base_s` after it came."""

    def __init__(self, window: IngestWindow, bytes_per_s: float, base_s: float, sync_s: float = 0.0) -> None:
        self.window = window
        self.bytes_per_s = bytes_per_s
        self.base_s = base_s
        self.sync_s = sync_s
        self.now_s = 1.0
        self.pieces: deque[tuple[float, int]] = deque()
        self.held_bytes = 0
        self.done_bytes = 0
        self.waits_s: list[float] = []
        self._credit_bytes = 0.0

    def run(self, duration_s: float, *, step_s: float = 0.001, piece_bytes: int = 16 * KIB) -> None:
        self.waits_s = []
        self.done_bytes = 0
        for _ in range(int(duration_s / step_s)):
            while self.held_bytes <= self.window.limit_bytes:
                self.pieces.append((self.now_s, piece_bytes))
                self.held_bytes += piece_bytes
                self.window.take(piece_bytes, self.now_s)
            self.now_s += step_s
            self._credit_bytes = min(self._credit_bytes + self.bytes_per_s * step_s, self.bytes_per_s * 4 * step_s)
            while self.pieces and self._credit_bytes >= self.pieces[0][1]:
                came_s, length = self.pieces[0]
                if self.now_s - came_s < self.base_s:
                    break
                self.pieces.popleft()
                self._credit_bytes -= length
                self.held_bytes -= length
                self.done_bytes += length
                self.window.finish(length)
                self.waits_s.append(self.now_s - came_s)
            if self.window.is_round_over(self.now_s):
                self.window.turn(self.now_s, self.sync_s)


def test_what_comes_waits_about_as_long_as_is_aimed_at() -> None:
    """At 100 MB/s and at a fifth of it, with all of the throughput."""
    line = Line(IngestWindow(512 * KIB, 32 * MIB, 0.05), 100e6, 0.005)
    for bytes_per_s in (100e6, 20e6, 100e6):
        line.bytes_per_s = bytes_per_s
        line.run(2.0)
        line.run(2.0)
        assert line.done_bytes >= 0.95 * bytes_per_s * 2.0
        assert sorted(line.waits_s)[len(line.waits_s) // 2] <= 0.075


def test_a_log_that_takes_long_for_each_sync_gets_more_at_once() -> None:
    """200 ms for a sync: a window for 50 ms would let a fraction of what it can do through."""
    line = Line(IngestWindow(512 * KIB, 32 * MIB, 0.05), 50e6, 0.3, sync_s=0.2)
    line.run(5.0)
    line.run(2.0)
    assert line.done_bytes >= 0.9 * 50e6 * 2.0


def test_a_window_that_was_too_short_grows_within_a_second() -> None:
    line = Line(IngestWindow(512 * KIB, 32 * MIB, 0.05), 400e6, 0.01)
    line.run(1.0)
    line.run(1.0)
    assert line.done_bytes >= 0.9 * 400e6


def test_what_waits_for_something_else_does_not_stop_the_rest() -> None:
    """A megabyte of appends is held by one container: it is not counted after a while, and the rest continues."""
    window = IngestWindow(512 * KIB, 32 * MIB, 0.05)
    window.take(MIB, 1.0)
    assert window.limit_bytes < MIB
    now_s = 1.0
    while not window.is_round_over(now_s):
        now_s += 0.01
    window.turn(now_s, 0.0)
    assert now_s <= 1.0 + 0.12
    assert window.limit_bytes >= MIB + 512 * KIB
    window.finish(MIB)
    while not window.is_round_over(now_s):
        now_s += 0.01
    window.turn(now_s, 0.0)
    assert window.limit_bytes <= 2 * MIB


def test_a_log_that_stalls_fills_no_more_than_the_most() -> None:
    window = IngestWindow(512 * KIB, 4 * MIB, 0.05)
    held, now_s = 0, 1.0
    for _ in range(1000):
        while held <= window.limit_bytes:
            window.take(64 * KIB, now_s)
            held += 64 * KIB
        now_s += 0.01
        if window.is_round_over(now_s):
            window.turn(now_s, 0.01)
    assert 4 * MIB <= held <= 4 * MIB + 64 * KIB


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 1 << 20), st.floats(0.0, 0.2)), max_size=60))
def test_the_limit_stays_between_its_bounds(steps: list[tuple[bool, int, float]]) -> None:
    window = IngestWindow(512 * KIB, 4 * MIB, 0.05)
    held, now_s = 0, 1.0
    for is_take, byte_count, pause_s in steps:
        now_s += pause_s
        if is_take:
            window.take(byte_count, now_s)
            held += byte_count
        else:
            window.finish(min(byte_count, held))
            held -= min(byte_count, held)
        if window.is_round_over(now_s):
            window.turn(now_s, pause_s)
        assert 512 * KIB <= window.limit_bytes <= 4 * MIB
