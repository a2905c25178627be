"""Whole clusters over a bucket, and over HDFS: requests are lost, late, sent twice, refused; servers die.

Nothing is appended in a bucket, so each flush is an object; creations whose reply is lost are adopted, or become
orphans that are found. In HDFS a file stays open when its writer dies, or its answer is lost. Whatever
`penstock_simulation.checks` knows must hold, as over a directory.
"""

from __future__ import annotations

import pytest

from penstock_simulation.profiles import HDFS, OBJECTS
from penstock_simulation.runner import run


@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (0, 4, 5))])
def test_a_cluster_over_a_bucket_keeps_every_promise(seed: int) -> None:
    outcome = run(seed, OBJECTS.of_length(30.0))
    assert outcome.violations == ()
    assert any(fault.startswith("remote ") for fault in outcome.fault_counts)


@pytest.mark.parametrize("seed", [5, pytest.param(3, marks=pytest.mark.nightly)])
def test_a_cluster_over_hdfs_keeps_every_promise(seed: int) -> None:
    outcome = run(seed, HDFS.of_length(30.0))
    assert outcome.violations == ()
    assert {"remote late", "remote lost request"} & set(outcome.fault_counts)
