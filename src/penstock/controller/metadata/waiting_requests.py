"""`WaitingRequests`: whose turn it is on what several controllers, or several kinds of work, want at once.

Who finds other work announced where it wants to begin its own puts its name in line: a row that every announcement
reads anyway. From then on others that want to begin there stand back, until the name has come first and was used. What
has begun goes on, whoever waits. The line decides about turns only: a name that is lost, late, doubled, or of somebody
who never comes costs a turn, or the time of one, and nothing else.

Source: controller internals specification, section 12 (waiting request). ``docs/controller-ownership.md`` has what can
happen, case by case.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.controller.metadata.pending_work import Lane, Subject, WaitingRequest
from penstock.controller.peers import Peers

#: The line of one bucket of subjects, in the order of coming.
Line = tuple[WaitingRequest, ...]


@dataclass(slots=True)
class _Place:
    """This controller's name in a line.

    Attributes:
        ticket: tells it from any other one that this controller ever had there.
        callers: those whose name it is. The first of them that begins uses it up.
        seen_s: of requests whose turn it was while they could have begun: since when, by the loop's clock.
    """

    ticket: str
    callers: set[object]
    seen_s: dict[str, float] = field(default_factory=dict)


class WaitingRequests:
    """Reads lines for one controller, and knows its places in them. Holds no more places than it has callers.

    `turn_timeout_s`: who has not begun for so long after his turn had come is passed over.
    """

    def __init__(self, peers: Peers, turn_timeout_s: float) -> None:
        self._peers = peers
        self._turn_timeout_s = turn_timeout_s
        self._places: dict[tuple[Subject, Lane], _Place] = {}

    def is_free(self, line: Line, subject: Subject, lane: Lane, owner: str, now_s: float) -> bool:
        """Say whether `owner`, this controller, may begin work of a lane where nothing is announced now."""
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
        """Return what is left of the line when `owner` begins: without its name, who was passed over, and the dead."""
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
        """Note that this controller has begun work of a lane: whoever else of it waits there has to come again."""
        self._places.pop((subject, lane), None)

    def place(self, subject: Subject, lane: Lane, caller: object, ticket: str) -> None:
        """Note that the name with `ticket` is in line, and is that of `caller` and whoever waits there already."""
        place = self._places.setdefault((subject, lane), _Place(ticket, set()))
        place.ticket = ticket
        place.callers.add(caller)

    def give_up(self, subject: Subject, lane: Lane, caller: object) -> str | None:
        """Forget that `caller` waits; return the ticket of a place that nobody has any more."""
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
    """Say whether a name in line is good for work of a lane. Whoever commits merges what everybody has decided."""
    return request.lane is lane and (lane is Lane.COMMIT or request.owner == owner)


def has_change(line: Iterable[WaitingRequest], subject: Subject) -> bool:
    """Say whether anybody waits to change a subject."""
    return any(request.subject == subject.key and request.lane is Lane.CHANGE for request in line)
