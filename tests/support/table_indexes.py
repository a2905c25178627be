"""Sorted indexes of tables that outlive their containers, fail on demand and can be held up."""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from penstock.model.errors import BadOffsetError, StorageError
from penstock.segmentstore.container.btree.sorted_index import MARK_LENGTH_MAX, SortedIndex
from penstock.segmentstore.container.btree.tree import BTreeIndex
from penstock.segmentstore.container.opening import ContainerOpening
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container.storage.container_storage import ContainerStorage
from penstock.segmentstore.container.tables.entries import SLOT_LENGTH
from penstock.segmentstore.container_settings import IndexSettings
from penstock_simulation.memory_index import MemoryIndexStorage
from support.containers import Incarnations


@dataclass
class Stored:
    """What long-term storage has of one index; `version` counts the updates."""

    entries: dict[bytes, bytes] = field(default_factory=dict)
    mark: bytes = b""
    version: int = 0


@dataclass
class IndexDisk:
    """All indexes of a container.

    Attributes:
        faults: what the next updates do: "before" or "after" their effect they raise, "conflict" finds a changed index.
        cached_share: how often a scan-up in memory has an answer.
        gate: while it is there, updates wait for it.
        lookup_gate: the same for look-ups.
    """

    rng: random.Random
    cached_share: float = 0.5
    stored: dict[str, Stored] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    gate: asyncio.Event | None = None
    lookup_gate: asyncio.Event | None = None
    open_count: int = 0
    update_count: int = 0
    lookup_count: int = 0
    last_changes: dict[bytes, bytes | None] = field(default_factory=dict)


class FaultyIndex:
    """A `SortedIndex` over an `IndexDisk`."""

    def __init__(self, disk: IndexDisk, name: str) -> None:
        self._disk = disk
        self._stored = disk.stored.setdefault(name, Stored())
        self._name = name
        self._entries: dict[bytes, bytes] = {}
        self._version = -1
        self.generation = 0
        self.mark = b""
        self.entry_count = 0
        self.stored_bytes = 0
        self.is_closed = False
        self.entry_count = 0
        self.stored_bytes = 0

    async def open(self) -> None:
        self._disk.open_count += 1
        await asyncio.sleep(0)
        self._entries = dict(self._stored.entries)
        self.mark = self._stored.mark
        self._version = self._stored.version
        self.generation += 1

    def close(self) -> None:
        self.is_closed = True

    def get_cached(self, key: bytes) -> tuple[bool, bytes | None]:
        if self._disk.rng.random() < self._disk.cached_share:
            return True, self._entries.get(key)
        return False, None

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        self._disk.lookup_count += len(keys)
        entries = self._entries
        if self._disk.lookup_gate is not None:
            await self._disk.lookup_gate.wait()
        await asyncio.sleep(0)
        return [entries.get(key) for key in keys]

    async def page(
        self, *, after: bytes = b"", first: bytes = b"", last: bytes | None = None, limit: int
    ) -> Sequence[tuple[bytes, bytes]]:
        entries = self._entries
        if self._disk.lookup_gate is not None:
            await self._disk.lookup_gate.wait()
        await asyncio.sleep(0)
        keys = sorted(entries)
        found = [
            key for key in keys[bisect_left(keys, max(first, after)) :]
            if key > after and key >= first and (last is None or key <= last)
        ]  # fmt: skip
        return [(key, entries[key]) for key in found[:limit]]

    async def update(self, changes: Mapping[bytes, bytes | None], mark: bytes) -> None:
        assert self._version >= 0, "an index whose last update failed must be opened before the next one"
        assert len(mark) <= MARK_LENGTH_MAX
        assert all(value is None or len(value) == SLOT_LENGTH for value in changes.values())
        self._disk.update_count += 1
        version, self._version = self._version, -1
        changes = self._disk.last_changes = dict(changes)
        if self._disk.gate is not None:
            await self._disk.gate.wait()
        await asyncio.sleep(0)
        fault = self._disk.faults.pop(0) if self._disk.faults else ""
        if fault == "conflict":
            self._stored.version += 1  # Another writer has written, without changing any entry.
        if self._stored.version != version:
            raise BadOffsetError(self._name, expected=version, actual=self._stored.version)
        if fault == "before":
            raise StorageError("injected failure of an index update")
        after = dict(self._stored.entries)
        for key, value in changes.items():
            if value is None:
                after.pop(key, None)
            else:
                after[key] = value
        self._stored.entries, self._stored.mark = after, mark
        self._stored.version += 1
        if fault == "after":
            raise StorageError("injected failure after an index update")
        self._entries, self.mark, self._version = after, mark, self._stored.version
        self.generation += 1


class IndexedIncarnations(Incarnations):
    """Incarnations whose tables have indexes on `disk`, or real ones over `storages` with `is_real`."""

    disk: IndexDisk
    is_real = False

    def new(self) -> ContainerOpening:
        """See `Incarnations.new`."""
        opening = super().new()
        cache = self.cache

        def open_index(container_storage: ContainerStorage, segment: Segment) -> SortedIndex:
            if not self.is_real:
                return FaultyIndex(self.disk, segment.name)
            storage = self.storages.setdefault(segment.name, MemoryIndexStorage(segment.name))
            settings = IndexSettings(page_bytes=512)
            return BTreeIndex(storage, name=segment.name, value_length=SLOT_LENGTH, cache=cache, settings=settings)

        opening.open_table_index = open_index  # type: ignore[assignment]
        return opening

    @cached_property
    def storages(self) -> dict[str, MemoryIndexStorage]:
        """What real indexes are stored in."""
        return {}

    def fail_updates(self, faults: Sequence[str]) -> None:
        """Let the next updates of indexes fail: see `IndexDisk.faults`."""
        self.disk.faults = list(faults)
        for storage in self.storages.values():
            storage._faults.clear()
            for fault in faults:
                error = BadOffsetError(storage.name, expected=0, actual=1) if fault == "conflict" else None
                storage.fail("append", has_effect=fault == "after", error=error)
