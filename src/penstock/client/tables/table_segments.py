"""`TableSegments`: the segments of one key-value table, and requests to them for any number of keys.

Keys and values are bytes here, and a segment's errors become the table's. `Table` is the users' interface.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.client.common.retry import Backoff
from penstock.client.controller.stream_segments import SegmentMap
from penstock.client.transport.cluster import Cluster
from penstock.model.errors import (
    InvalidArgumentError,
    NoSuchSegmentError,
    NoSuchTableError,
    OutcomeUnknownError,
    PenstockError,
)
from penstock.model.routing import table_key_hash
from penstock.model.segments import TableEntry, TableRemoval, TableUpdate
from penstock.model.tables import TableConfig
from penstock.runtime.bulk import for_each

#: The wire's overhead for a key and a value.
_ENTRY_HEADER_BYTES = 20

Change = TableUpdate | TableRemoval


@dataclass(frozen=True, slots=True)
class _Batch:
    """Changes of one segment, of one kind, applied atomically. `indexes`: their places in the caller's list."""

    segment: str
    changes: Sequence[Change]
    indexes: Sequence[int]


class TableSegments:
    """See the module."""

    def __init__(self, cluster: Cluster, name: str, config: TableConfig, segments: SegmentMap) -> None:
        if len(segments) != config.partition_count:
            raise InvalidArgumentError(
                f"table {name} has {config.partition_count} partitions, and the controller names {len(segments)}"
            )
        self.name = name
        self.config = config
        self._cluster = cluster
        self._map = segments
        #: Full names, in the order of the ranges of hashes.
        self.names: Sequence[str] = [found.name for found in segments.segments]

    def segment_of(self, key: bytes) -> str:
        """Return the segment of a key, given its first part or more."""
        if len(self.names) == 1:
            return self.names[0]
        return self._map.segment_of(table_key_hash(key[: self.config.primary_key_length])).name

    @contextmanager
    def of_table(self) -> Iterator[None]:
        """Report a missing segment as a missing table."""
        try:
            yield
        except NoSuchSegmentError as error:
            raise NoSuchTableError(f"table {self.name} no longer exists: {error}") from error

    async def get(self, keys: Sequence[bytes]) -> list[TableEntry | None]:
        """Return the entry of each key, in order, None where there is none."""
        count_max = self._cluster.settings.table_read_key_count_max
        parts: list[tuple[str, Sequence[int]]] = []
        for segment, indexes in self._by_segment(keys).items():
            for start in range(0, len(indexes), count_max):
                parts.append((segment, indexes[start : start + count_max]))
        found: list[TableEntry | None] = [None] * len(keys)

        async def read(part: tuple[str, Sequence[int]]) -> None:
            segment, indexes = part
            entries = await self._cluster.segments.table_get(segment, [keys[index] for index in indexes])
            for index, entry in zip(indexes, entries, strict=True):
                found[index] = entry

        with self.of_table():
            if len(parts) == 1:
                await read(parts[0])
            else:
                _raise_first(await for_each(parts, read, self._cluster.settings.table_request_count_max))
        return found

    async def apply(self, changes: Sequence[Change], *, is_whole: bool) -> list[int]:
        """Apply changes of one kind; return the new versions of the entries put, in order.

        They are applied atomically if `is_whole`. Otherwise batches of different segments may be applied while others
        fail, those of one segment in order up to the first that fails.
        """
        batches = list(self._batches(changes))
        if is_whole and len(batches) > 1:
            settings = self._cluster.settings
            raise InvalidArgumentError(
                f"table {self.name}: these {len(changes)} changes cannot be made atomically. They need keys of one "
                f"partition, such as keys with the same first {self.config.primary_key_length} bytes, each key once, "
                f"at most {settings.table_batch_key_count_max} keys (table_batch_key_count_max) and "
                f"{settings.table_batch_bytes_max} bytes (table_batch_bytes_max)"
            )
        versions = [0] * len(changes)
        by_segment: dict[str, list[_Batch]] = {}
        for batch in batches:
            by_segment.setdefault(batch.segment, []).append(batch)

        async def apply_all(segment: str) -> None:
            for batch in by_segment[segment]:
                for index, version in zip(batch.indexes, await self._apply(batch), strict=True):
                    versions[index] = version

        with self.of_table():
            if len(by_segment) == 1:
                await apply_all(next(iter(by_segment)))
            else:
                _raise_first(
                    await for_each(list(by_segment), apply_all, self._cluster.settings.table_request_count_max)
                )
        return versions

    async def _apply(self, batch: _Batch) -> Sequence[int]:
        """Apply the changes of a batch, exactly once.

        After a lost reply the outcome is unknown. A batch with a version may be sent again: if it was applied before,
        that version no longer exists. If it is rejected then, the first request may be the cause. A batch without
        versions is sent once: a copy of it could arrive late, after other clients have changed the key.
        """
        is_repeatable = any(change.version >= 0 for change in batch.changes)
        backoff = Backoff(self._cluster.settings, self._cluster.rng)
        unanswered: OutcomeUnknownError | None = None
        while True:
            try:
                return await self._send(batch)
            except OutcomeUnknownError as error:
                if not is_repeatable:
                    raise self._unknown(batch, "its only attempt got no answer") from error
                unanswered = error
                await backoff.pause(error)
            except PenstockError as error:
                if unanswered is None:
                    raise
                raise self._unknown(batch, f"an attempt got no answer, and a later one failed: {error}") from unanswered

    async def _send(self, batch: _Batch) -> Sequence[int]:
        segments = self._cluster.segments
        updates = [change for change in batch.changes if isinstance(change, TableUpdate)]
        if updates:
            return await segments.table_put(batch.segment, updates)
        removals = [change for change in batch.changes if isinstance(change, TableRemoval)]
        await segments.table_remove(batch.segment, removals)
        return [0] * len(removals)

    def _unknown(self, batch: _Batch, why: str) -> OutcomeUnknownError:
        first = batch.changes[0]
        what = "put" if isinstance(first, TableUpdate) else "remove"
        more = f" and {len(batch.changes) - 1} more" if len(batch.changes) > 1 else ""
        return OutcomeUnknownError(
            f"table {self.name}: {what} key {first.key!r}{more}: {why}; the change may take effect, now or later: "
            "read the key to check"
        )

    def _batches(self, changes: Sequence[Change]) -> Iterator[_Batch]:
        settings = self._cluster.settings
        for segment, indexes in self._by_segment([change.key for change in changes]).items():
            part: list[int] = []
            part_bytes = 0
            keys: set[bytes] = set()
            for index in indexes:
                change = changes[index]
                length_bytes = _ENTRY_HEADER_BYTES + len(change.key)
                if isinstance(change, TableUpdate):
                    length_bytes += len(change.value)
                is_full = len(part) == settings.table_batch_key_count_max or change.key in keys
                if part and (is_full or part_bytes + length_bytes > settings.table_batch_bytes_max):
                    yield _Batch(segment, [changes[index] for index in part], part)
                    part, part_bytes, keys = [], 0, set()
                part.append(index)
                part_bytes += length_bytes
                keys.add(change.key)
            yield _Batch(segment, [changes[index] for index in part], part)

    def _by_segment(self, keys: Iterable[bytes]) -> Mapping[str, Sequence[int]]:
        indexes: dict[str, list[int]] = {}
        for index, key in enumerate(keys):
            indexes.setdefault(self.segment_of(key), []).append(index)
        return indexes


def _raise_first(results: Sequence[PenstockError | None]) -> None:
    for result in results:
        if result is not None:
            raise result
