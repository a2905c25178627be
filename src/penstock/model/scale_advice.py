"""`ScaleAdvisor`: who says which segments are too hot or too cold for their policies, whoever asks.

Implementations: the segment store itself (direct calls in one process) and `penstock.client.wire_scale_advice` (the
wire protocol over TCP). See ``docs/auto-scaling.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol


class ScaleDirection(IntEnum):
    """What a segment's load asks for. The numbers are those of Pravega's auto-scale event."""

    UP = 0
    DOWN = 1


@dataclass(frozen=True, slots=True)
class ScaleAdvice:
    """What the load of a segment, given by its full name, asks for now.

    `split_count`: into how many to split it, 2 or more, for UP; else 0. `is_silent`: it got nothing at all for long.
    """

    segment: str
    direction: ScaleDirection
    split_count: int = 0
    is_silent: bool = False


class ScaleAdvisor(Protocol):
    """See the module. Advice is about now: it is not remembered, so one that gets lost is given again when asked."""

    async def scale_advice(self, container_id: int, segments: Sequence[str] | None = None) -> Sequence[ScaleAdvice]:
        """Return the advice of one container about `segments`, which are its own; None: about all, the hottest first.

        What has no advice is left out, what does not exist too. About all, the answer is bounded, and may name what was
        deleted lately. Changes nothing.

        Raises:
            ContainerNotFoundError: it is not running where it was asked for.
            ConnectionLostError: its store cannot be reached, or did not answer in time.
            ProtocolError: what answered is no segment store of Penstock's.
        """
