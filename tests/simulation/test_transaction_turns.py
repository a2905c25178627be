"""Changes of a stream while clients commit on it without a pause: each is done within a second of virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.controller import locks
from penstock.model.errors import PenstockError
from penstock.model.policies import Scaling
from penstock_simulation.simulated.cluster import SimulatedCluster
from penstock_simulation.simulated.simulation import Simulation

STREAM = "scope/stream"
WRITER_COUNT = 8
#: How long they commit before the first change.
RUN_UP_S = 0.2
LIMIT_S = 1.0


class Committing:
    """Eight clients that begin, write and commit one transaction after the other, until the stream is sealed."""

    def __init__(self, simulation: Simulation) -> None:
        self.loop = simulation.loop
        self.cluster = SimulatedCluster(simulation)
        self.host = self.cluster.add_client("client")
        self.committed_count = 0
        self.took_s: dict[str, float] = {}
        self.is_sealing = False

    async def _commit_without_end(self, client) -> None:
        try:
            while True:
                transaction = await client.begin_transaction(STREAM)
                await transaction.write(b"event", routing_key="key")
                await transaction.commit()
                self.committed_count += 1
        except PenstockError:
            assert self.is_sealing, "a commit was refused before the seal"

    async def play(self, *changes: str) -> None:
        """Make changes while they commit."""
        async with self.cluster.client(self.host) as client:
            await client.create_stream(STREAM, scaling=Scaling.fixed(2))
            writers = [asyncio.ensure_future(self._commit_without_end(client)) for _ in range(WRITER_COUNT)]
            await asyncio.sleep(RUN_UP_S)
            for name in changes:
                before, begin_s = self.committed_count, self.loop.time()
                self.is_sealing = name == "seal"
                change = client.update_stream(STREAM, tags=["x"]) if name == "update" else client.seal_stream(STREAM)
                try:
                    async with asyncio.timeout(1.5 * LIMIT_S):
                        await change
                except TimeoutError:
                    pass
                self.took_s[name] = self.loop.time() - begin_s
                if name == "update":
                    # It was among commits and not beside an idle stream.
                    await asyncio.sleep(RUN_UP_S)
                    assert self.committed_count - before >= WRITER_COUNT
            for one in writers:
                one.cancel()
            await asyncio.gather(*writers, return_exceptions=True)


def took_s(seed: int, *changes: str) -> dict[str, float]:
    """Play it; return how long each change took."""
    with Simulation(seed=seed) as simulation:
        committing = Committing(simulation)
        simulation.run(committing.cluster.ready)
        simulation.run(lambda: committing.host.run(committing.play(*changes)))
        return committing.took_s


@contextmanager
def unfair_lanes() -> Iterator[None]:
    """Make a released lock free for the first to take it: the waiters only try again."""

    async def acquire(self: locks._LaneLock, lane: str) -> None:
        while self._is_held:  # noqa: ASYNC110  # The bug that is planted.
            await asyncio.sleep(0.01)
        self._is_held, self._lane = True, lane

    def release(self: locks._LaneLock) -> None:
        self._is_held = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locks._LaneLock, "acquire", acquire)
        patch.setattr(locks._LaneLock, "release", release)
        yield


@pytest.mark.parametrize("seed", [1, 2])
def test_update_and_seal_take_less_than_a_second_under_eight_committing_writers(seed: int) -> None:
    """All three of writers, controller and store are simulated: a slow machine changes nothing."""
    took = took_s(seed, "update", "seal")
    assert set(took) == {"update", "seal"}
    assert max(took.values()) < LIMIT_S, took


def test_lanes_that_are_unfair_make_changes_wait_for_longer_than_a_second() -> None:
    """What the test above is there to see: commits take the lock again and again, and an update does not get it."""
    with unfair_lanes():
        took = took_s(1, "update")
    assert max(took.values()) > LIMIT_S, took
