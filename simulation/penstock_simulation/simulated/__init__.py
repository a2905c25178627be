"""A whole cluster in one process: seeded scheduling, virtual time, in-memory network, host failures.

Start with `SimulatedCluster` for Penstock itself, with `Simulation` for any asyncio code that takes its seams from a
`Runtime`. One seed has one trace; a failing seed is a test case.
"""

from penstock_simulation.simulated.cluster import ClusterSettings, SimulatedCluster
from penstock_simulation.simulated.disk import SimulatedDisk
from penstock_simulation.simulated.disk_faults import DiskFaults
from penstock_simulation.simulated.errors import (
    DeadlockError,
    HostDownError,
    RealWorldError,
    SimulationError,
    SimulationLimitError,
)
from penstock_simulation.simulated.faults import FaultPlan, FaultSettings, PlannedFault, shrink
from penstock_simulation.simulated.host import Death, Host
from penstock_simulation.simulated.links import NetworkSettings
from penstock_simulation.simulated.loop import LoopSettings
from penstock_simulation.simulated.network import Network
from penstock_simulation.simulated.simulation import Simulation, SimulationSettings
from penstock_simulation.simulated.trace import Trace
from penstock_simulation.simulated.work import WorkSettings

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
