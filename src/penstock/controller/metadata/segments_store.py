"""`SegmentsMetadataStore`: the metadata store on table segments.

A table is one hash table segment named ``_system/_tables/...``; keys are UTF-8. Requests that are safe to repeat are
retried; a conditional write whose reply was lost is not, because only its caller can interpret the result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from penstock.controller.container_waits import waiting_for
from penstock.controller.metadata.store import Removal, Row, RowPage, Write
from penstock.controller.retry import repeat
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import (
    MetadataConflictError,
    NoSuchSegmentError,
    SegmentExistsError,
    TableKeyMissingError,
    TableKeyVersionError,
)
from penstock.model.segments import VERSION_ANY, Segments, TableEntry, TableRemoval, TableUpdate

T = TypeVar("T")


class SegmentsMetadataStore:
    """Implements `MetadataStore`. `settings` limits the retries."""

    def __init__(self, segments: Segments, settings: ControllerSettings | None = None) -> None:
        self._segments = segments
        self._settings = settings or ControllerSettings()

    async def _repeat(self, what: str, table: str, call: Callable[[], Awaitable[T]], *, is_idempotent: bool) -> T:
        with waiting_for(table):
            return await repeat(f"{what} {table}", call, self._settings, is_idempotent=is_idempotent)

    async def create_table(self, table: str) -> bool:
        """See `MetadataStore.create_table`."""
        try:
            await self._repeat("create", table, lambda: self._segments.create_table(table), is_idempotent=True)
        except SegmentExistsError:
            return False
        return True

    async def drop_table(self, table: str, *, must_be_empty: bool = False) -> bool:
        """See `MetadataStore.drop_table`."""
        try:
            await self._repeat(
                "drop",
                table,
                lambda: self._segments.delete_table(table, must_be_empty=must_be_empty),
                is_idempotent=True,
            )
        except NoSuchSegmentError:
            return False
        return True

    async def get(self, table: str, keys: Sequence[str]) -> Sequence[Row | None]:
        """See `MetadataStore.get`."""
        encoded = [key.encode() for key in keys]
        entries = await self._repeat(
            "read", table, lambda: self._segments.table_get(table, encoded), is_idempotent=True
        )
        return [None if entry is None else _row(entry) for entry in entries]

    async def put(self, table: str, writes: Sequence[Write]) -> Sequence[int]:
        """See `MetadataStore.put`."""
        updates = [TableUpdate(write.key.encode(), write.value, write.version) for write in writes]
        is_unconditional = all(write.version == VERSION_ANY for write in writes)
        try:
            return await self._repeat(
                "write", table, lambda: self._segments.table_put(table, updates), is_idempotent=is_unconditional
            )
        except (TableKeyMissingError, TableKeyVersionError) as error:
            raise MetadataConflictError(str(error)) from error

    async def remove(self, table: str, removals: Sequence[Removal]) -> None:
        """See `MetadataStore.remove`."""
        keys = [TableRemoval(removal.key.encode(), removal.version) for removal in removals]
        is_unconditional = all(removal.version == VERSION_ANY for removal in removals)
        try:
            await self._repeat(
                "remove from",
                table,
                lambda: self._segments.table_remove(table, keys),
                is_idempotent=is_unconditional,
            )
        except (TableKeyMissingError, TableKeyVersionError) as error:
            raise MetadataConflictError(str(error)) from error

    async def rows(self, table: str, *, limit: int, token: bytes = b"") -> RowPage:
        """See `MetadataStore.rows`."""
        page = await self._repeat(
            "list",
            table,
            lambda: self._segments.table_entries(table, limit=limit, token=token),
            is_idempotent=True,
        )
        return RowPage([_row(entry) for entry in page.entries], page.token)


def _row(entry: TableEntry) -> Row:
    return Row(entry.key.decode(), entry.value, entry.version)
