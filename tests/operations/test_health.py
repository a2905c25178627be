"""Health: how the statuses of parts combine, and when a process is ready."""

from __future__ import annotations

import pytest

from penstock.operations.health import Health, Status

FINE = Health()


@pytest.mark.parametrize(
    ("health", "overall", "is_ready"),
    [
        (FINE, Status.UP, True),
        (Health(children={"a": FINE, "b": Health(Status.STARTING)}), Status.STARTING, False),
        (Health(children={"a": Health(Status.STARTING), "b": Health(Status.DOWN, "broken")}), Status.DOWN, False),
        (Health(children={"a": Health(children={"b": Health(Status.DOWN, "broken")})}), Status.DOWN, False),
        (Health(children={"a": Health(problem="long-term storage is away")}), Status.UP, True),
        (Health(children={"a": Health(problem="disk full", is_blocking=True)}), Status.UP, False),
    ],
    ids=["fine", "starting", "down", "below", "degraded", "blocking"],
)
def test_the_worst_part_decides(health: Health, overall: Status, is_ready: bool) -> None:
    assert (health.overall, health.is_ready) == (overall, is_ready)


def test_problems_name_their_parts() -> None:
    health = Health(
        children={
            "controller": FINE,
            "stores": Health(children={"0": Health(children={"containers": Health(children={
                "2": Health(Status.DOWN, "its log is disabled"), "3": Health(Status.STARTING),
            }), "storage": Health(problem="it is away")})}),
        }
    )  # fmt: skip
    assert health.problems() == [
        "stores/0/containers/2: its log is disabled",
        "stores/0/containers/3: starting",
        "stores/0/storage: it is away",
    ]
    container = health.find("stores/0/containers/2")
    assert container is not None
    assert container.tree("2") == {
        "name": "2",
        "status": "DOWN",
        "readiness": False,
        "liveness": True,
        "details": {"problem": "its log is disabled"},
        "children": {},
    }
    storage = health.find("stores/0/storage")
    assert storage is not None
    assert storage.tree()["details"] == {"problem": "it is away", "degraded": True}
    assert health.find("stores/7") is None
