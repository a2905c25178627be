"""`Results`: what a soak run has written so far, as series over its time. A run that is not over can be read, too."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock_tools.soak.growth import Growth, GrowthBound, judge

MIB = 1024 * 1024
#: Share of the run before which samples are not judged: caches and logs fill first.
WARM_UP_SHARE = 0.3
#: Time from the beginning of the calm part on that is not judged: stores that were restarted last fill their caches.
CALM_WARM_UP_HOURS = 0.1

#: What is judged. Memory and descriptors of servers: in the calm part, where no process is killed. A process grows at
#: first by its caches and by fragmentation, so that a share of its size is permitted besides the amount.
STORE_MEMORY = GrowthBound("resident memory of segment stores", "MiB", 0.10, 8)
CONTROLLER_MEMORY = GrowthBound("resident memory of controllers", "MiB", 0.10, 8)
STORE_DESCRIPTORS = GrowthBound("descriptors of segment stores", "", 0.10, 4)
CONTROLLER_DESCRIPTORS = GrowthBound("descriptors of controllers", "", 0.10, 4)
CLIENT_MEMORY = GrowthBound("resident memory of the clients", "MiB", 0.10, 8)
CLIENT_DESCRIPTORS = GrowthBound("descriptors of the clients", "", 0.10, 4)
DATA_BYTES = GrowthBound("long-term storage in the bucket", "MiB", 0.15, 16)
DATA_OBJECTS = GrowthBound("objects of long-term storage", "", 0.15, 50)
LOG_BYTES = GrowthBound("logs in the bucket", "MiB", 0.15, 8)
LOG_OBJECTS = GrowthBound("objects of the logs", "", 0.15, 50)
ZOOKEEPER_NODES = GrowthBound("nodes in ZooKeeper", "", 0.0, 4)


@dataclass(slots=True)
class Results:
    """See the module. Times are hours since the beginning.

    Attributes:
        commit: of the checkout; ``+`` after it: with other changes. Empty: unknown.
        calm_hours: when the part without faults begins.
        end: what the run noted at its end; empty: it has not ended in order.
        notes: what the person who ran it wrote about it into ``notes.md``, in the directory of the run.
    """

    begin: float
    seconds: float
    seed: int
    commit: str
    samples: list[dict[str, Any]]
    status: list[dict[str, Any]]
    faults: list[dict[str, Any]]
    violations: list[dict[str, Any]]
    errors: list[dict[str, Any]]
    end: dict[str, Any]
    calm_share: float
    notes: str

    @classmethod
    def read(cls, directory: Path, calm_share: float) -> Results:
        """Read the files of a run."""
        notes = _lines(directory / "run.jsonl")
        status = _lines(directory / "status.jsonl")
        if (ended := directory / "end.json").exists():
            status.append(json.loads(ended.read_text()))
        begin = notes[0]
        return cls(
            begin["begin"], begin["seconds"], begin["seed"], begin.get("commit", ""),
            _lines(directory / "samples.jsonl"), status,
            _lines(directory / "faults.jsonl"), _lines(directory / "violations.jsonl"),
            _lines(directory / "client-errors.jsonl"), next((note for note in notes if "end" in note), {}),
            calm_share, (directory / "notes.md").read_text() if (directory / "notes.md").exists() else "",
        )  # fmt: skip

    @property
    def is_over(self) -> bool:
        """Whether the run has ended in order."""
        return bool(self.end)

    def hours(self, record: dict[str, Any]) -> float:
        """Return when a record was written."""
        return float((record["at"] - self.begin) / 3600)

    @property
    def length_hours(self) -> float:
        """The time under load so far."""
        return min(self.seconds / 3600, self.hours(self.samples[-1])) if self.samples else 0.0

    @property
    def calm_hours(self) -> float:
        """When the last fault may begin."""
        return self.seconds / 3600 * (1 - self.calm_share)

    def of_process(self, what: str, scale: float = 1.0) -> dict[str, list[tuple[float, float]]]:
        """Return a figure of each process over time, by its name."""
        found: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for each in self.samples:
            for name, figures in each["processes"].items():
                found[name].append((self.hours(each), figures[what] / scale))
        return dict(found)

    def of_bucket(self, part: str, what: str, scale: float = 1.0) -> list[tuple[float, float]]:
        """Return the number or bytes of the objects of a part of the bucket over time."""
        return [
            (self.hours(each), each["bucket"][part][what] / scale) for each in self.samples if part in each["bucket"]
        ]

    @property
    def zookeeper_nodes(self) -> list[tuple[float, float]]:
        """The number of nodes over time."""
        return [
            (self.hours(each), float(each["zookeeper_nodes"]))
            for each in self.samples
            if each["zookeeper_nodes"] is not None
        ]

    def growth(self) -> list[Growth]:
        """Judge everything."""
        whole = [
            (DATA_BYTES, "bucket", self.of_bucket("data", "bytes", MIB)),
            (DATA_OBJECTS, "bucket", self.of_bucket("data", "objects")),
            (LOG_BYTES, "bucket", self.of_bucket("log", "bytes", MIB)),
            (LOG_OBJECTS, "bucket", self.of_bucket("log", "objects")),
            (CLIENT_MEMORY, "clients", self.of_process("resident_bytes", MIB).get("clients", [])),
            (CLIENT_DESCRIPTORS, "clients", self.of_process("descriptors").get("clients", [])),
        ]
        first = self.seconds / 3600 * WARM_UP_SHARE
        found = [judge(bound, series, [each for each in points if each[0] >= first]) for bound, series, points in whole]
        # Each store that ends leaves a node, of which the newest 1 000 are kept: in the calm part none ends.
        settled = [each for each in self.zookeeper_nodes if each[0] >= self.calm_hours + CALM_WARM_UP_HOURS]
        return [*found, judge(ZOOKEEPER_NODES, "ZooKeeper", settled), *self._growth_of_servers()]

    def _growth_of_servers(self) -> list[Growth]:
        found = []
        for what, scale, of_store, of_controller in (
            ("resident_bytes", MIB, STORE_MEMORY, CONTROLLER_MEMORY),
            ("descriptors", 1.0, STORE_DESCRIPTORS, CONTROLLER_DESCRIPTORS),
        ):
            for name, points in sorted(self.of_process(what, scale).items()):
                bound = (
                    of_store if " store " in name else of_controller if name[0] == "c" and name[1:].isdigit() else None
                )
                if bound is not None:
                    found.append(judge(bound, name, [each for each in points if each[0] >= self._settled_hours(name)]))
        return found

    def _settled_hours(self, name: str) -> float:
        """Return when the process of this name that ran last had settled: it is one process from then on."""
        ids = [(self.hours(each), each["processes"][name]["pid"]) for each in self.samples if name in each["processes"]]
        started = min((hours for hours, pid in ids if pid == ids[-1][1]), default=0.0)
        return max(started, self.calm_hours) + CALM_WARM_UP_HOURS


def is_store(name: str) -> bool:
    """Whether a process is a segment store."""
    return " store " in name


def is_controller(name: str) -> bool:
    """Whether a process is a controller."""
    return name.startswith("c") and name[1:].isdigit()


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
