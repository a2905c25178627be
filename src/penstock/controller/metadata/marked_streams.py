"""`MarkedStreams`: the streams on which writers have noted times, so that they are found again.

An entry may be there too long, and is taken back then; it is never missing for long where somebody notes times. It is
written after the first mark, again for each writer that is new, and by each controller once in a while: so what a crash
between the two writes has left out comes with a later mark.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from penstock.controller.metadata import layout
from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.metadata.records import MarkedStream
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import MetadataConflictError, NoSuchSegmentError


@dataclass(frozen=True, slots=True)
class ListedStream:
    """A stream that is listed, and the version of its entry: it changes with every writer that is new."""

    scope: str
    stream: str
    version: int


class MarkedStreams:
    """See the module. The table is made with the first entry: who never notes a time has none."""

    def __init__(self, records: RecordStore, settings: ControllerSettings) -> None:
        self._records = records
        self._settings = settings
        #: Life of a stream -> when this controller has listed it, by the loop's clock.
        self._listed_s: dict[tuple[str, str, str], float] = {}

    async def add(self, scope: str, stream: str, life: str, *, is_new: bool) -> None:
        """List the `life` of a stream, after a mark was written. `is_new`: of a writer that had none.

        Costs nothing where this controller has listed the stream within `relist_s`, unless the writer is new.
        """
        key = (scope, stream, life)
        now_s = asyncio.get_running_loop().time()
        if not is_new and now_s - self._listed_s.get(key, float("-inf")) < self._settings.watermarks.relist_s:
            return
        name, entry = f"{scope}/{stream}", MarkedStream(life)
        try:
            await self._records.put(layout.MARKED_STREAMS, name, entry)
        except NoSuchSegmentError:
            await self._records.store.create_table(layout.MARKED_STREAMS)
            await self._records.put(layout.MARKED_STREAMS, name, entry)
        self._listed_s.pop(key, None)
        while len(self._listed_s) >= self._settings.id_cache_entries_max:
            del self._listed_s[next(iter(self._listed_s))]
        self._listed_s[key] = now_s

    async def all(self) -> AsyncIterator[ListedStream]:
        """Yield every stream that is listed."""
        try:
            async for name, found in self._records.walk(layout.MARKED_STREAMS, MarkedStream):
                scope, _, stream = name.partition("/")
                yield ListedStream(scope, stream, found.version)
        except NoSuchSegmentError as error:
            if error.segment != layout.MARKED_STREAMS:
                raise

    async def remove(self, listed: ListedStream) -> None:
        """Take an entry back. It stays if a writer has come since it was read."""
        try:
            await self._records.remove_version(
                layout.MARKED_STREAMS, f"{listed.scope}/{listed.stream}", listed.version
            )
        except MetadataConflictError:
            return
