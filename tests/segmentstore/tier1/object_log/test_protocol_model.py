"""The protocol of the log in a bucket, searched through all interleavings of small instances: see `LogModel`.

Larger instances were searched once to the end, without a violation: docs/object-log.md.
"""

from __future__ import annotations

import pytest

from support.log_model import Budget, LogModel, Mistake, found_by

#: Visited in a test; an instance that is complete below this is searched whole.
STATE_COUNT_MAX = 6_000
#: What must happen for a mistake to show.
BUDGETS = {
    Mistake.SEALS_DELETED: Budget(truncations=1),
    Mistake.OPEN_WITHOUT_CAS: Budget(truncations=1),
    Mistake.DELETE_BEFORE_RECORD: Budget(truncations=1),
    Mistake.ROLL_WITHOUT_CAS: Budget(strangers=1),
    Mistake.ROLL_UNSETTLED: Budget(strangers=1),
    Mistake.HOP_OVER_UNSETTLED: Budget(hops=1),
}


@pytest.mark.parametrize(
    "budget",
    [Budget(truncations=1), Budget(hops=1), Budget(strangers=1), Budget(copies=1), Budget(1, 1, 1, 1)],
    ids=["truncation", "hop", "stranger", "late copy", "all"],
)
def test_no_interleaving_loses_or_repeats_an_acknowledged_value(budget: Budget) -> None:
    """The instance with one opener; and the beginning of that with two, of which one writes."""
    LogModel(budget, opener_values=((),)).search(STATE_COUNT_MAX)
    LogModel(budget).search(STATE_COUNT_MAX)


def test_a_small_instance_is_searched_to_its_end() -> None:
    """Otherwise the tests here would show little. With a truncation there are 66 473 states with two openers."""
    count, is_complete = LogModel(Budget(truncations=1), opener_values=((),)).search(STATE_COUNT_MAX)
    assert is_complete
    assert count > 1_000


@pytest.mark.parametrize("mistake", list(Mistake), ids=lambda mistake: mistake.name)
def test_each_mistake_is_found(mistake: Mistake) -> None:
    budget = BUDGETS.get(mistake, Budget())
    small = LogModel(budget, mistake, opener_values=((),))
    assert found_by(small, STATE_COUNT_MAX) or found_by(LogModel(budget, mistake), STATE_COUNT_MAX)
