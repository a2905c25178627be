"""`MemoryMetadataStore`: the metadata store in dictionaries, for tests and as a model of `SegmentsMetadataStore`."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence

from penstock.controller.metadata.store import VERSION_ABSENT, VERSION_ANY, Removal, Row, RowPage, Write
from penstock.model.errors import (
    InvalidArgumentError,
    MetadataConflictError,
    NoSuchSegmentError,
    TableNotEmptyError,
)


class MemoryMetadataStore:
    """Implements `MetadataStore`. Every call yields to the loop once, as a request over a network would."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, Row]] = {}
        #: For tables that were listed: all keys in order, until a key is added or removed.
        self._sorted_keys: dict[str, list[str]] = {}
        self._version = -1

    def table_names(self) -> list[str]:
        """Return the names of all tables, sorted."""
        return sorted(self._tables)

    def _table(self, name: str) -> dict[str, Row]:
        found = self._tables.get(name)
        if found is None:
            raise NoSuchSegmentError(name)
        return found

    async def create_table(self, table: str) -> bool:
        """See `MetadataStore.create_table`."""
        await asyncio.sleep(0)
        if table in self._tables:
            return False
        self._tables[table] = {}
        return True

    async def drop_table(self, table: str, *, must_be_empty: bool = False) -> bool:
        """See `MetadataStore.drop_table`."""
        await asyncio.sleep(0)
        if self._tables.get(table) and must_be_empty:
            raise TableNotEmptyError(table)
        self._sorted_keys.pop(table, None)
        return self._tables.pop(table, None) is not None

    async def get(self, table: str, keys: Sequence[str]) -> Sequence[Row | None]:
        """See `MetadataStore.get`."""
        await asyncio.sleep(0)
        found = self._table(table)
        return [found.get(key) for key in keys]

    @staticmethod
    def _check(name: str, table: dict[str, Row], changes: Sequence[Write | Removal]) -> None:
        for change in changes:
            row = table.get(change.key)
            actual = VERSION_ABSENT if row is None else row.version
            if change.version not in (VERSION_ANY, actual):
                raise MetadataConflictError(
                    f"{name}: key {change.key!r} has version {actual}, expected {change.version}"
                )

    async def put(self, table: str, writes: Sequence[Write]) -> Sequence[int]:
        """See `MetadataStore.put`."""
        await asyncio.sleep(0)
        found = self._table(table)
        self._check(table, found, writes)
        versions = []
        if any(write.key not in found for write in writes):
            self._sorted_keys.pop(table, None)
        for write in writes:
            self._version += 1
            found[write.key] = Row(write.key, write.value, self._version)
            versions.append(self._version)
        return versions

    async def remove(self, table: str, removals: Sequence[Removal]) -> None:
        """See `MetadataStore.remove`."""
        await asyncio.sleep(0)
        found = self._table(table)
        self._check(table, found, removals)
        self._sorted_keys.pop(table, None)
        for removal in removals:
            found.pop(removal.key, None)

    async def rows(self, table: str, *, limit: int, token: bytes = b"") -> RowPage:
        """See `MetadataStore.rows`."""
        await asyncio.sleep(0)
        found = self._table(table)
        try:
            after = token.decode()
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"{table}: {token!r} is not a continuation token") from error
        if table not in self._sorted_keys:
            self._sorted_keys[table] = sorted(found)
        every = self._sorted_keys[table]
        first = bisect_right(every, after)
        keys = every[first : first + max(1, limit)]
        return RowPage([found[key] for key in keys], keys[-1].encode() if keys else token)
