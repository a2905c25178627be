"""A whole cluster in one process: seeded scheduling, virtual time, in-memory network, host failures.

Start with `SimulatedCluster` for Penstock itself, with `Simulation` for any asyncio code that takes its seams from a
`Runtime`. One seed has one trace; a failing seed is a test case.
"""

from penstock.testing.simulation.cluster import ClusterSettings, SimulatedCluster
from penstock.testing.simulation.disk import SimulatedDisk
from penstock.testing.simulation.disk_faults import DiskFaults
from penstock.testing.simulation.errors import (
    DeadlockError,
    HostDownError,
    RealWorldError,
    SimulationError,
    SimulationLimitError,
)
from penstock.testing.simulation.faults import FaultPlan, FaultSettings, PlannedFault, shrink
from penstock.testing.simulation.host import Death, Host
from penstock.testing.simulation.links import NetworkSettings
from penstock.testing.simulation.loop import LoopSettings
from penstock.testing.simulation.network import Network
from penstock.testing.simulation.simulation import Simulation, SimulationSettings
from penstock.testing.simulation.trace import Trace
from penstock.testing.simulation.work import WorkSettings

__all__ = [
    "ClusterSettings",
    "DeadlockError",
    "Death",
    "DiskFaults",
    "FaultPlan",
    "FaultSettings",
    "Host",
    "HostDownError",
    "LoopSettings",
    "Network",
    "NetworkSettings",
    "PlannedFault",
    "RealWorldError",
    "SimulatedCluster",
    "SimulatedDisk",
    "Simulation",
    "SimulationError",
    "SimulationLimitError",
    "SimulationSettings",
    "Trace",
    "WorkSettings",
    "shrink",
]
