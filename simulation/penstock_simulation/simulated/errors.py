"""Errors of the simulation itself.

::

    SimulationError
        ├── RealWorldError         simulated code tried to use a thread, a real socket, a signal
        ├── DeadlockError          no event is left
    ├── SimulationLimitError   too many steps, or too much virtual time
        └── HostDownError          a host died while a result of it was awaited
        ProcessKilled              unwinds the code of a host that dies during a call

None is a `PenstockError`: code under test retries those, and errors of the simulation must not be retried.
"""

from __future__ import annotations


class SimulationError(Exception):
    """Root of the errors of the simulation."""


class RealWorldError(SimulationError):
    """Simulated code tried to use a real resource, which would make the run unrepeatable."""


class DeadlockError(SimulationError):
    """Every task waits, no timer is set and no event is scheduled."""


class SimulationLimitError(SimulationError):
    """The simulation exceeded its limit of steps or of virtual time."""


class HostDownError(SimulationError):
    """The host is down, or went down before it answered. The outcome of the call is unknown."""


class ProcessKilled(BaseException):
    """Raised in a host's code at its death. Not an `Exception`, so that no handler continues."""
