"""`MemberSettings`: how a segment store follows the assignment of its cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Times of a segment store of a cluster.

    Attributes:
        poll_s: the assignment is read at least this often, in case a notification was missed.
        retry_s: pause after a failed request to the coordination service.
        prepare_s: a container that is handed over serves for at most this long while it is made ready: its data are
            moved to long-term storage, and a checkpoint is written.
        handover_wait_s: how long the next store waits for the present one to release a container.
        drain_timeout_s: how long a store that stops waits until other stores have all of its containers.
        stop_timeout_s: how long it waits for the rest of them to close.
    """

    poll_s: float = 10.0
    retry_s: float = 0.5
    prepare_s: float = 5.0
    handover_wait_s: float = 10.0
    drain_timeout_s: float = 120.0
    stop_timeout_s: float = 30.0
