"""Processes take logs in one bucket from each other, under every fault of a bucket. Planted mistakes are found."""

from __future__ import annotations

import pytest

from penstock_simulation.mutations.mutation import Mutation
from penstock_simulation.mutations.object_logs import FLEET_LOG_MUTATIONS, OBJECT_LOG_MUTATIONS
from support.drawn_seeds import drawn_seeds
from support.log_fleet import LogFleet

#: Within so many seeds a mistake is found; all but one are found by every fifth or so.
SEED_COUNT_MAX = 120


@pytest.mark.parametrize("seed", drawn_seeds(12, daily=4))
def test_nothing_acknowledged_is_lost_repeated_or_out_of_order(seed: int) -> None:
    fleet = LogFleet(seed).run()
    assert fleet.check() == []
    # Otherwise it shows nothing.
    for history in fleet.histories.values():
        assert len(history.seen) > 5
        assert len(history.acknowledged) > 50


#: A seed that found it when this was written; others were found by the first. "A seal" costs a journal, and no data.
FIRST = {"delete seals with the trim": 4, "send again before the slots below are settled": 18}
PLANTED = [
    each
    for each in (*OBJECT_LOG_MUTATIONS, *FLEET_LOG_MUTATIONS)
    if each.name != "take an object that exists for a seal"
]


@pytest.mark.parametrize("mutation", PLANTED, ids=lambda each: each.name.replace(" ", "-"))
def test_a_planted_mistake_is_found(mutation: Mutation) -> None:
    first = FIRST.get(mutation.name, 0)
    with mutation.apply():
        for seed in range(first, first + SEED_COUNT_MAX):
            try:
                if LogFleet(seed).run().check():
                    return
            except AssertionError:
                return
    pytest.fail(f"{mutation.name}: not found by {SEED_COUNT_MAX} seeds")
