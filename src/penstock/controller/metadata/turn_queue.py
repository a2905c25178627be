"""`TurnQueue`: turns between controllers, and between kinds of work, that contend for the same subject.

A request that is blocked by other announced work puts its controller in line, in a row that every announcement reads
anyway. From then on new requests on that subject are refused until the place in line has come first and was used. Work
already begun is not affected. The line only determines turns: a place that is lost, late, duplicated or abandoned costs
a turn, or its timeout, and nothing else.

Source: controller-internals 12 (waiting request). ``docs/controller-ownership.md`` covers the
possible failures, case by case.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.controller.metadata.pending_work import Lane, Subject, WaitingRequest
from penstock.controller.ownership.peers import Peers

#: The line of one bucket of subjects, in order of arrival.
Line = tuple[WaitingRequest, ...]


@dataclass(slots=True)
class _Place:
    """This controller's place in a line.

    Attributes:
        ticket: identifies the place among all that this controller ever had there.
        callers: the callers that share it. The first of them that begins uses it up.
        seen_s: for requests whose turn it was while they could have begun: since when, by the loop's clock.
    """

    ticket: str
    callers: set[object]
    seen_s: dict[str, float] = field(default_factory=dict)


class TurnQueue:
    """Evaluates lines for one controller, and keeps its places in them. Has at most as many places as callers.

    `turn_timeout_s`: a request that has not begun this long after its turn came is skipped.
    """

    def __init__(self, peers: Peers, turn_timeout_s: float) -> None:
        self._peers = peers
        self._turn_timeout_s = turn_timeout_s
        self._places: dict[tuple[Subject, Lane], _Place] = {}

    def is_free(self, line: Line, subject: Subject, lane: Lane, owner: str, now_s: float) -> bool:
        """Say whether `owner`, this controller, may begin work of a lane where no work is announced now."""
        place = self._places.get((subject, lane))
        for request in line:
            if request.subject != subject.key or not self._is_alive(request, owner):
                continue
            if _is_same(request, lane, owner):
                return True
            if place is None:
                return False
            if now_s - place.seen_s.setdefault(request.ticket, now_s) < self._turn_timeout_s:
                return False
        return True

    def left(self, line: Line, subject: Subject, lane: Lane, owner: str, now_s: float) -> Line:
        """Return the rest of the line when `owner` begins: without its own, skipped and dead requests."""
        place = self._places.get((subject, lane))
        seen_s = {} if place is None else place.seen_s
        return tuple(
            request
            for request in line
            if self._is_alive(request, owner)
            and not (request.subject == subject.key and _is_same(request, lane, owner))
            and now_s - seen_s.get(request.ticket, now_s) < self._turn_timeout_s
        )

    def begun(self, subject: Subject, lane: Lane) -> None:
        """Record that this controller has begun work of a lane: its other waiting callers need a new place."""
        self._places.pop((subject, lane), None)

    def place(self, subject: Subject, lane: Lane, caller: object, ticket: str) -> None:
        """Record that the place with `ticket` is in line, for `caller` and the callers that wait there already."""
        place = self._places.setdefault((subject, lane), _Place(ticket, set()))
        place.ticket = ticket
        place.callers.add(caller)

    def give_up(self, subject: Subject, lane: Lane, caller: object) -> str | None:
        """Remove `caller` from its place; return the ticket of a place without callers."""
        place = self._places.get((subject, lane))
        if place is None or caller not in place.callers:
            return None
        place.callers.discard(caller)
        if place.callers:
            return None
        del self._places[subject, lane]
        return place.ticket

    def __len__(self) -> int:
        return len(self._places)

    def _is_alive(self, request: WaitingRequest, owner: str) -> bool:
        return request.owner == owner or request.owner in self._peers.names


def _is_same(request: WaitingRequest, lane: Lane, owner: str) -> bool:
    """Say whether a place in line serves work of a lane. Any controller's commit merges all decided transactions."""
    return request.lane is lane and (lane is Lane.COMMIT or request.owner == owner)


def has_change(line: Iterable[WaitingRequest], subject: Subject) -> bool:
    """Say whether any request waits to change a subject."""
    return any(request.subject == subject.key and request.lane is Lane.CHANGE for request in line)
