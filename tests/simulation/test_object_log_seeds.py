"""Whole clusters whose logs are in a bucket: requests go wrong in every way, and processes take logs from each other.

Whatever `penstock_simulation.checks` knows must hold, as over a directory; and each later incarnation reads every
frame that an earlier one acknowledged (`checks.object_logs`).
"""

from __future__ import annotations

import pytest

from penstock_simulation.mutations.object_logs import TAKEN_OBJECT_LOGS
from penstock_simulation.profiles import OBJECT_LOG
from penstock_simulation.runner import run
from penstock_simulation.workloads.profile import EVERYTHING
from penstock_simulation.workloads.scenario import Scenario


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (17, 29))])
def test_a_cluster_with_logs_in_a_bucket_keeps_every_promise(seed: int) -> None:
    outcome = run(seed, OBJECT_LOG.of_length(20.0))
    assert outcome.violations == ()
    assert outcome.counts["inside: journals continued in another one"]
    assert outcome.counts["inside: slots of journals deleted"]
    assert any(fault.startswith("log ") for fault in outcome.fault_counts)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 4))])
def test_logs_that_are_taken_over_all_the_time_lose_nothing(seed: int) -> None:
    outcome = run(seed, TAKEN_OBJECT_LOGS)
    assert outcome.violations == ()
    assert outcome.counts["inside: claims of logs in a bucket"] > 5


def test_some_seeds_of_everything_have_their_logs_in_a_bucket() -> None:
    """Servers that are the only one of a log are among them, and stores that share one."""
    drawn = [Scenario.draw(seed, EVERYTHING).cluster for seed in range(200)]
    logs = [each.bucket_log for each in drawn if each.bucket_log is not None]
    assert 10 < len(logs) < 60
    assert {each.has_one_server for each in logs} == {True, False}
    assert any(each.store_count > 1 and each.has_shared_storage for each in drawn if each.bucket_log is not None)
