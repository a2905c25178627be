"""The table that records of long-term storage live in, and transactions over it.

`MetadataTable` is the seam: a table segment of the container for user segments, `MemoryMetadataTable` for the
container's own segments (whose records cannot lie in themselves) and for tests.

Rules that every user keeps:

- A transaction writes the segment record of every segment whose chunk records it reads or writes. Chunk records change
  only together with their segment's record, so its version guards them all.
- Records to be removed are first written as inactive in the same put, then removed. If the removal fails or is never
  done, the record is dead all the same.

Source: PDP-34; segment store specification, section 8.4, rules R8.1 to R8.4.
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
from penstock.segmentstore.tier2.records import (
    ChunkRecord,
    Record,
    SegmentRecord,
    check_chunk,
    decode_record,
    encode_record,
)


class MetadataTable(Protocol):
    """Versioned records by key. Fenced: `commit` of an incarnation that lost its container never takes effect."""

    async def get(self, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        """Return the entry of each key, in order, None where the key is absent."""

    async def commit(self, updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> Sequence[int]:
        """Apply `updates` as one conditional batch, all or none, durably; then remove keys. Return the new versions.

        The removals are of keys that are dead already: once the updates are applied a removal that fails may be
        ignored, and must not be raised as a failed condition.

        Raises:
            TableKeyVersionError, TableKeyMissingError: a condition of `updates` did not hold; nothing was applied.
            PenstockError: any other one leaves the outcome unknown.
        """

    async def page(self, *, limit: int, token: bytes = b"") -> TablePage:
        """Return up to `limit` live entries after `token`. Entries that stay are seen exactly once."""


Persist = Callable[[Sequence[TableUpdate], Sequence[TableRemoval]], Awaitable[None]]


class MemoryMetadataTable:
    """`MetadataTable` in memory, optionally made durable by its owner.

    `persist` is awaited after the conditions were checked and before anything is visible; commits follow each other.
    If it raises, nothing changes here. Because records are absolute, a commit that it made durable although it
    raised is overwritten by the next one.
    """

    def __init__(self, entries: Iterable[TableEntry] = (), *, persist: Persist | None = None) -> None:
        self._entries = {entry.key: entry for entry in entries}
        self._version = max((entry.version for entry in self._entries.values()), default=-1)
        self._persist = persist
        self._lock = asyncio.Lock()

    def entries(self) -> Sequence[TableEntry]:
        """Return all entries, sorted by key: a snapshot to be given to a new table."""
        return [self._entries[key] for key in sorted(self._entries)]

    async def get(self, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        """See `MetadataTable.get`."""
        return [self._entries.get(key) for key in keys]

    async def commit(self, updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> Sequence[int]:
        """See `MetadataTable.commit`."""
        async with self._lock:
            for update in updates:
                self._check(update)
            if self._persist is not None:
                await self._persist(updates, removals)
            versions: list[int] = []
            for update in updates:
                self._version += 1
                self._entries[bytes(update.key)] = TableEntry(bytes(update.key), bytes(update.value), self._version)
                versions.append(self._version)
            for removal in removals:
                self._entries.pop(removal.key, None)
            return versions

    async def page(self, *, limit: int, token: bytes = b"") -> TablePage:
        """See `MetadataTable.page`."""
        keys = sorted(key for key in self._entries if key > token)[:limit]
        return TablePage([self._entries[key] for key in keys], keys[-1] if keys else token)

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
    """A record as read: None and `VERSION_ABSENT` when there is none."""

    record: Record | None
    version: int


class RecordCache:
    """Records of segments owned by one epoch, the latest of each, least recently used ones dropped.

    Only the owner changes a segment's records, and it does so through this cache, so what is in here is current until
    a later epoch takes over; from then on no commit succeeds. Records of segments that another epoch owns stay out.

    A commit whose outcome is unknown may still take effect later. Its segments are in doubt: the table alone is asked
    about them until another commit on them succeeds, which the late one cannot survive.
    """

    def __init__(self, records_max: int) -> None:
        self._records_max = records_max
        self._doubtful: dict[str, None] = {}
        self._is_all_doubtful = False
        self._records: OrderedDict[str, VersionedRecord] = OrderedDict()
        #: Grows with every commit, so that a read begun before it does not bring an older record back.
        self.change_count: int = 0

    def get(self, key: str) -> VersionedRecord | None:
        """Return what is known about `key`, None if nothing."""
        found = self._records.get(key)
        if found is not None:
            self._records.move_to_end(key)
        return found

    def put(self, key: str, versioned: VersionedRecord) -> None:
        """Remember the latest record of `key`."""
        self._records[key] = versioned
        self._records.move_to_end(key)
        while len(self._records) > self._records_max:
            self._records.popitem(last=False)

    def forget(self, keys: Iterable[str]) -> None:
        """Know nothing about `keys` any more."""
        self.change_count += 1
        for key in keys:
            self._records.pop(key, None)

    def doubt(self, segment: str) -> None:
        """Note that a change of `segment` may take effect at any time. With too many of these all are in doubt."""
        self._doubtful[segment] = None
        self._is_all_doubtful = self._is_all_doubtful or len(self._doubtful) > self._records_max
        if self._is_all_doubtful:
            self._doubtful.clear()

    def settle(self, segment: str) -> None:
        """Note that a commit on `segment` succeeded."""
        self._doubtful.pop(segment, None)

    def is_doubtful(self, segment: str) -> bool:
        """Say whether the records of `segment` may change at any time."""
        return self._is_all_doubtful or segment in self._doubtful

    def __len__(self) -> int:
        return len(self._records)


class MetadataTransaction:
    """Reads with their versions remembered, writes staged, one conditional put.

    One transaction is used by one task, once. Records handed out are immutable values, so nothing that a transaction
    stages is visible to anybody before `commit`. A segment's record is read before those of its chunks.
    """

    def __init__(self, table: MetadataTable, *, epoch: int, cache: RecordCache | None = None) -> None:
        self._table = table
        self._epoch = epoch
        self._cache = cache
        # False once the transaction met a segment of another epoch or in doubt: records then come from the table alone.
        self._is_owner = True
        self._read: dict[str, VersionedRecord] = {}
        self._staged: dict[str, Record] = {}
        self._removed: dict[str, None] = {}

    async def segment(self, name: str) -> SegmentRecord | None:
        """Return a segment's record, with what this transaction staged. Raises `CorruptionError`."""
        if self._cache is not None and self._cache.is_doubtful(name):
            self._is_owner = False
        record = await self._record(name)
        if record is not None and not isinstance(record, SegmentRecord):
            raise CorruptionError(f"storage metadata record {name!r}", 1, "it is a chunk's, a segment's was expected")
        if record is not None and record.owner_epoch != self._epoch:
            self._is_owner = False
        return record

    async def chunk(self, name: str) -> ChunkRecord | None:
        """Return a live chunk's record, with what this transaction staged. Raises `CorruptionError`."""
        record = await self._record(name)
        if record is None:
            return None
        if not isinstance(record, ChunkRecord):
            raise CorruptionError(f"storage metadata record {name!r}", 1, "it is a segment's, a chunk's was expected")
        if not record.is_active:
            return None
        check_chunk(record)
        return record

    def put(self, record: Record) -> None:
        """Stage a record. It must have been read in this transaction, unless it is of a chunk that is new."""
        if record.name not in self._read:
            if isinstance(record, SegmentRecord):
                raise InvalidArgumentError(f"record {record.name!r} must be read before it is written")
            self._read[record.name] = VersionedRecord(None, VERSION_ABSENT)
        self._staged[record.name] = record

    def remove(self, record: Record) -> None:
        """Stage a record's end: it is put as inactive, then removed."""
        dead = replace(record, is_active=False)
        self.put(replace(dead, block_checksums=()) if isinstance(dead, ChunkRecord) else dead)
        self._removed[record.name] = None

    async def commit(self) -> None:
        """Write what was staged, all or nothing. Afterwards the cache has it.

        Raises:
            StorageConflictError: a record is newer than the one read; nothing was applied.
            PenstockError: any other one, as well as a cancellation, leaves the outcome unknown.

        Whatever is raised, the cache then knows nothing about the records read and staged.
        """
        updates = [
            TableUpdate(name.encode(), encode_record(record), self._read[name].version)
            for name, record in self._staged.items()
        ]
        removals = [TableRemoval(name.encode()) for name in self._removed]
        try:
            versions = await self._table.commit(updates, removals)
        except BaseException as error:
            self.forget()
            if isinstance(error, TableKeyVersionError | TableKeyMissingError):
                key = error.key.decode(errors="replace")
                raise StorageConflictError(key, "somebody else changed it meanwhile; nothing was applied") from error
            if self._cache is not None:
                for name in self._staged_segments():
                    self._cache.doubt(name)
            raise
        if self._cache is not None:
            self._cache.forget(self._staged)
            for name in self._staged_segments():
                self._cache.settle(name)
            for (name, record), version in zip(self._staged.items(), versions, strict=True):
                if name not in self._removed:
                    self._cache.put(name, VersionedRecord(record, version))

    def forget(self) -> None:
        """Drop everything this transaction touched from the cache."""
        if self._cache is not None:
            self._cache.forget([*self._read, *self._staged])

    def _staged_segments(self) -> list[str]:
        return [record.name for record in self._staged.values() if isinstance(record, SegmentRecord)]

    async def _record(self, name: str) -> Record | None:
        if name in self._staged:
            return self._staged[name]
        known = self._read.get(name)
        if known is None and self._cache is not None and self._is_owner:
            known = self._cache.get(name)
        if known is None:
            known = await self._load(name)
        self._read[name] = known
        return known.record

    async def _load(self, name: str) -> VersionedRecord:
        change_count = self._cache.change_count if self._cache is not None else 0
        (entry,) = await self._table.get([name.encode()])
        if entry is None:
            # Not remembered: the cache would grow with every name that somebody asks for.
            return VersionedRecord(None, VERSION_ABSENT)
        record = decode_record(name, entry.value)
        loaded = VersionedRecord(record, entry.version)
        is_owner = self._is_owner and not (isinstance(record, SegmentRecord) and record.owner_epoch != self._epoch)
        if self._cache is not None and is_owner and self._cache.change_count == change_count:
            self._cache.put(name, loaded)
        return loaded
