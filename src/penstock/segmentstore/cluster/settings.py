"""`MemberSettings`: how a segment store follows the assignment of its cluster."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.errors import InvalidArgumentError
from penstock.runtime.fixed_values import fixed


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
        take_over_s: if a store's process has ended, its parent leaves the machine to those that take over for this long
            before it starts another one. Not if no other store is live.
        load_interval_s: how often a store reports its load.
        check_s: how often a store checks whether it is impaired.
        impaired_after_s: a store whose log has not answered for this long is impaired: others get its containers.
        recovered_after_s: ... until the log has answered for this long.
        own_failures_max: a store is impaired, too, if so many containers fail for lack of memory, descriptors or
            threads ...
        own_failures_window_s: ... within this time, ...
        own_failures_rest_s: ... until this time after the last of them.
    """

    poll_s: float = fixed(10.0)
    retry_s: float = fixed(0.5)
    prepare_s: float = 5.0
    handover_wait_s: float = 10.0
    drain_timeout_s: float = 120.0
    stop_timeout_s: float = fixed(30.0)
    take_over_s: float = fixed(3.0)
    load_interval_s: float = fixed(10.0)
    check_s: float = fixed(1.0)
    impaired_after_s: float = fixed(10.0)
    recovered_after_s: float = fixed(30.0)
    own_failures_max: int = fixed(3)
    own_failures_window_s: float = fixed(60.0)
    own_failures_rest_s: float = fixed(300.0)

    def __post_init__(self) -> None:
        """Check the values. Raises `InvalidArgumentError`."""
        if min(self.load_interval_s, self.check_s) <= 0 or self.own_failures_max < 1:
            raise InvalidArgumentError(
                "load_interval_s and check_s of cluster.member are above 0, own_failures_max is at least 1"
            )
