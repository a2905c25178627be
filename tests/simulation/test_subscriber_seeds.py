"""Groups that subscribe to a stream truncated as far as allowed, in dedicated seeds: no death makes one lose events."""

from __future__ import annotations

import pytest

from penstock_simulation.mutations.subscribers import LIMITED_SUBSCRIBERS, SUBSCRIBERS
from penstock_simulation.runner import run


@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (4, 8))])
def test_no_event_is_truncated_before_all_subscribers_acknowledged_it(seed: int) -> None:
    """By itself and by hand, changed in between; and what all have acknowledged does go."""
    outcome = run(seed, SUBSCRIBERS)
    assert outcome.violations == ()
    for done in (
        "heads of held streams", "deaths of subscribers", "cuts acknowledged", "retention of groups changed",
        "checkpoints of held streams",
    ):  # fmt: skip
        assert outcome.counts[done], done


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_only_the_maximum_truncates_unacknowledged_events(seed: int) -> None:
    """By size and by time, beside one that is silent; the minimum stays, and chunks go with what is truncated."""
    outcome = run(seed, LIMITED_SUBSCRIBERS)
    assert outcome.violations == ()
    for done in ("heads of limited streams", "heads beyond a subscriber", "limited streams whose chunks went"):
        assert outcome.counts[done], done
