"""`LoadMoves`: whether the moves for load that leaders have written keep their limits.

Only written moves are known here, and a leader also rests after one whose outcome it does not know: a correct leader
never moves earlier than this check allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from penstock.model.assignment_plan import UNASSIGNED, Move, MoveReason
from penstock.model.move_settings import MoveSettings

#: A move is written, and noted by its leader, this long after it was planned, at most.
_WRITE_S = 0.001


class LoadMoves:
    """See the module.

    Attributes:
        made: time and container of each move for load.
    """

    def __init__(self) -> None:
        self.made: list[tuple[float, int]] = []
        self._moved_s: dict[int, float] = {}

    def written(
        self, owners: Sequence[str], moves: Sequence[Move], settings: MoveSettings, planned_s: float, now_s: float
    ) -> Iterator[str]:
        """Note moves that were written at `now_s`; `owners` are those after them. Yield what is wrong with them."""
        loads = [move for move in moves if move.reason is MoveReason.LOAD]
        if loads:
            yield from self._wrong(owners, moves, settings, planned_s)
        for move in moves:
            self._moved_s[move.container_id] = now_s
        self.made += [(now_s, move.container_id) for move in loads]

    def _wrong(
        self, owners: Sequence[str], moves: Sequence[Move], settings: MoveSettings, planned_s: float
    ) -> Iterator[str]:
        if len(moves) > 2 or any(move.reason is not MoveReason.LOAD for move in moves):
            yield f"{len(moves)} moves at once, some of them for load: {moves}"
        for move in moves:
            rested_s = planned_s - self._moved_s.get(move.container_id, float("-inf"))
            if rested_s < settings.rest_s - _WRITE_S:
                yield (
                    f"container {move.container_id} moves for load {rested_s:.2f} s after another move of it, before "
                    f"{settings.rest_s:g} s"
                )
        if self.made and planned_s - self.made[-1][0] < settings.load_interval_s - _WRITE_S:
            yield f"a move for load {planned_s - self.made[-1][0]:.2f} s after the last one"
        counts = Counter(owner for owner in owners if owner != UNASSIGNED)
        before = Counter(counts)
        for move in moves:
            before[move.target] -= 1
            before[move.source] += 1
        if max(counts.values()) - min(counts.values()) > max(1, max(before.values()) - min(before.values())):
            yield f"a move for load leaves the containers uneven: {owners}"
