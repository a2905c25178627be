"""File descriptors: how many this process may have, and how many of them connections may take.

Every connection takes a descriptor, and so does every file that a container opens to go on. When connections have taken
them all, logs cannot get their next file: containers end, and cannot start again. So some are set aside for files, and
the limits of connections follow from what remains.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass

from penstock.model.errors import InvalidArgumentError

if sys.platform != "win32":
    import resource

logger: logging.Logger = logging.getLogger(__name__)

#: What counts as "as many as you like".
_BOUNDLESS = 1 << 20
#: A kernel that says "unlimited" has a bound of its own, which is far above this.
_RAISED_MAX = 1 << 20
#: Connections that wait to be accepted may be accepted all at once: so many, as a share of those that are served.
_BACKLOG_SHARE = 8
_CONNECTIONS_MIN = 8


@dataclass(frozen=True, slots=True)
class DescriptorSettings:
    """How the descriptors of a process are shared out.

    Attributes:
        reserved_count: set aside for files, pipes and listening sockets; at most half of all. Up to half of them are
            for chunks that are kept open, so that a flush need not open its own.
        controller_percent: of the rest, where a controller and a segment store share a process, the share for gRPC
            connections of the controller.
    """

    reserved_count: int = 2048
    controller_percent: int = 25

    def __post_init__(self) -> None:
        """Check the bounds. Raises `InvalidArgumentError`."""
        if not 0 < self.controller_percent < 100:
            raise InvalidArgumentError(
                f"descriptors.controller_percent is {self.controller_percent}: it is between 0 and 100"
            )


@dataclass(frozen=True, slots=True)
class DescriptorBudget:
    """What connections of a process may take.

    Attributes:
        segment_store_connections: connections of a segment store that are served at once.
        controller_connections: likewise, of gRPC.
        accept_backlog: connections of a segment store that may wait to be accepted; they come on top for a moment.
        open_chunks: chunks of long-term storage that may be kept open; of what is set aside.
    """

    segment_store_connections: int
    controller_connections: int
    accept_backlog: int
    open_chunks: int


def raise_descriptor_limit() -> int:
    """Raise the soft limit of this process to its hard limit, as far as the system lets it; return what it is then.

    For the start of a process that is a server: children inherit it.
    """
    if sys.platform == "win32":
        return _BOUNDLESS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _RAISED_MAX if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            # macOS says "unlimited" and means less.
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
    """Return what is left for connections of `limit` descriptors, and what of the others is for chunks."""
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
