"""`DeferredRemovals`: rows that are no longer referenced are removed later, in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import islice

from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.settings import ControllerSettings
from penstock.controller.work.background_work import BackgroundWork
from penstock.model.errors import NoSuchSegmentError


class DeferredRemovals:
    """Rows to be removed unconditionally, by table; one task per table that has any.

    Only for rows that are harmless if they stay: if the controller stops first, they remain until they are found again.
    Their keys are never reused. One request removes at most `removal_rows_max` rows; the first ones wait
    `removal_delay_ms` for more.
    """

    def __init__(self, records: RecordStore, background: BackgroundWork, settings: ControllerSettings) -> None:
        self._records = records
        self._background = background
        self._settings = settings
        self._waiting: dict[str, dict[str, None]] = {}

    def add(self, table: str, keys: Iterable[str]) -> None:
        """Remove rows after a delay."""
        added = dict.fromkeys(keys)
        if not added:
            return
        waiting = self._waiting.get(table)
        if waiting is not None:
            waiting.update(added)
            return
        self._waiting[table] = added
        self._background.tasks.start(f"removal of rows from {table}", self._serve(table))

    def has(self, table: str, key: str) -> bool:
        """Return whether a row must be removed."""
        return key in self._waiting.get(table, ())

    async def _serve(self, table: str) -> None:
        waiting = self._waiting[table]
        try:
            while waiting:
                if len(waiting) < self._settings.removal_rows_max:
                    await asyncio.sleep(self._settings.removal_delay_ms / 1000)
                keys = list(islice(waiting, self._settings.removal_rows_max))

                async def remove(keys: list[str] = keys) -> None:
                    try:
                        await self._records.remove(table, *keys)
                    except NoSuchSegmentError:
                        return  # The table was deleted with its stream.

                await self._background.until_done(f"removal of rows from {table}", remove)
                for key in keys:
                    del waiting[key]
        finally:
            del self._waiting[table]
