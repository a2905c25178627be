"""`InFlightLimit` against a model of a store: blocks wait for it, and it acknowledges at most so many bytes a second.

At the end, a whole client and a whole segment store in virtual time, whose log is in a bucket that answers after 30 ms.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque

import pytest

import penstock
from penstock.client.settings import ClientSettings
from penstock.client.writing.ack import AckState, when_done
from penstock.client.writing.append_window import AppendWindow, WindowLimits
from penstock.client.writing.in_flight_limit import PROBE_INTERVAL_S, InFlightLimit
from penstock.segmentstore.settings import CacheSettings, SegmentStoreSettings
from penstock.segmentstore.tier1.log_owner import LogOwner
from penstock.segmentstore.tier1.object_log.factory import ObjectLogFactory
from penstock.segmentstore.tier1.object_log.settings import ObjectLogSettings
from penstock_simulation.simulated.host import Host
from penstock_simulation.simulated.objects import ObjectFaults, SimulatedBucket, SimulatedObjects
from support.simulated_stack import CONTAINER_COUNT, SimulatedStack

BLOCK = 1000
USUAL = 4 * BLOCK
LIMITS = WindowLimits(
    block_bytes_max=BLOCK, pipelined_block_bytes_min=BLOCK // 2, in_flight_block_count_max=4,
    in_flight_bytes_max=2 * USUAL, slow_in_flight_bytes_max=32 * BLOCK,
)  # fmt: skip


class Line:
    """A store that acknowledges each block `wait_s` after it has come, and `bytes_per_s` at most, in steps of 1 ms."""

    def __init__(self, wait_s: float, bytes_per_s: float = 1e9) -> None:
        self.window = AppendWindow(LIMITS, AckState)
        self.wait_s, self.bytes_per_s = wait_s, bytes_per_s
        self.now_s = 1.0
        self.done_bytes = 0
        self.most_in_flight = 0
        self.drained: list[float] = []
        self._free_s = 0.0
        self._due: deque[tuple[float, int]] = deque()

    def run(self, seconds: float) -> float:
        """Write at full speed; return the rate of acknowledged bytes."""
        window = self.window
        end_s, before = self.now_s + seconds, self.done_bytes
        self.most_in_flight = 0
        while self.now_s < end_s:
            while len(window.ready) < 2:
                window.add(b"x" * (BLOCK - 8), None, BLOCK)
            while (block := window.next_to_send(self.now_s)) is not None:
                self._free_s = max(self._free_s, self.now_s) + block.size_bytes / self.bytes_per_s
                self._due.append((max(self._free_s, self.now_s + self.wait_s), block.last_number))
            self.most_in_flight = max(self.most_in_flight, window.in_flight_bytes)
            self.now_s += 0.001
            while self._due and self._due[0][0] <= self.now_s:
                _, number = self._due.popleft()
                self.done_bytes += sum(block.size_bytes for block in window.acknowledge(number, self.now_s))
            if not window.in_flight:
                self.drained.append(self.now_s)
        return (self.done_bytes - before) / seconds


def test_a_store_that_acknowledges_slowly_gets_more_in_flight_until_something_else_limits_it() -> None:
    line = Line(wait_s=0.1, bytes_per_s=200_000)
    line.run(2.0)
    assert line.run(3.0) > 0.9 * 200_000  # With four blocks it would be 40 000.


def test_the_limit_is_never_above_the_setting() -> None:
    line = Line(wait_s=0.2)
    line.run(5.0)
    assert line.most_in_flight == 32 * BLOCK


def test_a_fast_store_that_is_busy_gets_no_more_than_the_usual_blocks() -> None:
    """Its waits are long because the blocks of the writer itself are before each other, and those do not count."""
    line = Line(wait_s=0.002, bytes_per_s=100_000)
    line.run(0.5)
    line.run(15.0)
    assert line.most_in_flight == USUAL


def test_the_wait_is_measured_again_so_a_store_that_becomes_fast_gets_the_usual_blocks_again() -> None:
    line = Line(wait_s=0.1, bytes_per_s=100_000)
    line.run(2.0)
    assert line.most_in_flight > USUAL
    line.wait_s = 0.002
    line.run(4 * PROBE_INTERVAL_S)
    line.run(2.0)
    assert line.most_in_flight == USUAL


def test_measuring_the_wait_costs_little() -> None:
    line = Line(wait_s=0.1, bytes_per_s=200_000)
    line.run(2.0)
    line.drained.clear()
    assert line.run(30.0) > 0.95 * 200_000
    assert 2 <= len(line.drained) <= 4


def test_what_was_in_flight_on_a_lost_connection_is_no_wait() -> None:
    limit = InFlightLimit(32 * BLOCK)
    limit.sent(BLOCK, 1.0, in_flight_bytes=0)
    limit.reset()
    limit.sent(BLOCK, 60.0, in_flight_bytes=0)
    limit.acknowledged(BLOCK, 60.002, in_flight_bytes=0)
    assert limit.limit_bytes <= 5 * BLOCK


class _Bucket(SimulatedObjects):
    async def put_new(self, key: str, content: bytes | bytearray | memoryview, tag: str) -> None:
        await asyncio.sleep(len(content) / 200e6)
        await super().put_new(key, content, tag)


class _BucketStack(SimulatedStack):
    async def _serve(self, host: Host) -> None:
        objects = _Bucket(SimulatedBucket(), random.Random(1), ObjectFaults(latency_s_min=0.03, latency_s_max=0.03))
        owner = LogOwner(host.runtime.random_id(), lambda token: True)
        self._logs = ObjectLogFactory(
            objects, host.runtime, ObjectLogSettings(), prefix="log", container_count=CONTAINER_COUNT, owner=owner
        )
        await super()._serve(host)


@pytest.mark.parametrize("slow_in_flight_bytes_max", [1, ClientSettings().slow_in_flight_bytes_max])
def test_one_writer_on_one_segment_is_not_bound_by_the_interval_of_a_log_in_a_bucket(
    slow_in_flight_bytes_max: int,
) -> None:
    """Time is virtual and CPU costs none, so this is the bound by latency alone. The usual blocks give 30 MB/s."""
    settings = ClientSettings(slow_in_flight_bytes_max=slow_in_flight_bytes_max)
    stack = _BucketStack(
        0, SegmentStoreSettings(container_count=CONTAINER_COUNT, cache=CacheSettings(bytes_max=1 << 30)), settings
    )

    async def write() -> float:
        loop = asyncio.get_running_loop()
        await stack.client.create_stream("test/one", scaling=penstock.Scaling.fixed(1))
        block = [bytes(100_000)] * 10
        async with stack.client.event_writer("test/one") as writer:
            begin_s, count = loop.time(), 0
            while loop.time() - begin_s < 1.0:
                await writer.write_many(block)
            begin_s, count = loop.time(), 0
            while loop.time() - begin_s < 0.7:
                await writer.write_many(block)
                count += 1
            return count / (loop.time() - begin_s)

    megabytes_per_s = stack.call(write)
    stack.close()
    if slow_in_flight_bytes_max == 1:
        assert megabytes_per_s < 50
    else:
        assert megabytes_per_s > 120


def test_at_a_steady_rate_an_append_waits_for_one_interval_of_a_log_in_a_bucket() -> None:
    """p99 is at most one interval and three requests. Time is virtual."""
    stack = _BucketStack(0, SegmentStoreSettings(container_count=CONTAINER_COUNT))
    waits_s: list[float] = []

    async def write() -> None:
        loop = asyncio.get_running_loop()
        await stack.client.create_stream("test/steady", scaling=penstock.Scaling.fixed(1))
        async with stack.client.event_writer("test/steady") as writer:
            for _ in range(600):
                begin_s = loop.time()
                await writer.write_many([bytes(100)] * 49)
                ack = await writer.write(bytes(100))
                when_done(ack, lambda begin_s=begin_s: waits_s.append(loop.time() - begin_s))  # type: ignore[misc]
                await asyncio.sleep(0.005)

    stack.call(write)
    stack.close()
    assert len(waits_s) == 600
    assert sorted(waits_s)[594] < ObjectLogSettings().batch_interval_s + 3 * 0.03
