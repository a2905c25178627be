"""`CheckpointState`: the automatic checkpoints of a reader group, a part of its shared record. Pure.

A checkpoint is started by one reader, waits for the positions of all readers that are in the group at that moment, and
is complete once the last of them has stored its own or has left the group. One is open at a time, so there are never
more than a group's `maxOutstandingCheckpointRequest`, which is at least 1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from penstock.model.errors import InvalidArgumentError

_INTERVAL_MIN_S = 0.001
_INTERVAL_MAX_S = 1e9
#: Pravega's "no automatic checkpoints".
_OFF_MS = -1


class CheckpointState(msgspec.Struct, frozen=True):
    """See the module.

    `interval_s`: between two checkpoints; 0: there are none. `number`: of the last one started. `awaited`: the readers
    whose positions are missing, by name; none: it is not open. `positions`: of the last one completed (segment ->
    offset).
    """

    interval_s: float = 0.0
    number: int = 0
    awaited: list[str] = msgspec.field(default_factory=list)
    positions: dict[str, int] = msgspec.field(default_factory=dict)

    def begin(self, number: int, readers: Collection[str]) -> CheckpointState:
        """Start checkpoint `number`, unless it was started before, or another one is open."""
        if self.awaited or number != self.number + 1:
            return self
        return msgspec.structs.replace(self, number=number, awaited=sorted(readers))

    def without(self, reader: str) -> CheckpointState:
        """Stop waiting for a reader."""
        if reader not in self.awaited:
            return self
        return msgspec.structs.replace(self, awaited=[name for name in self.awaited if name != reader])

    def taken(self, positions: Mapping[str, int]) -> CheckpointState:
        """Return it with the positions of a checkpoint that waits for no more readers."""
        return msgspec.structs.replace(self, awaited=[], positions=dict(positions))

    def forgotten(self) -> CheckpointState:
        """Return it without an open or completed checkpoint: the group's position was reset."""
        return msgspec.structs.replace(self, awaited=[], positions={})


def interval_ms_of(interval_s: float) -> int:
    """Return an interval in the controller's form; 0 means none. Raises `InvalidArgumentError`."""
    if interval_s == 0:
        return _OFF_MS
    if not _INTERVAL_MIN_S <= interval_s <= _INTERVAL_MAX_S:
        raise InvalidArgumentError(
            f"checkpoint_interval_s={interval_s!r}: give {_INTERVAL_MIN_S:g} s to {_INTERVAL_MAX_S:g} s, or 0 for no "
            "automatic checkpoints"
        )
    return round(interval_s * 1000)


def interval_s_of(interval_ms: int) -> float:
    """Return an interval in the controller's form, in seconds; 0: there are none."""
    return interval_ms / 1000 if interval_ms > 0 else 0.0
