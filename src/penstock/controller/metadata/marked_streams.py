"""`MarkedStreams`: the streams on which writers have noted times.

An entry is written after the first mark, again for each new writer, and periodically by each controller: so an entry
that is missing after a crash between the two writes is added with a later mark.
"""

from __future__ import annotations

import asyncio

from penstock.controller.metadata import layout
from penstock.controller.metadata.listed_streams import ListedStreams
from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.settings import ControllerSettings


class MarkedStreams(ListedStreams):
    """See the module."""

    def __init__(self, records: RecordStore, settings: ControllerSettings) -> None:
        super().__init__(records, layout.MARKED_STREAMS)
        self._settings = settings
        #: Incarnation of a stream -> time when this controller last listed it, by the loop's clock.
        self._listed_s: dict[tuple[str, str, str], float] = {}

    async def add(self, scope: str, stream: str, life: str, *, is_new: bool) -> None:
        """List incarnation `life` of a stream, after a mark was written. `is_new`: of a writer without an earlier mark.

        No request if this controller has listed the stream within `relist_s`, unless the writer is new.
        """
        key = (scope, stream, life)
        now_s = asyncio.get_running_loop().time()
        if not is_new and now_s - self._listed_s.get(key, float("-inf")) < self._settings.watermarks.relist_s:
            return
        await self.put(scope, stream, life)
        self._listed_s.pop(key, None)
        while len(self._listed_s) >= self._settings.id_cache_entries_max:
            del self._listed_s[next(iter(self._listed_s))]
        self._listed_s[key] = now_s
