"""`store_health`: the health of a segment store in this process."""

from __future__ import annotations

from penstock.model.findings import FindingKind
from penstock.operations.health import Health, Status
from penstock.segmentstore.store import SegmentStore


def store_health(store: SegmentStore) -> Health:
    """Return the health of the store: each assigned container, long-term storage, log, and space for users' writes."""
    running = {container.id for container in store.containers}
    containers: dict[str, Health] = {}
    for container_id in store.assigned:
        failure = store.failures.get(container_id)
        if failure is not None:
            containers[str(container_id)] = Health(Status.DOWN, str(failure), FindingKind.CONTAINER_OFFLINE)
        elif container_id in running:
            containers[str(container_id)] = Health()
        else:
            containers[str(container_id)] = Health(Status.STARTING)
    children = {"containers": Health(children=containers)}
    if (problem := store.storage_problem) is not None:
        children["storage"] = Health(problem=problem, finding=FindingKind.STORAGE_UNAVAILABLE)
    else:
        children["storage"] = Health()
    log_problem = store.log_problem
    children["log"] = Health(
        problem=log_problem or "", finding=FindingKind.LOG_UNAVAILABLE, is_blocking=log_problem is not None
    )
    full_disk = store.full_disk
    children["space"] = Health(
        problem=full_disk or "", finding=FindingKind.WRITES_BLOCKED, is_blocking=full_disk is not None
    )
    return Health(children=children)
