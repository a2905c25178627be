"""`LogAdministration`: inspects and changes the state of the logs in a directory. All methods block.

The logs must not be in use meanwhile: the caller holds the data directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock.model.errors import (
    CorruptionError,
    LaterVersionError,
    LogDamagedError,
    LogIdentityError,
    LogMissingError,
)
from penstock.runtime.disk import Disk
from penstock.segmentstore.tier1.disabled_reason import read_reason
from penstock.segmentstore.tier1.log_directory import LogDirectory, describe_disabled, log_container_ids
from penstock.segmentstore.tier1.log_records import read_epoch
from penstock.segmentstore.tier1.log_recovery import check_log
from penstock.segmentstore.tier1.made_logs import MadeLogs
from penstock.segmentstore.tier1.read_only_log import check_frames


class LogState(StrEnum):
    """Whether a log can be opened, according to its metadata files.

    Attributes:
        ENABLED: yes.
        DISABLED: no; it was disabled by hand, or because it was found damaged.
        DAMAGED: no; its metadata file is damaged or an old copy, or the log belongs to another cluster.
        MISSING: no; the log was created once, and does not exist.
        LATER_VERSION: not by this version; a later one has written it.
    """

    ENABLED = "enabled"
    DISABLED = "disabled"
    DAMAGED = "damaged"
    MISSING = "missing"
    LATER_VERSION = "later version"


@dataclass(frozen=True, slots=True)
class LogReport:
    """A log: how often it was opened (`epoch`), its files, their total length in bytes, and its problem, if any."""

    container: int
    state: LogState
    epoch: int
    file_count: int
    length_bytes: int
    path: str
    problem: str = ""


class LogAdministration:
    """The logs below `directory`, one directory for each container, of the cluster `cluster_id`.

    `made_logs_directory`: where their creation is recorded, see `MadeLogs`.
    """

    def __init__(self, directory: str, disk: Disk, *, cluster_id: str, made_logs_directory: str) -> None:
        self._directory = directory
        self._disk = disk
        self._cluster_id = cluster_id
        self._made_logs = MadeLogs(disk, made_logs_directory, cluster_id)

    def reports(self) -> Sequence[LogReport]:
        """Return a report of each log that was ever created, by container. Changes nothing."""
        there = log_container_ids(self._disk, self._directory)
        made = self._made_logs.container_ids()
        return [
            self._report(container_id) if container_id in there else self._missing(container_id)
            for container_id in sorted({*there, *made})
        ]

    def _missing(self, container_id: int) -> LogReport:
        path = self._path(container_id)
        problem = str(LogMissingError(container_id, path, record=self._made_logs.path(container_id)))
        if self._disk.exists(f"{path}.salvaged"):
            problem = f"its salvage was interrupted: run `penstock log salvage {container_id}` again"
        return LogReport(container_id, LogState.MISSING, 0, 0, 0, path, problem)

    def _report(self, container_id: int) -> LogReport:
        path = self._path(container_id)
        names = [name for name in self._disk.list_directory(path) if name.startswith("log-")]
        length_bytes = 0
        for name in names:
            file = self._disk.open(f"{path}/{name}", writable=False)
            try:
                length_bytes += file.length()
            finally:
                file.close()
        state, epoch, problem = LogState.DAMAGED, 0, "log.epoch is missing"
        try:
            record = read_epoch(self._disk, path)
            if record is not None:
                epoch = record.epoch
                check_log(self._disk, path, record, self._cluster_id)
        except LaterVersionError as error:
            state, problem = LogState.LATER_VERSION, str(error)
        except (CorruptionError, LogIdentityError) as error:
            problem = str(error)
        else:
            if record is not None:
                state = LogState.ENABLED if record.is_enabled else LogState.DISABLED
                problem = "" if record.is_enabled else self._why_disabled(container_id, record.epoch)
        return LogReport(container_id, state, epoch, len(names), length_bytes, path, problem)

    def _why_disabled(self, container_id: int, epoch: int) -> str:
        return describe_disabled(read_reason(self._disk, self._path(container_id), epoch), container_id)

    def enable(self, container_id: int) -> None:
        """Enable a disabled log. Its frames are read first: a damaged log stays disabled.

        Raises:
            InvalidArgumentError: it is not disabled, or does not exist.
            LogDamagedError: it is damaged. Nothing was changed.
        """
        path = self._path(container_id)
        if self._disk.exists(path):
            try:
                check_frames(self._disk, path, container_id, self._cluster_id)
            except CorruptionError as error:
                raise LogDamagedError(container_id, error) from error
        LogDirectory(self._disk, path, container_id).enable()

    def disable(self, container_id: int) -> None:
        """Disable a log. Raises `InvalidArgumentError` if it is disabled already, or does not exist."""
        LogDirectory(self._disk, self._path(container_id), container_id).disable_from_outside()

    def _path(self, container_id: int) -> str:
        return f"{self._directory}/{container_id}"
