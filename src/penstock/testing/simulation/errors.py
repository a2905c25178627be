"""What goes wrong with a simulation itself.

::

    SimulationError
    ├── RealWorldError         simulated code reached for a thread, a real socket, a signal
    ├── DeadlockError          nothing can ever happen again
    ├── SimulationLimitError   too many steps, or too much virtual time
    └── HostDownError          a host died while something was awaited of it
    ProcessKilled              unwinds the code of a host that dies in the middle of a call

None is a `PenstockError`: code under test retries those, and a broken simulation must not be retried away.
"""

from __future__ import annotations


class SimulationError(Exception):
    """Root of the errors of the simulation."""


class RealWorldError(SimulationError):
    """Simulated code tried to use something real, which would make the run unrepeatable."""


class DeadlockError(SimulationError):
    """Every task waits, no timer is set and nothing is on its way."""


class SimulationLimitError(SimulationError):
    """The simulation used up its steps or its virtual time."""


class HostDownError(SimulationError):
    """The host is down, or went down before it answered. What it was doing may or may not have been done."""


class ProcessKilled(BaseException):
    """Raised where a host's own code runs into its death. Not an `Exception`, so no handler goes on living."""
