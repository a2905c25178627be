"""The table that stores the records of long-term storage, and transactions over it.

`MetadataTable` is the interface. It is implemented by a table segment of the container, for user segments, and by
`MemoryMetadataTable`, for the container's own segments (whose records cannot be stored in themselves) and for tests.

Rules for all users:

- A transaction writes the segment record of every segment whose chunk records it reads or writes. Chunk records change
  only together with their segment's record, so its version guards them all.
- Records to be removed are first written as inactive in the same put, then removed. If the removal fails or never
  happens, the record is nevertheless dead.

Source: PDP-34; segment-store 8.4, R8.1 to R8.4.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    StorageConflictError,
    TableKeyMissingError,
    TableKeyVersionError,
)
from penstock.model.segments import (
    VERSION_ABSENT,
    VERSION_ANY,
    TableEntry,
    TablePage,
    TableRemoval,
    TableUpdate,
)
from penstock.segmentstore.tier2.chunk_run import ChunkRun, describe_key, run_of
from penstock.segmentstore.tier2.records import (
    ChunkRecord,
    Extent,
    Record,
    StoredSegmentRecord,
    check_extent,
    decode_record,
    encode_record,
)
from penstock.segmentstore.tier2.sorted_keys import SortedKeys


class MetadataTable(Protocol):
    """Versioned records by key. Fenced: `commit` of an incarnation that lost its container never takes effect."""

    async def get(self, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        """Return the entry of each key, in order; None where the key is absent."""

    async def commit(self, updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> Sequence[int]:
        """Apply `updates` as one conditional batch, all or none, durably; then remove keys. Return the new versions.

        The removed keys are already dead: once the updates are applied a failed removal may be ignored, and must not be
        raised as a failed condition.

        Raises:
            TableKeyVersionError, TableKeyMissingError: a condition of `updates` did not hold; nothing was applied.
            PenstockError: after any other error the outcome is unknown.
        """

    async def page(self, *, limit: int, token: bytes = b"", first: bytes = b"", last: bytes | None = None) -> TablePage:
        """Return up to `limit` live entries after `token` and in [`first`, `last`], in ascending order of keys.

        Only an empty page means that there are no more. Entries that exist throughout are returned exactly once.
        """


Persist = Callable[[Sequence[TableUpdate], Sequence[TableRemoval]], Awaitable[None]]


class MemoryMetadataTable:
    """`MetadataTable` in memory, optionally made durable by its owner.

    `persist` is awaited after the conditions were checked and before anything is visible; commits are serialised. If it
    raises, nothing changes here, although the commit may be durable. So the next `persist` also gets the present values
    of these keys, and overwrites them.
    """

    def __init__(self, entries: Iterable[TableEntry] = (), *, persist: Persist | None = None) -> None:
        self._entries = {entry.key: entry for entry in entries}
        self._keys = SortedKeys(self._entries)
        self._version = max((entry.version for entry in self._entries.values()), default=-1)
        self._persist = persist
        # Keys of failed commits: their durable values may differ from those in memory.
        self._doubtful_keys: dict[bytes, None] = {}
        self._lock = asyncio.Lock()

    def entries(self) -> Sequence[TableEntry]:
        """Return all entries, sorted by key: a snapshot to create a new table from."""
        return [self._entries[key] for key in self._keys.from_key(b"")]

    async def get(self, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        """See `MetadataTable.get`."""
        return [self._entries.get(key) for key in keys]

    async def commit(self, updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> Sequence[int]:
        """See `MetadataTable.commit`."""
        async with self._lock:
            for update in updates:
                self._check(update)
            if self._persist is not None:
                await self._make_durable(self._persist, updates, removals)
            versions: list[int] = []
            for update in updates:
                self._version += 1
                key = bytes(update.key)
                if key not in self._entries:
                    self._keys.add(key)
                self._entries[key] = TableEntry(key, bytes(update.value), self._version)
                versions.append(self._version)
            for removal in removals:
                if self._entries.pop(removal.key, None) is not None:
                    self._keys.discard(removal.key)
            return versions

    async def page(self, *, limit: int, token: bytes = b"", first: bytes = b"", last: bytes | None = None) -> TablePage:
        """See `MetadataTable.page`."""
        found: list[TableEntry] = []
        for key in self._keys.from_key(max(token, first)):
            if len(found) == limit or (last is not None and key > last):
                break
            if key > token or not token:
                found.append(self._entries[key])
        return TablePage(found, found[-1].key if found else token)

    async def _make_durable(
        self, persist: Persist, updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]
    ) -> None:
        changed = [*(bytes(update.key) for update in updates), *(removal.key for removal in removals)]
        updates, removals = list(updates), list(removals)
        for key in self._doubtful_keys:
            if key not in changed:
                entry = self._entries.get(key)
                if entry is None:
                    removals.append(TableRemoval(key))
                else:
                    updates.append(TableUpdate(key, entry.value))
        self._doubtful_keys.update(dict.fromkeys(changed))
        await persist(updates, removals)
        self._doubtful_keys.clear()

    def _check(self, update: TableUpdate) -> None:
        if update.version == VERSION_ANY:
            return
        entry = self._entries.get(update.key)
        if entry is None and update.version != VERSION_ABSENT:
            raise TableKeyMissingError("storage metadata", key=update.key)
        if entry is not None and entry.version != update.version:
            raise TableKeyVersionError(
                "storage metadata", key=update.key, expected=update.version, actual=entry.version
            )


@dataclass(frozen=True, slots=True)
class VersionedRecord:
    """A record as read: None and `VERSION_ABSENT` if it does not exist."""

    record: Record | None
    version: int


class RecordCache:
    """The latest records of segments owned by one epoch; least recently used ones are dropped.

    Only the owner changes a segment's records, and it does so through this cache, so its contents are current until a
    later epoch takes over; from then on no commit succeeds. Records of segments that another epoch owns are not cached.

    A commit whose outcome is unknown may still take effect later. Its segments are in doubt: they are read only from
    the table until another commit on them succeeds, after which the late one can no longer apply.
    """

    def __init__(self, records_max: int) -> None:
        self._records_max = records_max
        self._doubtful: dict[str, None] = {}
        self._is_all_doubtful = False
        self._records: OrderedDict[bytes, VersionedRecord] = OrderedDict()
        self._keys = SortedKeys()
        #: Incremented by every commit, so that an earlier read does not restore an older record.
        self.change_count: int = 0
        #: Commits so far whose outcome was unknown.
        self.doubt_count: int = 0

    def get(self, key: bytes) -> VersionedRecord | None:
        """Return the cached record of `key`; None if not cached."""
        found = self._records.get(key)
        if found is not None:
            self._records.move_to_end(key)
        return found

    def holding(self, run: ChunkRun, position: int) -> VersionedRecord | None:
        """Return the cached record of `run` that holds `position`; None if not cached."""
        key = next(self._keys.from_key(run.key(position)), b"")
        found = self._records.get(key)
        if found is None or not isinstance(found.record, Extent) or not _holds(found.record, run, position):
            return None
        self._records.move_to_end(key)
        return found

    def put(self, key: bytes, versioned: VersionedRecord) -> None:
        """Cache the latest record of `key`."""
        if key not in self._records:
            self._keys.add(key)
        self._records[key] = versioned
        self._records.move_to_end(key)
        while len(self._records) > self._records_max:
            self._keys.discard(self._records.popitem(last=False)[0])

    def forget(self, keys: Iterable[bytes]) -> None:
        """Remove `keys` from the cache."""
        self.change_count += 1
        for key in keys:
            if self._records.pop(key, None) is not None:
                self._keys.discard(key)

    def doubt(self, segment: str) -> None:
        """Note that a change of `segment` may take effect at any time. With too many of these all are in doubt."""
        self.doubt_count += 1
        self._doubtful[segment] = None
        self._is_all_doubtful = self._is_all_doubtful or len(self._doubtful) > self._records_max
        if self._is_all_doubtful:
            self._doubtful.clear()

    def settle(self, segment: str) -> None:
        """Note that a commit on `segment` succeeded."""
        self._doubtful.pop(segment, None)

    def is_doubtful(self, segment: str) -> bool:
        """Return whether the records of `segment` may change at any time."""
        return self._is_all_doubtful or segment in self._doubtful

    def __len__(self) -> int:
        return len(self._records)


class MetadataTransaction:
    """Remembers the versions of records read, stages writes, and commits them by one conditional put.

    A transaction is used by one task, once. Records returned are immutable values, so staged changes are not visible to
    others before `commit`. A segment's record is read before those of its chunks.
    """

    def __init__(self, table: MetadataTable, *, epoch: int, cache: RecordCache | None = None) -> None:
        self._table = table
        self._epoch = epoch
        self._cache = cache
        # False once the transaction met a segment of another epoch or in doubt: records are then read only from the
        # table.
        self._is_owner = True
        self._read: dict[bytes, VersionedRecord] = {}
        self._staged: dict[bytes, Record] = {}
        self._removed: dict[bytes, None] = {}
        self._added: list[TableUpdate] = []

    async def segment(self, name: str) -> StoredSegmentRecord | None:
        """Return a segment's record, including staged changes. Raises `CorruptionError`."""
        if self._cache is not None and self._cache.is_doubtful(name):
            self._is_owner = False
        record = await self._record(name.encode())
        if record is not None and not isinstance(record, StoredSegmentRecord):
            raise CorruptionError(describe_key(record.key), 1, "it is a chunk's record, a segment's was expected")
        if record is not None and record.owner_epoch != self._epoch:
            self._is_owner = False
        return record

    async def extent(self, run: ChunkRun, start: int) -> Extent | None:
        """Return the extent of `run` that begins at `start`, including staged changes; None if there is no live one.

        Raises `CorruptionError`.
        """
        return _live_extent(await self._record(run.key(start)))

    async def extents_down(
        self, run: ChunkRun, position: int, *, limit: int, is_remembered: bool = True
    ) -> list[Extent]:
        """Return up to `limit` extents of `run`, from the one that holds `position` downwards.

        As of one moment, and without staged changes. Empty if no live extent holds `position`; fewer than `limit` if
        there are dead records between them, or before the first. `is_remembered`: the results are cached; not for scans
        of very many. Raises `CorruptionError`.
        """
        change_count = self._cache.change_count if self._cache is not None else 0
        found: list[Extent] = []
        first, last = run.key(position), run.last_key
        while not found and first <= last:
            page = await self._table.page(limit=limit, first=first, last=last)
            if not page.entries:
                break
            for entry in page.entries:
                first = entry.key + b"\0"
                extent = _live_extent(decode_record(entry.key, entry.value))
                if extent is None:
                    continue  # A removal that never happened. Joins leave such records between others.
                if not _holds(extent, run, position):
                    return found
                position = extent.start - 1
                found.append(extent)
                if is_remembered:
                    loaded = VersionedRecord(extent, entry.version)
                    self._read.setdefault(entry.key, loaded)
                    self._remember(entry.key, loaded, change_count)
        return found

    async def extent_holding(self, run: ChunkRun, position: int) -> Extent | None:
        """Return the extent of `run` that holds `position`; as `extents_down`, but from the cache if possible."""
        known = self.known_extent(run, position)
        if known is not None:
            return known
        return next(iter(await self.extents_down(run, position, limit=1)), None)

    def known_extent(self, run: ChunkRun, position: int) -> Extent | None:
        """Return the cached extent of `run` that holds `position`, if any. Nothing of the run may be staged."""
        known = self._read.get(run.key(position))
        if (known is None or known.record is None) and self._cache is not None and self._is_owner:
            known = self._cache.holding(run, position)
        if known is None or known.record is None:
            return None
        return _live_extent(self._read.setdefault(known.record.key, known).record)

    async def load_first_extents(self, runs: Sequence[ChunkRun], *, is_remembered: bool = True) -> None:
        """Cache the first records of several runs, by one table lookup. Raises `CorruptionError`."""
        keys = [run.key(0) for run in runs if self.known_extent(run, 0) is None]
        if not keys:
            return
        change_count = self._cache.change_count if self._cache is not None else 0
        for entry in await self._table.get(keys):
            if entry is None:
                continue
            loaded = VersionedRecord(decode_record(entry.key, entry.value), entry.version)
            self._read.setdefault(entry.key, loaded)
            if is_remembered:
                self._remember(entry.key, loaded, change_count)

    def put(self, record: Record) -> None:
        """Stage a record. It must have been read in this transaction, unless it is of a new chunk."""
        key = record.key
        if key not in self._read:
            if isinstance(record, StoredSegmentRecord):
                raise InvalidArgumentError(f"record {record.name!r} must be read before it is written")
            self._read[key] = VersionedRecord(None, VERSION_ABSENT)
        self._staged[key] = record

    def remove(self, record: Record) -> None:
        """Stage the removal of a record: it is written as inactive, then removed."""
        dead = replace(record, is_active=False)
        self.put(replace(dead, block_checksums=()) if isinstance(dead, ChunkRecord) else dead)
        self._removed[record.key] = None

    def add(self, key: bytes, value: bytes) -> None:
        """Stage a new entry of another kind, which is not cached."""
        self._added.append(TableUpdate(key, value, VERSION_ABSENT))

    async def commit(self) -> None:
        """Write the staged changes, all or nothing. Afterwards they are in the cache.

        Raises:
            StorageConflictError: a record is newer than the one read; nothing was applied.
            PenstockError: after any other error, or a cancellation, the outcome is unknown.

        After any error the records read and staged are removed from the cache.
        """
        updates = [
            TableUpdate(key, encode_record(record), self._read[key].version) for key, record in self._staged.items()
        ]
        updates += self._added
        removals = [TableRemoval(key) for key in self._removed]
        try:
            versions = await self._table.commit(updates, removals)
        except BaseException as error:
            self.forget()
            if isinstance(error, TableKeyVersionError | TableKeyMissingError):
                run = run_of(error.key)
                name = run.segment if run is not None else error.key.decode(errors="replace")
                raise StorageConflictError(name, "it was changed concurrently; nothing was applied") from error
            if self._cache is not None:
                for name in self._staged_segments():
                    self._cache.doubt(name)
            raise
        if self._cache is not None:
            self._cache.forget(self._staged)
            for name in self._staged_segments():
                self._cache.settle(name)
            for (key, record), version in zip(self._staged.items(), versions, strict=False):
                if key not in self._removed:
                    self._cache.put(key, VersionedRecord(record, version))

    def forget(self) -> None:
        """Remove everything this transaction touched from the cache."""
        if self._cache is not None:
            self._cache.forget([*self._read, *self._staged])

    def _staged_segments(self) -> list[str]:
        return [record.name for record in self._staged.values() if isinstance(record, StoredSegmentRecord)]

    async def _record(self, key: bytes) -> Record | None:
        if key in self._staged:
            return self._staged[key]
        known = self._read.get(key)
        if known is None and self._cache is not None and self._is_owner:
            known = self._cache.get(key)
        if known is None:
            known = await self._load(key)
        self._read[key] = known
        return known.record

    async def _load(self, key: bytes) -> VersionedRecord:
        change_count = self._cache.change_count if self._cache is not None else 0
        (entry,) = await self._table.get([key])
        if entry is None:
            # Not cached: the cache would grow with every name that is requested.
            return VersionedRecord(None, VERSION_ABSENT)
        record = decode_record(key, entry.value)
        loaded = VersionedRecord(record, entry.version)
        if not isinstance(record, StoredSegmentRecord) or record.owner_epoch == self._epoch:
            self._remember(key, loaded, change_count)
        return loaded

    def _remember(self, key: bytes, loaded: VersionedRecord, change_count: int) -> None:
        """Cache a record that was read, unless it may change, or has changed since."""
        if self._cache is not None and self._is_owner and self._cache.change_count == change_count:
            self._cache.put(key, loaded)


def _holds(extent: Extent, run: ChunkRun, position: int) -> bool:
    return extent.run == run and extent.start <= position < extent.start + extent.length


def _live_extent(record: Record | None) -> Extent | None:
    """Return the checked record of a chunk or a merged run; None if it does not exist or is dead."""
    if record is None:
        return None
    if isinstance(record, StoredSegmentRecord):
        raise CorruptionError(describe_key(record.key), 1, "it is a segment's record, a chunk's was expected")
    if not record.is_active:
        return None
    check_extent(record)
    return record
