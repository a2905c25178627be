"""`LeaderSettings`: times of the leader of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.model.move_settings import MoveSettings
from penstock.runtime.fixed_values import fixed


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    """Times of a leader.

    Attributes:
        moves: limits of moves.
        join_delay_s: after a store has joined, containers are not moved to it for this time, so that several stores
            that start together cause one plan. At most twice this long, however many join one after the other. No wait
            if a container has no live store.
        first_wait_s: a leader that has just begun moves no container of a store that is missing for this time: the
            sessions of all may have ended at once, and the stores announce themselves again.
        absence_wait_s: a store that is missing, and is not known to have ended, keeps its containers for this time: if
            its session alone has ended, it announces itself again.
        impaired_wait_s: containers of an impaired store are moved after this time: if the log of all stores fails,
            they report it one after the other, and nothing must move.
        poll_s: the cluster is read at least this often ...
        moving_poll_s: ... and this often while containers move.
        stuck_s: a container that is not served for longer does not hold up hand-overs of others.
        retry_s: pause after a failed request.
        unreadable_s: a leader that cannot read a node of the cluster leads no more for this time: a controller of a
            later version may be able to.
        ends_max: proofs of the ends of stores that are kept, the newest ones.
        ends_interval_s: how often it is checked whether there are more.
    """

    moves: MoveSettings = field(default_factory=MoveSettings)
    join_delay_s: float = 5.0
    first_wait_s: float = 5.0
    absence_wait_s: float = fixed(2.0)
    impaired_wait_s: float = fixed(3.0)
    poll_s: float = fixed(10.0)
    moving_poll_s: float = fixed(0.5)
    stuck_s: float = fixed(60.0)
    retry_s: float = fixed(0.5)
    unreadable_s: float = fixed(5.0)
    ends_max: int = fixed(1000)
    ends_interval_s: float = fixed(600.0)
