"""Clusters whose processes are of two neighbouring versions, replaced by each other all the time.

What an earlier and a later version do differently, `penstock_simulation.simulated.versions` says.
"""

from __future__ import annotations

import pytest

from penstock_simulation.mutations.versions import VERSIONS
from penstock_simulation.runner import run
from penstock_simulation.simulated.versions import PAIRS


@pytest.mark.parametrize("seed", [3, 4])
def test_a_cluster_of_two_versions_keeps_every_promise(seed: int) -> None:
    outcome = run(seed, VERSIONS.of_length(20.0))
    assert outcome.violations == ()
    for version in PAIRS[seed % len(PAIRS)]:
        assert outcome.counts[f"versions: {version.value}"]
    done = "records with later fields" if seed % 2 else "describeStream refused"
    assert outcome.counts[f"versions: {done}"]


@pytest.mark.nightly
def test_one_frame_longer_than_the_limit_of_bytes_in_flight_is_no_violation() -> None:
    """An object is always allowed, and a frame is never divided: here frames have up to 64 KiB, the limit is 8 KiB."""
    outcome = run(1, VERSIONS.of_length(60.0))
    assert outcome.violations == ()
