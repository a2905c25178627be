"""`ListedStreams`: a table of the streams that a cycle processes, so that it need not read all streams.

An entry may outlive its purpose, and the cycle that finds it removes it. Writers of entries are responsible for adding
them in time, so that none is missing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.metadata.records import ListedLife
from penstock.model.errors import MetadataConflictError, NoSuchSegmentError


@dataclass(frozen=True, slots=True)
class ListedStream:
    """A listed stream, and the version of its entry, which changes each time the stream is listed."""

    scope: str
    stream: str
    version: int


class ListedStreams:
    """See the module. The `table` is created with the first entry; until then it does not exist."""

    def __init__(self, records: RecordStore, table: str) -> None:
        self._records = records
        self._table = table

    async def put(self, scope: str, stream: str, life: str) -> None:
        """List incarnation `life` of a stream, even if it is listed already. 1 write."""
        name, entry = f"{scope}/{stream}", ListedLife(life)
        try:
            await self._records.put(self._table, name, entry)
        except NoSuchSegmentError:
            await self._records.store.create_table(self._table)
            await self._records.put(self._table, name, entry)

    async def all(self) -> AsyncIterator[ListedStream]:
        """Yield every listed stream."""
        try:
            async for name, found in self._records.walk(self._table, ListedLife):
                scope, _, stream = name.partition("/")
                yield ListedStream(scope, stream, found.version)
        except NoSuchSegmentError as error:
            if error.segment != self._table:
                raise

    async def remove(self, listed: ListedStream) -> None:
        """Remove an entry. It stays if the stream was listed again since it was read."""
        try:
            await self._records.remove_version(self._table, f"{listed.scope}/{listed.stream}", listed.version)
        except MetadataConflictError:
            return
