"""Controllers whose streams share a bucket of announcements: none waits long for the others. In virtual time."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.controller.metadata import layout
from penstock.controller.metadata.pending_work import PendingWork, SealStream, Subject, SubjectKind
from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.metadata.store import Removal, Row, Write
from penstock.controller.metadata.work_claims import WorkClaims, _fence_of
from penstock.controller.ownership.in_process_coordinator import InProcessCoordinator
from penstock.controller.ownership.peers import Peers
from penstock.controller.retry import conflict_delay_s
from penstock.controller.settings import ControllerSettings
from penstock_simulation.memory_store import MemoryMetadataStore
from penstock_simulation.simulated.simulation import Simulation

SETTINGS = ControllerSettings()
CONTROLLERS = 4
ROUNDS = 60
REQUEST_S = 0.002


class Distant(MemoryMetadataStore):
    """A store whose answers take a while."""

    async def get(self, table: str, keys: Sequence[str]) -> Sequence[Row | None]:
        await asyncio.sleep(REQUEST_S)
        return await super().get(table, keys)

    async def put(self, table: str, writes: Sequence[Write]) -> Sequence[int]:
        await asyncio.sleep(REQUEST_S)
        return await super().put(table, writes)

    async def remove(self, table: str, removals: Sequence[Removal]) -> None:
        await asyncio.sleep(REQUEST_S)
        return await super().remove(table, removals)


def subjects_of_one_bucket(count: int) -> Any:
    """Return streams that share a fence."""
    found: dict[str, list[Subject]] = {}
    for number in itertools.count():
        subject = Subject(SubjectKind.STREAM, "scope", f"stream-{number}")
        same = found.setdefault(_fence_of(subject), [])
        same.append(subject)
        if len(same) == count:
            return same


@pytest.mark.parametrize("seed", range(3))
def test_controllers_whose_streams_share_a_bucket_do_not_hold_each_other_up(seed: int) -> None:
    """Four controllers announce and end work without a pause, each on a stream of its own, behind one fence.

    An announcement alone takes two requests of 2 ms. None takes a second; once some of them took ten and more, as a
    conflict was waited out as if a store were away: 100 ms, then 1 s, then 10 s.
    """
    took_s = []

    async def controller(store: Distant, coordinator: InProcessCoordinator, subject: Subject, name: str) -> None:
        loop = asyncio.get_running_loop()
        claims = WorkClaims(RecordStore(store), SETTINGS, Peers())
        claims.enter(await coordinator.join(name))
        for number in range(ROUNDS):
            begin_s = loop.time()
            work = PendingWork(subject, SealStream(), "life", name, 0, f"{name} {number}")
            announced = await claims.announce(work)
            took_s.append(loop.time() - begin_s)
            await claims.withdraw(announced)

    async def scenario() -> None:
        store, coordinator = Distant(), InProcessCoordinator()
        await store.create_table(layout.PENDING_WORK)
        subjects = subjects_of_one_bucket(CONTROLLERS)
        await asyncio.gather(
            *(
                controller(store, coordinator, subject, f"controller-{seed}-{number}")
                for number, subject in enumerate(subjects)
            )
        )

    with Simulation(seed) as simulation:
        simulation.run(scenario)
    assert len(took_s) == CONTROLLERS * ROUNDS
    assert max(took_s) < 1.0
    # They did meet: alone each would find the fence as it has left it.
    assert sum(taken_s > 3 * REQUEST_S for taken_s in took_s) > ROUNDS


def test_the_wait_after_a_conflict_is_drawn_and_bounded() -> None:
    """Twice as long at most from attempt to attempt, up to the bound; two controllers do not wait for the same time."""
    for attempt in range(1, 30):
        most_ms = min(SETTINGS.conflict_delay_ms_first * 2 ** (attempt - 1), SETTINGS.conflict_delay_ms_max)
        drawn = [conflict_delay_s(SETTINGS, attempt, random.Random(f"controller-{name}")) for name in range(50)]
        assert all(0 <= one <= most_ms / 1000 for one in drawn)
        assert max(drawn) > 0.8 * most_ms / 1000
        assert len(set(drawn)) == 50
