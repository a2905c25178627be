"""`AuditLog`: a file with one JSON object per line for each change and each refusal, who made it, and its outcome.

Entries wait in a bounded queue and are written and synced in batches by a thread, so a slow disk delays no call. A
file that cannot be written is tried again; meanwhile `problem` says why. What then happens to changes is a setting:
they continue, and entries beyond the queue's bound are lost and counted; or they are refused. The file is rotated by
size, and may also be moved by another program: each batch opens it again.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.model.errors import ControllerUnavailableError, InvalidArgumentError, PenstockError
from penstock.runtime.waits import cancel_and_wait
from penstock.runtime.work import BlockingWork, PoolSettings
from penstock.security.errors import AuditLogError

logger: logging.Logger = logging.getLogger(__name__)

#: Entries that wait for the file, and how many are written at once.
_WAITING_MAX = 10_000
_BATCH_MAX = 1_000
#: Pause after a failed write.
_RETRY_DELAY_S = 1.0
#: How long a stop waits for the last entries.
_STOP_TIMEOUT_S = 5.0
_WRITE_TIMEOUT_S = 10.0
#: Longest JSON text of a change; a longer one is cut.
CHANGE_LENGTH_MAX = 8 * 1024
_MODE = 0o600


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """The audit log: who changed what, and what was refused.

    Attributes:
        file: where it is written. Empty: nowhere, or, where `security.makes_missing_files` is set,
            ``security/audit.jsonl`` in `data_dir`.
        file_bytes_max: size at which a file is renamed to ``.1``, and older ones to ``.2`` and so on.
        files_max: number of renamed files to keep.
        has_reads: also record calls that change nothing.
        on_failure: "continue": changes are made although the file cannot be written; "refuse": they are refused.
    """

    file: str = ""
    file_bytes_max: int = 64 * 1024 * 1024
    files_max: int = 10
    has_reads: bool = False
    on_failure: str = "continue"

    def __post_init__(self) -> None:
        """Check the values. Raises `InvalidArgumentError`."""
        if self.on_failure not in ("continue", "refuse"):
            raise InvalidArgumentError(f"audit.on_failure is {self.on_failure!r}: it is continue or refuse")
        if self.file_bytes_max < 1 or self.files_max < 1:
            raise InvalidArgumentError("audit.file_bytes_max and audit.files_max are at least 1")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line of the log.

    Attributes:
        time_ms: Unix time of the outcome.
        principal: the account; empty: the caller sent no credentials.
        peer: address of the caller.
        call: name of the call or command.
        resource: what it is about, as in access lists; empty if unknown.
        outcome: ``done``, ``refused``, or ``failed``.
        detail: status of the reply, or the error.
        duration_ms: time to answer.
        request_id: the client's number of the request; empty: it sent none.
        change: the request, and the previous state as ``before`` where it is known.
    """

    time_ms: int
    principal: str
    peer: str
    call: str
    resource: str
    outcome: str
    detail: str = ""
    duration_ms: float = 0.0
    request_id: str = ""
    change: Mapping[str, object] = field(default_factory=dict)

    def line(self) -> bytes:
        """Return the entry as a line of JSON."""
        at = datetime.datetime.fromtimestamp(self.time_ms / 1000, datetime.UTC)
        fields: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "call": self.call,
            "outcome": self.outcome,
        }
        fields |= {"principal": self.principal, "peer": self.peer, "resource": self.resource}
        if self.detail:
            fields["detail"] = self.detail
        if self.request_id:
            fields["request_id"] = self.request_id
        fields["duration_ms"] = round(self.duration_ms, 1)
        if self.change:
            change = json.dumps(self.change, ensure_ascii=False)
            fields["change"] = self.change if len(change) <= CHANGE_LENGTH_MAX else change[:CHANGE_LENGTH_MAX]
        return json.dumps(fields, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


class AuditLog:
    """See the module. Belongs to one event loop; `start` begins, `stop` writes what waits.

    Attributes:
        path: the file.
        settings: see `AuditSettings`.
        now_ms: returns the Unix time.
        problem: why the file cannot be written; empty: it can.
        written_count, lost_count: entries written, and entries lost because too many waited.
    """

    def __init__(
        self, path: Path, settings: AuditSettings, work: BlockingWork, wall_clock_ms: Callable[[], int]
    ) -> None:
        self.path = path
        self.now_ms: Callable[[], int] = wall_clock_ms
        self.settings = settings
        self.problem: str = ""
        self.written_count: int = 0
        self.lost_count: int = 0
        self._pool = work.pool("audit log", PoolSettings(thread_count_max=1, timeout_s=_WRITE_TIMEOUT_S))
        self._waiting: deque[AuditEntry] = deque()
        self._has_entries = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Check that the file can be written, and begin. Raises `AuditLogError`."""
        try:
            await self._pool.run(append_to_file, self.path, b"", self.settings)
        except (OSError, PenstockError) as error:
            self._pool.close()
            raise AuditLogError(f"the audit log {self.path} cannot be written: {_reason(error)}") from error
        self._task = asyncio.get_running_loop().create_task(self._write_all())

    def record(self, entry: AuditEntry) -> None:
        """Add an entry. It is written soon; it is lost, and counted, if too many wait."""
        if len(self._waiting) >= _WAITING_MAX:
            self.lost_count += 1
            return
        self._waiting.append(entry)
        self._is_idle.clear()
        self._has_entries.set()

    async def latest(self, count_max: int, bytes_max: int) -> list[str]:
        """Return the latest lines that are written, oldest first, also of the file before the present one.

        At most `bytes_max` of each file are read, so there may be fewer. Raises `AuditLogError`.
        """
        try:
            return await self._pool.run(latest_lines, self.path, count_max, bytes_max)
        except OSError as error:
            raise AuditLogError(f"the audit log {self.path} cannot be read: {_reason(error)}") from error

    def check_may_change(self) -> None:
        """Raise `ControllerUnavailableError` if changes are refused because the file cannot be written."""
        if self.problem and self.settings.on_failure == "refuse":
            raise ControllerUnavailableError(
                f"changes are refused while the audit log cannot be written (audit.on_failure): {self.problem}"
            )

    async def stop(self) -> None:
        """Write what waits, for a bounded time, and end."""
        task, self._task = self._task, None
        if task is None:
            return
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await self._is_idle.wait()
        except TimeoutError:
            logger.warning("%d entries of the audit log %s were not written", len(self._waiting), self.path)
        await cancel_and_wait(task)
        self._pool.close()

    async def _write_all(self) -> None:
        while True:
            if not self._waiting:
                self._has_entries.clear()
                self._is_idle.set()
                await self._has_entries.wait()
            batch = [self._waiting[number] for number in range(min(len(self._waiting), _BATCH_MAX))]
            data = b"".join(entry.line() for entry in batch)
            try:
                await self._pool.run(append_to_file, self.path, data, self.settings)
            except (OSError, PenstockError) as error:
                # A write that timed out may still be done: then its entries are in the file twice.
                if not self.problem:
                    logger.error("the audit log %s cannot be written: %s", self.path, _reason(error))
                self.problem = f"{self.path}: {_reason(error)}"
                await asyncio.sleep(_RETRY_DELAY_S)
                continue
            if self.problem:
                logger.warning("the audit log %s can be written again; %d entries were lost", self.path,
                               self.lost_count)  # fmt: skip
            self.problem = ""
            self.written_count += len(batch)
            for _ in batch:
                self._waiting.popleft()


def append_to_file(path: Path, data: bytes, settings: AuditSettings) -> None:
    """Append lines to the file and sync it; rename it before if it has reached its size. Raises `OSError`.

    A partial line, of a full disk, is removed again.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = _open(path)
    try:
        length = os.fstat(descriptor).st_size
        if length and length + len(data) > settings.file_bytes_max:
            os.close(descriptor)
            descriptor = -1
            _rotate(path, settings.files_max)
            descriptor = _open(path)
            length = 0
        if data:
            try:
                if os.write(descriptor, data) != len(data):
                    raise OSError(f"{path}: a write was cut short")
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, length)
                raise
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def latest_lines(path: Path, count_max: int, bytes_max: int) -> list[str]:
    """Return the latest whole lines of a file, and of the one that was renamed last, of at most `bytes_max` in all."""
    lines: list[str] = []
    left = bytes_max
    for each in (path, path.with_name(f"{path.name}.1")):
        if len(lines) >= count_max or left <= 0:
            break
        try:
            with each.open("rb") as file:
                length = file.seek(0, os.SEEK_END)
                start = file.seek(max(length - left, 0))
                data = file.read(left)
        except FileNotFoundError:
            continue
        left -= len(data)
        found = data.split(b"\n")
        # The first may begin inside a line; after the last line end is nothing, or a line that is being written.
        whole = found[1 if start else 0 : -1]
        lines = [each.decode("utf-8", "backslashreplace") for each in whole] + lines
    return lines[-count_max:]


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, _MODE)


def _rotate(path: Path, files_max: int) -> None:
    for number in range(files_max - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            older.rename(path.with_name(f"{path.name}.{number + 1}"))
    path.rename(path.with_name(f"{path.name}.1"))


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
