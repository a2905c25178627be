"""Errors of the administration of logs and long-term storage."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.errors import PenstockError, StorageError
from penstock.segmentstore.container.log.salvage_report import SalvageReport
from penstock.segmentstore.tier2.storage_check import StorageProblem


class AdminRefusedError(PenstockError):
    """A segment store refused an administrator's request; the message says why."""


class LogNotSalvageableError(StorageError):
    """No new log can be written from a damaged one (`report`). Nothing was changed."""

    def __init__(self, message: str, report: SalvageReport) -> None:
        super().__init__(message)
        self.report = report


class BackupError(StorageError):
    """A backup cannot be made, is incomplete, or does not fit long-term storage. An incomplete one has no manifest."""


class NotRecoverableError(StorageError):
    """A store cannot be restored from this long-term storage. Nothing was created."""


class BackupUnfitError(BackupError):
    """Long-term storage lacks chunks of the backup. `problems`: the first of them; `problem_count`: all."""

    def __init__(self, message: str, problems: Sequence[StorageProblem], problem_count: int) -> None:
        super().__init__(message)
        self.problems = problems
        self.problem_count = problem_count
