"""Audit of commands that change a server's files while it is stopped, or beside it: who ran them, and their outcome.

The account is that of the operating system. The log is that of the server: ``audit.file`` of its settings, or
``security/audit.jsonl`` in its data directory if that exists; without either, nothing is recorded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.server.settings import StandaloneSettings


def system_user() -> str:
    """Return who runs this process, from the user id: variables of the environment can name another user."""
    import pwd

    number = os.getuid()
    try:
        name = pwd.getpwuid(number).pw_name
    except KeyError:
        return f"system user {number}"
    return f"system user {name}"


def audit_path_of(settings: StandaloneSettings) -> Path | None:
    """Return the audit log of a server with these settings; None: it has none."""
    from penstock.security.secrets_directory import security_paths

    if settings.audit.file:
        return Path(settings.audit.file)
    path = security_paths(settings.security, settings.data_dir).audit_log
    return path if path.exists() else None


class CommandAudit:
    """Records one command in the file `path`; None: nowhere. `changes` are written with the entry."""

    def __init__(self, path: Path | None, command: str, resource: str, changes: Mapping[str, object]) -> None:
        self._path = path
        self._command = command
        self._resource = resource
        self.changes: dict[str, object] = dict(changes)
        self._begun_s = time.monotonic()

    def check_writable(self) -> None:
        """Raise `AuditLogError` if the file cannot be written."""
        self._append(b"", "nothing was changed")

    def record(self, outcome: str, detail: str = "") -> None:
        """Write the entry. `outcome`: ``done`` or ``failed``. Raises `AuditLogError`."""
        from penstock.security.audit_log import AuditEntry

        entry = AuditEntry(
            time.time_ns() // 1_000_000, system_user(), "local", self._command, self._resource, outcome, detail,
            1000 * (time.monotonic() - self._begun_s), change=self.changes,
        )  # fmt: skip
        self._append(entry.line(), "the change is made" if outcome == "done" else f"the command failed: {detail}")

    def _append(self, data: bytes, state: str) -> None:
        from penstock.security.audit_log import AuditSettings, append_to_file
        from penstock.security.errors import AuditLogError

        if self._path is None:
            return
        try:
            append_to_file(self._path, data, AuditSettings(file_bytes_max=2**62))  # The server renames full files.
        except OSError as error:
            raise AuditLogError(
                f"{state}, but the audit log {self._path} cannot be written: {error.strerror or error}"
            ) from error


@contextmanager
def audited(
    settings: StandaloneSettings | Callable[[], StandaloneSettings],
    command: str,
    resource: str,
    *,
    is_dry_run: bool = False,
    **changes: object,
) -> Iterator[CommandAudit]:
    """Record the block as one command: ``done`` at its end, or ``failed`` with the error that it raises.

    A command that fails may have done a part. `is_dry_run`: it changes nothing, and is not recorded. Raises
    `AuditLogError`: before the block, if the log cannot be written and ``audit.on_failure`` is ``refuse``; after it,
    if the entry of a completed command cannot be written. That a failure was not recorded is a note of its error.
    """
    found = settings() if callable(settings) else settings
    audit = CommandAudit(None if is_dry_run else audit_path_of(found), command, resource, changes)
    if found.audit.on_failure == "refuse":
        audit.check_writable()
    try:
        yield audit
    except BaseException as error:  # Also a signal: a part may be done.
        try:
            audit.record("failed", f"{type(error).__name__}: {error}")
        except PenstockError as unwritten:
            # The command's own error is the one to report: the signal, or the cause of the failure.
            error.add_note(str(unwritten))
        raise
    audit.record("done")
