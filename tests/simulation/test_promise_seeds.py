"""Users that begin and end groups at cuts and times, ask for what is refused, and hand transactions on.

In seeds of their own; also streams that are deleted and made again under a group that finds them by a pattern.
"""

from __future__ import annotations

import pytest

from penstock_simulation.mutations.promises import PROMISES, STREAMS_MADE_AGAIN
from penstock_simulation.runner import run


@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (0, 1, 4))])
def test_groups_begin_and_end_at_set_positions_and_transactions_change_hands(seed: int) -> None:
    """Nothing between two marks is left out, nothing beyond a cut comes; what is refused or bound stays so."""
    outcome = run(seed, PROMISES)
    assert outcome.violations == ()
    for done in ("groups between two marks", "turns beside a writer", "transactions handed on", "leases refused"):
        assert outcome.counts[done], done


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 4))])
def test_a_group_reads_a_stream_that_was_made_again_from_its_beginning(seed: int) -> None:
    outcome = run(seed, STREAMS_MADE_AGAIN)
    assert outcome.violations == ()
