"""Checks of simulated clusters ignore real servers in the same process, which tests run in other threads."""

from __future__ import annotations

from penstock.segmentstore.container.ownership import OwnershipLease
from penstock_simulation.checks.members import watch_members
from support.containers import Incarnations, append, read_all

NAME = "s/a/0.#epoch.0"


async def test_a_container_outside_of_the_simulation_is_not_watched() -> None:
    """Container 0 of a simulated cluster is at epoch 3; a real one of this number answers at epoch 1."""
    violations: list[str] = []
    lives = Incarnations()
    before = OwnershipLease._check
    with watch_members(violations.append) as watch:
        watch.may_serve(0, 3)
        container = await lives.start()
        await container.create(NAME)
        await append(container, NAME, b"bytes")
        container.ownership.check()
        assert await read_all(container, NAME) == b"bytes"
    assert container.log.epoch == 1
    await lives.close()
    assert violations == []
    assert OwnershipLease._check is before
