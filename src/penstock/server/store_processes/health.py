"""`processes_health`: the health of segment stores that run in child processes of this server."""

from __future__ import annotations

from penstock.model.findings import FindingKind
from penstock.operations.health import Health, Status
from penstock.server.store_processes.processes import StoreProcess, StoreProcesses

#: A process that has not answered for this long is reported as hung. It is replaced later: see `StoreProcessSettings`.
_SILENT_S_MAX = 3.0


def processes_health(processes: StoreProcesses) -> Health:
    """Return the health of all segment stores, by number."""
    return Health(children={str(store.number): _health_of(processes, store) for store in processes.stores})


def _health_of(processes: StoreProcesses, store: StoreProcess) -> Health:
    containers: dict[str, Health] = {}
    for container_id in processes.containers_of(store):
        failure = store.failures.get(container_id)
        if failure is not None:
            containers[str(container_id)] = Health(Status.DOWN, failure.message, FindingKind.CONTAINER_OFFLINE)
        else:
            containers[str(container_id)] = Health(Status.UP if container_id in store.running else Status.STARTING)
    children = {
        "containers": Health(children=containers),
        "storage": Health(problem=store.storage_problem or "", finding=FindingKind.STORAGE_UNAVAILABLE),
        "space": Health(
            problem=store.full_disk or "",
            finding=FindingKind.WRITES_BLOCKED,
            is_blocking=store.full_disk is not None,
        ),
    }
    if not store.is_up:
        why = "its process is not running; it is being restarted"
        return Health(Status.DOWN, why, FindingKind.STORE_DOWN, children=children)
    if store.silent_s > _SILENT_S_MAX:
        why = f"its process has not answered for {store.silent_s:.0f} s"
        return Health(Status.DOWN, why, FindingKind.STORE_DOWN, children=children)
    return Health(children=children)
