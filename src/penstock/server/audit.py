"""The audit log of a server process: its file, its start, and its health."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.model.findings import FindingKind
from penstock.operations.health import Health
from penstock.runtime.runtime import Runtime
from penstock.server.settings import StandaloneSettings

# Imported where it is used: most servers have none.
if TYPE_CHECKING:
    from penstock.security.audit_log import AuditLog


def audit_path(settings: StandaloneSettings, *, has_default: bool, store: str = "") -> Path | None:
    """Return the file of a process; None: it writes no audit log.

    `has_default`: without ``audit.file``, it is among the files of security. `store`: name of a segment store with a
    process of its own, which has a file of its own, since two processes must not rotate one file.
    """
    if settings.audit.file:
        path = Path(settings.audit.file)
    elif has_default:
        from penstock.security.secrets_directory import security_paths

        path = Path(security_paths(settings.security, settings.data_dir).audit_log)
    else:
        return None
    return path.with_name(f"{path.stem}-{store}{path.suffix}") if store else path


async def start_audit(
    path: Path | None, settings: StandaloneSettings, runtime: Runtime, stops: AsyncExitStack
) -> AuditLog | None:
    """Start the audit log, if there is one; `stops` ends it. Raises `AuditLogError`."""
    if path is None:
        return None
    from penstock.security.audit_log import AuditLog

    audit = AuditLog(path, settings.audit, runtime.work, runtime.wall_clock_ms)
    await audit.start()
    stops.push_async_callback(audit.stop)
    return audit


def with_audit(health: Health, audit: AuditLog | None) -> Health:
    """Return the health of a process with that of its audit log, if it has one."""
    if audit is None:
        return health
    part = Health(problem=audit.problem, finding=FindingKind.AUDIT_FAILING)
    return replace(health, children={**health.children, "audit": part})
