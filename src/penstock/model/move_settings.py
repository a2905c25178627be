"""`MoveSettings`: limits of moves of containers between the segment stores of a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class MoveSettings:
    """Limits of moves.

    Attributes:
        at_once: hand-overs in progress, in the whole cluster.
        per_store: hand-overs in progress from one store.
        mass_percent: if more than this share of the cluster's weight has left, nothing moves ...
        mass_wait_s: ... until this time after the last departure.
        hot_busy_percent: a store is hot above this share of its time, ...
        hot_ratio_percent: ... if that is above this share of the mean of all stores, ...
        hot_s: ... for this time.
        load_interval_s: shortest time between two moves for load.
        rest_s: a container that was moved is not moved for load before this time has passed.
    """

    at_once: int = 2
    per_store: int = 1
    mass_percent: int = 50
    mass_wait_s: float = 30.0
    hot_busy_percent: int = 50
    hot_ratio_percent: int = 130
    hot_s: float = 300.0
    load_interval_s: float = 300.0
    rest_s: float = 1800.0

    def __post_init__(self) -> None:
        """Check the values. Raises `InvalidArgumentError`."""
        if min(self.at_once, self.per_store) < 1:
            raise InvalidArgumentError("at_once and per_store of cluster moves are at least 1")
        if not 0 < self.mass_percent <= 100 or self.hot_ratio_percent < 100:
            raise InvalidArgumentError("mass_percent is in 1 to 100, hot_ratio_percent at least 100")
