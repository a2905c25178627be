"""A cluster on hosts of its own, with links that are cut: the most frequent losses, each within its bound.

`test_cluster_faults.py` has all of them, for the nightly profile.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.cluster_faults import FAULTS, strike
from support.running_cluster import running_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

#: A killed process of a store is in `test_cluster.py`.
SHORT = ("a store drained", "a store's host lost", "ZooKeeper's leader killed")


def test_a_cluster_keeps_its_bounds_and_its_events_when_parts_are_lost(tmp_path: Path) -> None:
    """Under events, transactions, a table and a reader group; in the end nothing is lost, doubled or out of order."""
    with running_cluster(tmp_path) as cluster, cluster.load() as load:
        rng = random.Random(1)
        faults = {fault.name: fault for fault in FAULTS}
        for name in SHORT:
            strike(faults[name], cluster, load, rng)
            cluster.wait_even()
        counts = load.finish()
    for kind in ("WriteEvent ok", "CommitTransaction ok", "PutKey ok", "AppendBytes ok", "EventSeen"):
        assert counts.get(kind, 0) > 0, counts
