"""Health of a server process: a tree of contributors with a status each, and whether the process is ready.

`Status.DOWN`: a part does not do its work, such as an offline container. A part that works with a limitation, such as
long-term storage that is away while appends are accepted, is UP and degraded, with the problem as a detail.

Source: controller-api 13, for the names of the statuses and the shape of the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from penstock.model.findings import FindingKind


class Status(Enum):
    """The status of a part: the values that Pravega's REST interface has and that occur here."""

    UP = "UP"
    STARTING = "STARTING"
    DOWN = "DOWN"


@dataclass(frozen=True, slots=True)
class Health:
    """The health of one part and of its children, by name.

    Attributes:
        status: its own status; see `overall` for that of the tree.
        problem: what is wrong, in words; empty if nothing is. With status UP the part is degraded.
        finding: the kind of the problem, in the list of all findings; None: the problem is in none. Without a problem
            it has no meaning.
        is_blocking: whether the problem makes the process not ready although the part is UP.
        children: the parts of this part.
    """

    status: Status = Status.UP
    problem: str = ""
    finding: FindingKind | None = None
    is_blocking: bool = False
    children: Mapping[str, Health] = field(default_factory=dict)

    @property
    def overall(self) -> Status:
        """DOWN if this part or a child is; else STARTING if one is; else UP."""
        found = {part.status for _, part in self.parts()}
        return next((each for each in (Status.DOWN, Status.STARTING) if each in found), Status.UP)

    @property
    def is_ready(self) -> bool:
        """Whether every part is UP and no problem is blocking."""
        return self.overall is Status.UP and not any(part.is_blocking for _, part in self.parts())

    def parts(self, name: str = "") -> Iterator[tuple[str, Health]]:
        """Yield this part and all below it with their paths, parents first."""
        yield name, self
        for child, part in self.children.items():
            yield from part.parts(f"{name}/{child}" if name else child)

    def problems(self) -> list[str]:
        """Return a line for each part that is not UP or has a problem."""
        return [
            f"{name or 'server'}: {part.problem or part.status.value.lower()}"
            for name, part in self.parts()
            if part.problem or part.status is not Status.UP
        ]

    def find(self, path: str) -> Health | None:
        """Return the part at a path of names joined by slashes; None if there is none."""
        part: Health | None = self
        for name in path.split("/"):
            if name and part is not None:
                part = part.children.get(name)
        return part

    def tree(self, name: str = "server") -> dict[str, object]:
        """Return the tree as JSON values."""
        details: dict[str, object] = {}
        if self.problem:
            details["problem"] = self.problem
            if self.finding is not None:
                details["finding"] = self.finding.id
                details["action"] = self.finding.action
            if self.status is Status.UP:
                details["degraded"] = True
        return {
            "name": name,
            "status": self.overall.value,
            "readiness": self.is_ready,
            "liveness": True,
            "details": details,
            "children": {child: part.tree(child) for child, part in self.children.items()},
        }


#: Returns the present health; called for each request, so it must be cheap and must not wait.
HealthSource = Callable[[], Health]
