"""`Nemesis`: faults at random, rolling restarts at intervals, and none at all in the last part of the soak run.

The faults are those of `support.cluster_faults`. Their bounds are not asserted: the run is long, and the machine may be
busy. What is measured is how long the cluster took to serve again, and what is required is that it does.
"""

from __future__ import annotations

import json
import random
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.cluster_faults import FAULTS, ClusterFault, settle
from support.network_cluster import NetworkCluster

#: Pause before each fault.
PAUSE_S_MIN, PAUSE_S_MAX = 20.0, 70.0
#: Interval of the rolling restarts of all stores and controllers.
ROLLING_INTERVAL_S = 1500.0
#: Bound of the time in which all containers are served again after the end of a fault.
SETTLE_S_MAX = 1200.0
_ROLLING = "rolling restart"


class Nemesis:
    """Works in a thread, from `start` until `stop`. A cluster that does not serve again is a broken promise."""

    def __init__(
        self, cluster: NetworkCluster, seed: int, directory: Path, report: Callable[[str], None], calm_at_s: float
    ) -> None:
        self._cluster = cluster
        self._rng = random.Random(f"{seed}/faults")
        self._path = directory / "faults.jsonl"
        self._report = report
        self._calm_at_s = calm_at_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.fault_count = 0
        self.active: str | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Wait until the current fault is over, and begin no more."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        next_rolling_s = time.monotonic() + ROLLING_INTERVAL_S / 2
        while time.monotonic() < self._calm_at_s:
            if self._is_over.wait(self._rng.uniform(PAUSE_S_MIN, PAUSE_S_MAX)):
                return
            if time.monotonic() >= next_rolling_s:
                next_rolling_s = time.monotonic() + ROLLING_INTERVAL_S
                self._strike(ClusterFault(_ROLLING, rolling_restart, 0.0))
            else:
                self._strike(self._rng.choice(FAULTS))

    def _strike(self, fault: ClusterFault) -> None:
        """Produce a fault, and wait until its effects are over."""
        begin_s, begin = time.monotonic(), time.time()
        self.active = fault.name
        problems: list[str] = []
        try:
            with contextmanager(fault.produce)(self._cluster, self._rng):  # type: ignore[arg-type]
                time.sleep(max(fault.lasts_s - (time.monotonic() - begin_s), 0.0))
        except Exception:  # noqa: BLE001  # a wait that was too short: what counts is whether the cluster settles
            problems.append(traceback.format_exc(limit=4))
        lasted_s = time.monotonic() - begin_s
        is_settled = self._settle(problems)
        if not is_settled:
            self._report(f"all containers are not served {SETTLE_S_MAX:g} s after the fault: {fault.name}")
        record = {
            "at": round(begin, 3), "fault": fault.name, "lasted_s": round(lasted_s, 2),
            "settled_s": round(time.monotonic() - begin_s - lasted_s, 2), "problems": problems,
        }  # fmt: skip
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        self.fault_count += 1
        self.active = None

    def _settle(self, problems: list[str]) -> bool:
        deadline_s = time.monotonic() + SETTLE_S_MAX
        while time.monotonic() < deadline_s:
            try:
                settle(self._cluster)
                return True
            except Exception:  # noqa: BLE001  # see `_strike`
                problems.append(traceback.format_exc(limit=4))
                time.sleep(5.0)
        return False


def rolling_restart(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Stop and start every store and controller, one at a time."""
    for name in [*cluster.store_names, *cluster.controller_names]:
        code = cluster.processes[name].terminate()
        assert code == 0, f"{name} ended with code {code}"
        cluster.start(name)
        cluster.processes[name].wait_ready()
        cluster.wait_served()
    yield
