"""`RecordStore`: a metadata store of records instead of bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.controller.metadata.codec import decode, encode
from penstock.controller.metadata.shared_writes import SharedWrites
from penstock.controller.metadata.store import VERSION_ABSENT, VERSION_ANY, MetadataStore, Removal, Row, Write
from penstock.model.errors import MetadataConflictError

R = TypeVar("R")

#: Records that are encoded before the event loop runs other tasks.
_ENCODED_PER_TURN = 500
#: Rows fetched at a time when a whole table is walked.
_PAGE_ROWS = 500


@dataclass(frozen=True, slots=True)
class Versioned(Generic[R]):
    """A record and the version it was read at."""

    record: R
    version: int


class RecordStore:
    """Reads and writes records. Errors as in `MetadataStore`, and `CorruptionError` for bytes that do not decode."""

    def __init__(self, store: MetadataStore, shared_writes_max: int = 100) -> None:
        self.store = store
        self._shared = SharedWrites(store, shared_writes_max)

    async def get(self, table: str, key: str, kind: type[R]) -> Versioned[R] | None:
        """Read one record; None when it is absent."""
        (row,) = await self.store.get(table, [key])
        return self.decoded(table, row, kind)

    async def get_rows(self, table: str, keys: Sequence[str]) -> Sequence[Row | None]:
        """Read several rows of different kinds in one request; pass them to `decoded`."""
        return await self.store.get(table, keys)

    @staticmethod
    def decoded(table: str, row: Row | None, kind: type[R]) -> Versioned[R] | None:
        """Return a row as a record."""
        if row is None:
            return None
        return Versioned(decode(kind, row.value, table=table, key=row.key), row.version)

    async def put(self, table: str, key: str, record: object, *, version: int = VERSION_ANY) -> int:
        """Write one record if its version is `version`; return the new version."""
        (written,) = await self.store.put(table, [Write(key, encode(record), version)])
        return written

    async def put_with_others(self, table: str, key: str, record: object, *, version: int = VERSION_ANY) -> int:
        """As `put`; concurrent writes share one request. See `SharedWrites`."""
        return await self._shared.put(table, Write(key, encode(record), version))

    async def put_all(self, table: str, records: Sequence[tuple[str, object, int]]) -> Sequence[int]:
        """Write (key, record, expected version) of all or none; return the new versions in order."""
        writes: list[Write] = []
        for start in range(0, len(records), _ENCODED_PER_TURN):
            if start:
                await asyncio.sleep(0)
            page = records[start : start + _ENCODED_PER_TURN]
            writes.extend(Write(key, encode(record), version) for key, record, version in page)
        if len(records) > _ENCODED_PER_TURN:
            await asyncio.sleep(0)  # The store needs as much time for them.
        return await self.store.put(table, writes)

    async def create(self, table: str, key: str, record: object) -> bool:
        """Write a record unless the key exists; say whether it was written."""
        try:
            await self.put(table, key, record, version=VERSION_ABSENT)
        except MetadataConflictError:
            return False
        return True

    async def remove(self, table: str, *keys: str) -> None:
        """Remove keys unconditionally; missing ones are ignored.

        Only for keys that are never reused: a late duplicate of this request removes any record present then.
        """
        await self.store.remove(table, [Removal(key) for key in keys])

    async def remove_version(self, table: str, key: str, version: int) -> None:
        """Remove a key if it has this version. Raises `MetadataConflictError`, also when the key is missing."""
        await self.store.remove(table, [Removal(key, version)])

    async def remove_versions(self, table: str, *rows: Row) -> None:
        """Remove all of the rows, or none. Raises `MetadataConflictError` if one has changed since it was read."""
        await self.store.remove(table, [Removal(row.key, row.version) for row in rows])

    async def walk(self, table: str, kind: type[R]) -> AsyncIterator[tuple[str, Versioned[R]]]:
        """Yield every key and record of a table, page by page."""
        async for row in self.walk_rows(table):
            yield row.key, Versioned(decode(kind, row.value, table=table, key=row.key), row.version)

    async def walk_pages(self, table: str, kind: type[R]) -> AsyncIterator[Sequence[tuple[str, Versioned[R]]]]:
        """Yield every key and record of a table, a page at a time. No page is empty."""
        async for rows in self._pages(table):
            yield [(row.key, Versioned(decode(kind, row.value, table=table, key=row.key), row.version)) for row in rows]

    async def walk_rows(self, table: str) -> AsyncIterator[Row]:
        """Yield every row of a table, page by page."""
        async for rows in self._pages(table):
            for row in rows:
                yield row

    async def _pages(self, table: str) -> AsyncIterator[Sequence[Row]]:
        token = b""
        while True:
            page = await self.store.rows(table, limit=_PAGE_ROWS, token=token)
            if not page.rows:
                return
            yield page.rows
            token = page.token
