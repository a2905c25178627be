"""Streams of a group that come and go under it, changed by calls that are cut off anywhere, in seeds made for it."""

from __future__ import annotations

import pytest

from penstock_simulation.mutations.group_changes import GROUP_CHANGES
from penstock_simulation.runner import run


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 8))])
def test_group_gets_all_of_the_streams_that_it_is_to_read(seed: int) -> None:
    """In order, again only after a loss; and in the end it reads exactly the streams that there are."""
    outcome = run(seed, GROUP_CHANGES)
    assert outcome.violations == ()
    assert outcome.counts["changes of groups cut short"]
