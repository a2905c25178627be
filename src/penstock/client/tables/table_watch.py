"""`TableWatch`: the changes of a table's keys.

A server has no list of changes in a table of keys with a fixed length. But a small request returns the length of each
partition's log. Only if that has grown, the versions of the watched keys are read, without values, and compared with
the previous ones. So a watch sees states, not steps: of two changes of one key between two polls it returns the latter;
a key that was put and removed between them is not returned. The final state is never missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from penstock.client.common.deadline import within
from penstock.client.tables.table_scan import KeySpan, key_pages
from penstock.client.tables.table_segments import TableSegments
from penstock.client.transport.cluster import Cluster
from penstock.model.errors import InvalidArgumentError
from penstock.model.segments import TableEntry

#: Keys whose values are read at once.
_SLICE_KEY_COUNT = 240


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A key whose entry has changed; `entry` None: it was removed."""

    key: bytes
    entry: TableEntry | None


class TableWatch:
    """Returns changes one by one, without end. An error ends only one call of `next_change`: the next one continues.

    Remembers a version for each key of the span, up to `table_watch_key_count_max`.

    Args:
        check: raises once the watch must end.
        is_from_now: begin with changes from now on; otherwise with all current entries.
    """

    def __init__(
        self, cluster: Cluster, table: TableSegments, span: KeySpan, check: Callable[[], None], *, is_from_now: bool
    ) -> None:
        self._cluster = cluster
        self._table = table
        self._span = span
        self._check = check
        self._names = table.names if span.segment is None else [span.segment]
        self._lengths: dict[str, int] = {}
        self._versions: dict[str, dict[bytes, int]] = {name: {} for name in self._names}
        self._is_known = not is_from_now
        self._polling: AsyncIterator[KeyChange] | None = None
        self._is_waiting = False

    async def next_change(self) -> KeyChange:
        """Return the next change, waiting for it.

        Raises `NoSuchTableError`, and `InvalidArgumentError` for more keys than a watch remembers.
        """
        settings = self._cluster.settings
        while True:
            self._check()
            if self._is_waiting:
                await asyncio.sleep(settings.table_watch_interval_s)
                self._is_waiting = False
                continue
            with within(f"watch table {self._table.name}", settings.retry_time_max_s, "retry_time_max_s"):
                if not self._is_known:
                    await self._learn()
                polling, self._polling = self._polling or self._poll(), None
                async for change in polling:
                    self._polling = polling
                    return change
            self._is_waiting = True

    async def _learn(self) -> None:
        """Record the current entries as known."""
        for segment in self._names:
            length = await self._length(segment)
            self._versions[segment] = await self._read_versions(segment)
            self._lengths[segment] = length
        self._is_known = True

    async def _poll(self) -> AsyncIterator[KeyChange]:
        for segment in self._names:
            # Requested first: later changes make the log longer, and are found by the next poll.
            length = await self._length(segment)
            if self._lengths.get(segment) == length:
                continue
            known = self._versions[segment]
            now = await self._read_versions(segment)
            for key in [key for key in known if key not in now]:
                del known[key]
                yield KeyChange(key, None)
            newer = [key for key, version in now.items() if known.get(key) != version]
            for start in range(0, len(newer), _SLICE_KEY_COUNT):
                keys = newer[start : start + _SLICE_KEY_COUNT]
                for key, entry in zip(keys, await self._table.get(keys), strict=True):
                    # It may have been changed again since its version was read, or removed.
                    if entry is not None:
                        known[key] = entry.version
                        yield KeyChange(key, entry)
                    elif known.pop(key, None) is not None:
                        yield KeyChange(key, None)
            self._lengths[segment] = length

    async def _length(self, segment: str) -> int:
        with self._table.of_table():
            return (await self._cluster.segments.table_info(segment)).length

    async def _read_versions(self, segment: str) -> dict[bytes, int]:
        settings = self._cluster.settings
        count_max = settings.table_watch_key_count_max
        others = sum(len(versions) for name, versions in self._versions.items() if name != segment)
        now: dict[bytes, int] = {}
        only = [segment]
        async for page in key_pages(self._cluster, self._table, self._span, settings.table_page_entry_count, only):
            now.update(page)
            if others + len(now) > count_max:
                raise InvalidArgumentError(
                    f"table {self._table.name}: a watch tracks at most {count_max} keys "
                    "(table_watch_key_count_max): watch a prefix, or a smaller range"
                )
        return now
