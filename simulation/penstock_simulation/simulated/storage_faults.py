"""Faults of a host's storage: disks that fail, are full or stall, and storage that is not mounted.

Each is a kind of `faults.Fault`, see there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.segmentstore.tier2.chunk_files import IDENTITY_NAME
from penstock.segmentstore.tier2.storage_identity import StorageIdentity
from penstock_simulation.simulated.disk_faults import DiskFaults
from penstock_simulation.simulated.host import Host
from penstock_simulation.simulated.simulation import Simulation


@dataclass(frozen=True, slots=True)
class DiskErrors:
    """Calls to a host's disk fail with these probabilities."""

    host: str
    read_error_rate: float
    write_error_rate: float
    sync_error_rate: float
    duration_s: float

    def strike(self, simulation: Simulation) -> None:
        """Start the fault, and schedule its end."""

        def with_errors(faults: DiskFaults) -> DiskFaults:
            return replace(
                faults,
                read_error_rate=self.read_error_rate,
                write_error_rate=self.write_error_rate,
                sync_error_rate=self.sync_error_rate,
            )

        _change(simulation, simulation.hosts[self.host], with_errors, self.duration_s)

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return self.duration_s


@dataclass(frozen=True, slots=True)
class DiskFull:
    """A host's disk accepts only `free_bytes` more, also for processes started meanwhile."""

    host: str
    free_bytes: int
    duration_s: float

    def strike(self, simulation: Simulation) -> None:
        """Start the fault, and schedule its end."""
        host = simulation.hosts[self.host]
        capacity_bytes = host.disk.used_bytes + self.free_bytes
        _change(simulation, host, lambda faults: replace(faults, capacity_bytes=capacity_bytes), self.duration_s)

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return self.duration_s


@dataclass(frozen=True, slots=True)
class NoDescriptors:
    """A host's process has no free descriptor: nothing can be opened, listed or locked (EMFILE)."""

    host: str
    duration_s: float

    def strike(self, simulation: Simulation) -> None:
        """Start the fault, and schedule its end."""
        host = simulation.hosts[self.host]
        _change(simulation, host, lambda faults: replace(faults, has_descriptors=False), self.duration_s)

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return self.duration_s


@dataclass(frozen=True, slots=True)
class DiskStall:
    """Calls to a host's disk under paths that contain `place` do not return until the fault ends.

    ``/tier1/`` is a stalled log, ``/tier2/`` is stalled long-term storage, ``/`` is both.
    """

    host: str
    place: str
    duration_s: float

    def strike(self, simulation: Simulation) -> None:
        """Start the fault; it ends by itself."""
        simulation.hosts[self.host].stalls.begin(self.place, self.duration_s)

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return self.duration_s


@dataclass(frozen=True, slots=True)
class StorageMissing:
    """The mount at `path` of a host's disk is missing: an empty directory is there. Its new files are hidden later.

    With `is_foreign` the long-term storage of another cluster is there. A service in its place is unreachable.
    """

    host: str
    path: str
    duration_s: float
    is_foreign: bool = False

    def strike(self, simulation: Simulation) -> None:
        """Start the fault, and schedule its end."""
        host, loop = simulation.hosts[self.host], simulation.loop
        host.losses.begin(f"{self.path}/", self.duration_s)
        files = {IDENTITY_NAME: StorageIdentity("another").encode()} if self.is_foreign else {}
        if host.disk.unmount(self.path, files):
            loop.at(loop.now_s + self.duration_s, lambda: host.disk.mount(self.path))

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return self.duration_s


def _change(simulation: Simulation, host: Host, trouble: Callable[[DiskFaults], DiskFaults], duration_s: float) -> None:
    host.begin_trouble(trouble)
    simulation.loop.at(simulation.loop.now_s + duration_s, lambda: host.end_trouble(trouble))
