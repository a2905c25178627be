"""`ListedStreams`: a table of streams that some cycle goes over, so that it need not look at all there are.

An entry may be there too long, and whoever meets it takes it back then; it is never missing where it must not be, as
far as those who write it see to that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.metadata.records import ListedLife
from penstock.model.errors import MetadataConflictError, NoSuchSegmentError


@dataclass(frozen=True, slots=True)
class ListedStream:
    """A stream that is listed, and the version of its entry: it changes each time the stream is listed."""

    scope: str
    stream: str
    version: int


class ListedStreams:
    """See the module. The `table` is made with the first entry: where no stream ever is listed there is none."""

    def __init__(self, records: RecordStore, table: str) -> None:
        self._records = records
        self._table = table

    async def put(self, scope: str, stream: str, life: str) -> None:
        """List the `life` of a stream, also if it is listed. 1 write."""
        name, entry = f"{scope}/{stream}", ListedLife(life)
        try:
            await self._records.put(self._table, name, entry)
        except NoSuchSegmentError:
            await self._records.store.create_table(self._table)
            await self._records.put(self._table, name, entry)

    async def all(self) -> AsyncIterator[ListedStream]:
        """Yield every stream that is listed."""
        try:
            async for name, found in self._records.walk(self._table, ListedLife):
                scope, _, stream = name.partition("/")
                yield ListedStream(scope, stream, found.version)
        except NoSuchSegmentError as error:
            if error.segment != self._table:
                raise

    async def remove(self, listed: ListedStream) -> None:
        """Take an entry back. It stays if the stream was listed again since it was read."""
        try:
            await self._records.remove_version(self._table, f"{listed.scope}/{listed.stream}", listed.version)
        except MetadataConflictError:
            return
