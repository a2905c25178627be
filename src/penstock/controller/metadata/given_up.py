"""`GivenUpWork`: work that was given up after a permanent error, recorded for the operator.

The errors that lead here: `penstock.controller.errors.PERMANENT_ERRORS`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from penstock.controller.metadata import layout
from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import MetadataConflictError, PenstockError
from penstock.model.segments import VERSION_ABSENT

_logger = logging.getLogger(__name__)
#: Maximum length of the recorded error text.
_REASON_LENGTH_MAX = 1000


@dataclass(frozen=True, slots=True)
class GivenUpRecord:
    """Work that was given up: what it was, by which controller, when (wall clock), and why (the error)."""

    number: int
    work: str
    owner: str
    given_up_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class GivenUpCounter:
    """Number of pieces of work given up since the cluster was created."""

    count: int


class GivenUpWork:
    """The newest `given_up_records_max` records of given-up work: a ring in the table of announcements.

    Attributes:
        count: pieces that this controller has given up since its start.
    """

    def __init__(
        self,
        records: RecordStore,
        settings: ControllerSettings,
        wall_clock_ms: Callable[[], int],
        owner: Callable[[], str],
    ) -> None:
        self.count: int = 0
        self._records = records
        self._settings = settings
        self._wall_clock_ms = wall_clock_ms
        self._owner = owner

    async def add(self, work: str, error: PenstockError) -> None:
        """Log that `work` is given up, and record it. 2 reads, 1 write.

        After a lost reply and a retry by the caller it may be recorded twice.
        """
        _logger.error("%s is abandoned, it cannot be completed: %s", work, error)
        for attempt in range(1, self._settings.conflict_attempts_max + 1):
            found = await self._records.get(layout.PENDING_WORK, layout.GIVEN_UP, GivenUpCounter)
            number, version = (0, VERSION_ABSENT) if found is None else (found.record.count, found.version)
            reason = f"{type(error).__name__}: {error}"[:_REASON_LENGTH_MAX]
            record = GivenUpRecord(number, work, self._owner(), self._wall_clock_ms(), reason)
            slot = layout.given_up_key(number % self._settings.given_up_records_max)
            rows = await self._records.get_rows(layout.PENDING_WORK, [slot])
            slot_version = VERSION_ABSENT if rows[0] is None else rows[0].version
            try:
                await self._records.put_all(
                    layout.PENDING_WORK,
                    [(layout.GIVEN_UP, GivenUpCounter(number + 1), version), (slot, record, slot_version)],
                )
            except MetadataConflictError:
                if attempt == self._settings.conflict_attempts_max:
                    raise
            else:
                self.count += 1
                return

    async def newest(self) -> list[GivenUpRecord]:
        """Return the records, newest first."""
        records = []
        async for row in self._records.walk_rows(layout.PENDING_WORK):
            if row.key.startswith(f"{layout.GIVEN_UP}-"):
                found = self._records.decoded(layout.PENDING_WORK, row, GivenUpRecord)
                if found is not None:
                    records.append(found.record)
        return sorted(records, key=lambda record: record.number, reverse=True)
