"""File descriptors: how many this process may have, and how many of them connections may use.

Each connection uses a descriptor, and so does each file that a container opens. If connections used all of them, logs
could not open their next file: containers would stop and could not restart. So some descriptors are reserved for
files, and the connection limits follow from the remaining ones.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass

from penstock.model.errors import InvalidArgumentError
from penstock.runtime.fixed_values import fixed

if sys.platform != "win32":
    import resource

logger: logging.Logger = logging.getLogger(__name__)

#: Means "unlimited".
_BOUNDLESS = 1 << 20
#: Where the hard limit is "unlimited", the kernel has a maximum of its own, which is far above this.
_RAISED_MAX = 1 << 20
#: Size of the accept backlog as a fraction of the connections served: all of the backlog may be accepted at once.
_BACKLOG_SHARE = 8
_CONNECTIONS_MIN = 8


@dataclass(frozen=True, slots=True)
class DescriptorSettings:
    """How the descriptors of a process are divided.

    Attributes:
        reserved_count: reserved for files, pipes and listening sockets; at most half of all. Up to half of them are
            for chunks that are kept open, so that a flush need not open its own.
        controller_percent: where a controller and a segment store share a process, the share of the remaining
            descriptors for gRPC connections of the controller.
    """

    reserved_count: int = fixed(2048)
    controller_percent: int = 25

    def __post_init__(self) -> None:
        """Check the bounds. Raises `InvalidArgumentError`."""
        if not 0 < self.controller_percent < 100:
            raise InvalidArgumentError(
                f"descriptors.controller_percent is {self.controller_percent}: it is between 0 and 100"
            )


@dataclass(frozen=True, slots=True)
class DescriptorBudget:
    """How many descriptors each use may take.

    Attributes:
        segment_store_connections: connections of a segment store that are served at once.
        controller_connections: the same, for gRPC.
        accept_backlog: connections of a segment store that may wait to be accepted; they come on top for a moment.
        open_chunks: chunks of long-term storage that may be kept open; part of the reserved descriptors.
    """

    segment_store_connections: int
    controller_connections: int
    accept_backlog: int
    open_chunks: int


def raise_descriptor_limit() -> int:
    """Raise the soft limit of this process to its hard limit, as far as the system allows; return the new soft limit.

    For the start of a server process: child processes inherit the limit.
    """
    if sys.platform == "win32":
        return _BOUNDLESS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _RAISED_MAX if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            # macOS reports "unlimited" but refuses large values.
            logger.warning("the limit of %d descriptors cannot be raised to %d: %s", soft, wanted, error)
    return descriptor_limit()


def descriptor_limit() -> int:
    """Return how many descriptors this process may have."""
    if sys.platform == "win32":
        return _BOUNDLESS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _BOUNDLESS if soft == resource.RLIM_INFINITY else soft


def share_descriptors(
    limit: int, settings: DescriptorSettings, *, has_segment_store: bool, has_controller: bool
) -> DescriptorBudget:
    """Return how `limit` descriptors are divided between connections and chunks."""
    reserved = min(settings.reserved_count, limit // 2)
    rest = limit - reserved
    controller = 0
    if has_controller:
        controller = rest * settings.controller_percent // 100 if has_segment_store else rest
    store = rest - controller if has_segment_store else 0
    backlog = store // _BACKLOG_SHARE
    return DescriptorBudget(
        segment_store_connections=max(store - backlog, _CONNECTIONS_MIN),
        controller_connections=max(controller, _CONNECTIONS_MIN),
        accept_backlog=max(backlog, 1),
        open_chunks=reserved // 2,
    )
