"""Processes take logs in BookKeeper from each other, while bookies and metadata fail. Planted mistakes are found."""

from __future__ import annotations

import pytest

from penstock_simulation.mutations.bookkeeper_logs import BOOKKEEPER_LOG_MUTATIONS
from penstock_simulation.mutations.mutation import Mutation
from support.bookie_fleet import BookieFleet

#: Within so many seeds a mistake is found.
SEED_COUNT_MAX = 60


@pytest.mark.parametrize("seed", range(8))
def test_nothing_acknowledged_is_lost_repeated_or_out_of_order(seed: int) -> None:
    fleet = BookieFleet(seed).run()
    assert fleet.check() == []
    # Otherwise it shows nothing.
    for history in fleet.histories.values():
        assert len(history.seen) > 5
        assert len(history.acknowledged) > 20


@pytest.mark.parametrize("mutation", BOOKKEEPER_LOG_MUTATIONS, ids=lambda mutation: mutation.name.replace(" ", "-"))
def test_a_planted_mistake_is_found(mutation: Mutation) -> None:
    with mutation.apply():
        for seed in range(SEED_COUNT_MAX):
            try:
                if BookieFleet(seed).run().check():
                    return
            except AssertionError:
                return
    pytest.fail(f"{mutation.name}: not found by {SEED_COUNT_MAX} seeds")
