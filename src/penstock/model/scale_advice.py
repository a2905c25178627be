"""`ScaleAdvisor`: reports which segments are too hot or too cold for their scaling policies.

Implementations: the segment store itself (direct calls in one process) and
`penstock.client.statistics.wire_scale_advice` (the wire protocol over TCP). See ``docs/auto-scaling.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol


class ScaleDirection(IntEnum):
    """The direction that a segment's load calls for. The numbers are those of Pravega's auto-scale event."""

    UP = 0
    DOWN = 1


@dataclass(frozen=True, slots=True)
class ScaleAdvice:
    """The scaling that a segment's current load calls for, with the segment's full name.

    `split_count`: number of segments to split it into, 2 or more, for UP; else 0. `is_silent`: it got no data for long.
    """

    segment: str
    direction: ScaleDirection
    split_count: int = 0
    is_silent: bool = False


class ScaleAdvisor(Protocol):
    """See the module. Advice is about the present: it is not stored, so lost advice is given again on the next call."""

    async def scale_advice(self, container_id: int, segments: Sequence[str] | None = None) -> Sequence[ScaleAdvice]:
        """Return the advice of one container about `segments`, which are its own; None: about all, the hottest first.

        Segments without advice and missing segments are omitted. For None the result is bounded, and may name recently
        deleted segments. Changes nothing.

        Raises:
            ContainerNotFoundError: the container is not running there.
            ConnectionLostError: its store cannot be reached, or did not reply in time.
            ProtocolError: the peer is not a segment store of Penstock's.
        """
