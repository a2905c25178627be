"""Consumers as real processes, killed, hung and interrupted under load: nothing is lost, and nothing comes for nothing.

An event comes again at most once for each loss of a consumer that had it. A consumer that others took for dead, because
the machine was slow, counts as lost: they say so.
"""

from __future__ import annotations

import asyncio
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import penstock
from penstock import aio
from penstock.server.standalone_process import StandaloneProcess, child_environment
from support.consumer import READER_TIMEOUT_S, SETTINGS

pytestmark = pytest.mark.e2e

STREAM = "work/events"
GROUP = "workers"
CONSUMER_COUNT = 6
#: No test waits so long for the next thing to happen.
GUARD_S = 120.0
#: Bytes of output from which on a consumer counts as working: of twenty events, delivered and done.
_WORKING_BYTES = 20 * len("delivered 00000000\ndone 00000000\n")
_SCRIPT = Path(__file__).parents[1] / "support" / "consumer.py"


class Consumer:
    """One life of a consumer."""

    def __init__(self, directory: Path, uri: str, name: str) -> None:
        self.name = name
        self.said, self.log = directory / f"{name}.out", directory / f"{name}.log"
        with self.said.open("wb") as said, self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(_SCRIPT), uri, STREAM, GROUP, name],
                stdout=said, stderr=log, env=child_environment(),
            )  # fmt: skip

    def lines(self, what: str) -> list[str]:
        """Return the events that it said to be delivered, or done."""
        found = re.findall(rf"^{what} (\S+)$", self.said.read_text(), re.MULTILINE)
        return [str(event) for event in found]

    @property
    def is_working(self) -> bool:
        """Whether it has processed some events."""
        return self.said.stat().st_size >= _WORKING_BYTES

    def end(self, how: signal.Signals) -> None:
        """Let it end, or end it."""
        self.process.send_signal(how)
        self.process.wait(GUARD_S)


async def _read_the_rest(uri: str) -> list[str]:
    """Read what the group has left, as a last consumer."""
    found: list[str] = []
    end_s = time.monotonic() + GUARD_S
    async with aio.connect(uri, SETTINGS) as client:
        group = await client.reader_group(GROUP, [STREAM])
        async with await group.reader("last") as reader:
            while time.monotonic() < end_s:
                event = await reader.read(timeout_s=0.3)
                if event is not None:
                    found.append(event.data.decode())
                    continue
                await reader.store_positions()
                if not await group.unread_bytes():
                    return found
    pytest.fail("the group does not get to the end")


class Trouble:
    """Faults that befall consumers one after the other, with no wait for the last one to be over."""

    def __init__(self, rng: random.Random, fault_count: int) -> None:
        self.left = [(signal.SIGKILL, signal.SIGSTOP, signal.SIGINT)[number % 3] for number in range(fault_count)]
        self._rng = rng
        # Consumers that were asked to end, and consumers that are stopped until a time.
        self._ending: list[Consumer] = []
        self._held: list[tuple[float, Consumer]] = []
        self._last_s = time.monotonic()

    def befall(self, running: list[Consumer]) -> Consumer | None:
        """Apply the next fault to a consumer that is working, if there is one; return it."""
        now_s = time.monotonic()
        while self._held and self._held[0][0] <= now_s:
            _, consumer = self._held.pop(0)
            consumer.process.send_signal(signal.SIGCONT)
            consumer.end(signal.SIGKILL)
        working = [consumer for consumer in running if consumer.is_working]
        if not working:
            assert now_s - self._last_s < GUARD_S, "no consumer gets anything any more"
            return None
        self._last_s = now_s
        victim, how = self._rng.choice(working), self.left.pop(0)
        victim.process.send_signal(how)
        if how is signal.SIGSTOP:
            self._held.append((now_s + READER_TIMEOUT_S * 1.5, victim))
        else:
            self._ending.append(victim)
        return victim

    def end(self) -> None:
        """Wait until all that were troubled are gone."""
        for until_s, consumer in self._held:
            time.sleep(max(until_s - time.monotonic(), 0.0))
            consumer.process.send_signal(signal.SIGCONT)
            consumer.end(signal.SIGKILL)
        for consumer in self._ending:
            consumer.process.wait(GUARD_S)


def play(directory: Path, fault_count: int) -> None:
    """Let consumers meet `fault_count` faults under load, then judge what all of them said."""
    lives: list[Consumer] = []
    lost: set[str] = set()
    written = 0
    trouble = Trouble(random.Random(fault_count), fault_count)
    with StandaloneProcess(directory) as server, penstock.connect(server.uri) as client:
        client.create_stream(STREAM, scaling=penstock.Scaling.fixed(2 * CONSUMER_COUNT))

        def start() -> Consumer:
            lives.append(Consumer(directory, server.uri, f"consumer-{len(lives)}"))
            return lives[-1]

        running = [start() for _ in range(CONSUMER_COUNT)]
        try:
            with client.event_writer(STREAM) as writer:
                while trouble.left:
                    for _ in range(20):
                        writer.write(b"%08d" % written, routing_key=f"key {written % 64}")
                        written += 1
                    writer.flush()
                    time.sleep(0.02)
                    victim = trouble.befall(running)
                    if victim is not None:
                        lost.add(victim.name)
                        running.remove(victim)
                        running.append(start())
            trouble.end()
            for consumer in running:
                consumer.end(signal.SIGINT)
                lost.add(consumer.name)
            rest = asyncio.run(_read_the_rest(server.uri))
        finally:
            for consumer in lives:
                if consumer.process.poll() is None:
                    consumer.process.kill()
                    consumer.process.wait()
    for consumer in lives:
        lost.update(re.findall(r"declared reader (\S+) dead", consumer.log.read_text()))
    _judge(lives, lost, rest, written)


def _judge(lives: list[Consumer], lost: set[str], rest: list[str], written: int) -> None:
    done = Counter(rest)
    had: dict[str, list[str]] = defaultdict(list)
    for consumer in lives:
        done.update(consumer.lines("done"))
        for event in consumer.lines("delivered"):
            had[event].append(consumer.name)
    for event in rest:
        had[event].append("last")
    missing = [event for event in (f"{number:08d}" for number in range(written)) if not done[event]]
    assert missing == []
    for event, names in had.items():
        losses = sum(name in lost for name in names)
        assert len(names) <= 1 + losses, f"{event} was delivered to {names}, lost were {sorted(lost & set(names))}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("trouble_count", [12, pytest.param(100, marks=[pytest.mark.nightly])])
def test_consumers_killed_hung_and_interrupted_under_load_lose_nothing(tmp_path: Path, trouble_count: int) -> None:
    """Several faults at once: each consumer is hit as soon as it is working."""
    play(tmp_path, trouble_count)
