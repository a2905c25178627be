"""`Table`: a key-value table, with conditional changes, scans and watches.

The stored format is that of Pravega's Java client: see `TableConfig` for the keys, and `TableKeys` for their form in
the application. A serializer encodes the values.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.client.common.deadline import Deadline, within
from penstock.client.common.life_cycle import LifeCycle
from penstock.client.common.serializers import Serializer
from penstock.client.controller.stream_segments import SegmentMap
from penstock.client.tables.table_keys import Entry, TableKeys
from penstock.client.tables.table_scan import KeySpan, entry_pages, key_pages, span_of
from penstock.client.tables.table_segments import Change, TableSegments
from penstock.client.tables.table_watch import KeyChange, TableWatch
from penstock.client.transport.cluster import Cluster
from penstock.model.errors import (
    InvalidArgumentError,
    InvalidNameError,
    MetadataConflictError,
    TableConditionError,
    TableKeyMissingError,
)
from penstock.model.names import check_scope_name, check_user_name
from penstock.model.segments import (
    TABLE_VALUE_LENGTH_MAX,
    VERSION_ABSENT,
    VERSION_ANY,
    TableEntry,
    TableRemoval,
    TableUpdate,
)
from penstock.model.tables import TableConfig

if TYPE_CHECKING:
    from typing import Self

Key = TypeVar("Key")
Value = TypeVar("Value")
Default = TypeVar("Default")


def split_table_name(table: str) -> tuple[str, str]:
    """Split ``scope/table`` into its two checked names. Raises `InvalidNameError`."""
    scope, slash, name = table.partition("/")
    if not slash:
        raise InvalidNameError(f"table {table!r}: write it as 'scope/table'")
    return check_scope_name(scope), check_user_name("table", name)


@dataclass(frozen=True, slots=True)
class TableChange(Generic[Key, Value]):
    """A change reported by a watch: `entry` is the current entry of `key`, None if it was removed."""

    key: Key
    entry: Entry[Key, Value] | None


async def open_table(
    cluster: Cluster, table: str, keys: TableKeys[Key], values: Serializer[Value], owner: LifeCycle
) -> Table[Key, Value]:
    """Look up a table. Raises `NoSuchTableError`."""
    scope, name = split_table_name(table)
    controller = cluster.controller
    with within(f"open table {table}", cluster.settings.retry_time_max_s, "retry_time_max_s"):
        config = await controller.table_config(scope, name)
        found = SegmentMap(await controller.table_segments(scope, name))
    opened = Table(cluster, TableSegments(cluster, table, config, found), keys, values)
    opened.open_life(owner)
    return opened


class TableChanges(Generic[Key, Value]):
    """Iterates over the changes of a table, until closed. After an error, iteration can be continued."""

    def __init__(self, watch: TableWatch | None, change_of: Callable[[KeyChange], TableChange[Key, Value]]) -> None:
        self._watch = watch
        self._change_of = change_of

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TableChange[Key, Value]:
        if self._watch is None:
            raise StopAsyncIteration
        return self._change_of(await self._watch.next_change())


class Table(LifeCycle, Generic[Key, Value]):
    """A key-value table. Made by `Client.table`; any number of calls may be in progress at once.

    Every key has a *version*, which grows with each write and is never reused. A change with a version is applied if
    the key has that version; otherwise `TableKeyVersionError` or `TableKeyMissingError` is raised, and nothing changes.
    Both are subclasses of `TableConditionError`. `OutcomeUnknownError` means that the reply to a change was lost: it
    may be applied or not. A change with a version is retried until there is a reply, so the error is rare there; other
    changes are sent once.

    All methods raise `NoSuchTableError` once the table is deleted, and `ClosedError`.
    """

    def __init__(
        self, cluster: Cluster, segments: TableSegments, keys: TableKeys[Key], values: Serializer[Value]
    ) -> None:
        super().__init__(f"table {segments.name}", close_timeout_s=cluster.settings.close_timeout_s)
        self._cluster = cluster
        self._segments = segments
        self._keys = keys
        self._values = values

    @property
    def name(self) -> str:
        """The table as ``scope/table``."""
        return self._segments.name

    @property
    def config(self) -> TableConfig:
        """The lengths of its keys, and its number of partitions."""
        return self._segments.config

    async def __aenter__(self) -> Self:
        return self

    # -- read ---------------------------------------------------------------------------------------------------

    async def get(self, key: Key, default: Default | None = None) -> Value | Default | None:
        """Return the value of `key`, or `default` if it has none."""
        entry = await self.entry(key)
        return default if entry is None else entry.value

    async def entry(self, key: Key) -> Entry[Key, Value] | None:
        """Return value and version of `key`, None if it has none."""
        (found,) = await self._read("get", [self._key(key)])
        return None if found is None else Entry(key, self._values.deserialize(found.value), found.version)

    async def get_many(self, keys: Iterable[Key]) -> list[Entry[Key, Value] | None]:
        """Return value and version of each key, in order, None for keys without a value.

        The results may be of different moments.
        """
        wanted = list(keys)
        found = await self._read("get", list(map(self._key, wanted)))
        return [
            None if entry is None else Entry(key, self._values.deserialize(entry.value), entry.version)
            for key, entry in zip(wanted, found, strict=True)
        ]

    async def contains(self, key: Key) -> bool:
        """Return whether `key` has a value, without reading the value."""
        self._check_open()
        data = self._key(key)
        segment = self._segments.segment_of(data)
        with self._call("read a key"), self._segments.of_table():
            return bool((await self._cluster.segments.table_keys(segment, limit=1, first=data, last=data)).keys)

    async def count(self) -> int:
        """Return the number of keys in the table. Sends one request per partition."""
        self._check_open()
        with self._call("count keys"), self._segments.of_table():
            return sum(
                [(await self._cluster.segments.table_info(segment)).entry_count for segment in self._segments.names]
            )

    # -- change -------------------------------------------------------------------------------------------------

    async def put(self, key: Key, value: Value, *, version: int | None = None) -> int:
        """Store `value` under `key`; return its new version. With `version`, only if that is the key's current version.

        Raises `TableConditionError`, `SerializationError`, `OutcomeUnknownError`.
        """
        return (await self._change("put", [self._update(key, value, version)]))[0]

    async def insert(self, key: Key, value: Value) -> int:
        """Store `value` under `key`, which must have no value; return its version.

        Raises `TableKeyVersionError`, `SerializationError`, `OutcomeUnknownError`.
        """
        return (await self._change("insert", [self._update(key, value, VERSION_ABSENT)]))[0]

    async def put_many(
        self, items: Mapping[Key, Value] | Iterable[tuple[Key, Value] | Entry[Key, Value]], *, as_one: bool = False
    ) -> list[int]:
        """Store many values; return their versions, in order. The version of an `Entry` is a condition, as in `put`.

        Args:
            items: keys and values. An `Entry` with version -1 is inserted.
            as_one: store all or none. The keys must then be in one partition, as keys with the same first part are,
                occur once each, and fit into one request (`table_batch_key_count_max`, `table_batch_bytes_max`).
                Without `as_one`, some values may be stored when an error is raised.

        Raises as `put`, and `InvalidArgumentError` for items that cannot be stored atomically.
        """
        pairs = items.items() if isinstance(items, Mapping) else items
        updates = [
            self._update(item.key, item.value, item.version)
            if isinstance(item, Entry)
            else self._update(item[0], item[1], None)
            for item in pairs
        ]
        return await self._change("put", updates, is_whole=as_one)

    async def remove(self, key: Key, *, version: int | None = None) -> None:
        """Remove `key`. With `version`, only if that is its current version; without, a missing key is no error.

        Raises `TableConditionError`, `OutcomeUnknownError`.
        """
        await self._change("remove", [TableRemoval(self._key(key), _wanted(version))])

    async def pop(self, key: Key, default: Default | None = None) -> Value | Default | None:
        """Remove `key` and return its value, or `default` if it has none. Of concurrent calls, one gets the value.

        Raises:
            MetadataConflictError: `table_update_count_max` consecutive attempts lost against concurrent changes.
            OutcomeUnknownError: a reply was lost; the key may be removed or not.
        """
        removed = await self._take(key)
        return default if removed is None else removed.value

    async def remove_many(self, keys: Iterable[Key | Entry[Key, Value]], *, as_one: bool = False) -> None:
        """Remove many keys. The version of an `Entry` is a condition, as in `remove`. `as_one`: see `put_many`."""
        removals = [
            TableRemoval(self._key(item.key), _wanted(item.version))
            if isinstance(item, Entry)
            else TableRemoval(self._key(item), VERSION_ANY)
            for item in keys
        ]
        await self._change("remove", removals, is_whole=as_one)

    async def update(
        self, key: Key, step: Callable[[Value], Value], *, default: Value | None = None
    ) -> Entry[Key, Value]:
        """Atomically replace the value of `key` by the result of `step` for it; return the new value.

        `step` may be called more than once. A key without a value has the value `default`, if that is given.

        Raises:
            TableKeyMissingError: the key has no value, and there is no `default`.
            MetadataConflictError: `table_update_count_max` consecutive attempts lost against concurrent changes.
            OutcomeUnknownError: a reply was lost; the value may be replaced or not.
        """
        with self._call("update a key"):
            for _ in range(self._cluster.settings.table_update_count_max):
                old = await self.entry(key)
                if old is not None:
                    value = step(old.value)
                elif default is not None:
                    value = step(default)
                else:
                    raise TableKeyMissingError(self.name, key=self._key(key))
                version = VERSION_ABSENT if old is None else old.version
                try:
                    return Entry(key, value, (await self._change("put", [self._update(key, value, version)]))[0])
                except TableConditionError:
                    continue
        raise self._lost("update", key)

    # -- scan and watch -----------------------------------------------------------------------------------------

    async def scan(
        self,
        *,
        primary: bytes | str | None = None,
        prefix: bytes | str | None = None,
        start: Key | None = None,
        end: Key | None = None,
    ) -> AsyncIterator[Entry[Key, Value]]:
        """Iterate over entries in the order of the keys' bytes, across partitions.

        Concurrent changes are seen or not; an entry that exists throughout the scan is returned once.

        Args:
            primary: the whole first part of the keys; it selects a single partition.
            prefix: the beginning of the keys; after `primary`, if that is given.
            start: the first key.
            end: the first key that is excluded.
        """
        async for page in self.scan_pages(primary=primary, prefix=prefix, start=start, end=end):
            for entry in page:
                yield entry

    async def scan_pages(
        self,
        *,
        primary: bytes | str | None = None,
        prefix: bytes | str | None = None,
        start: Key | None = None,
        end: Key | None = None,
    ) -> AsyncIterator[Sequence[Entry[Key, Value]]]:
        """As `scan`, but in lists of up to some thousands, at a lower cost per entry."""
        self._check_open()
        span = self._span(primary, prefix, start, end)
        if span is None:
            return
        key_of, value_of, config = self._keys.deserialize, self._values.deserialize, self.config
        # Equivalent to `Entry(...)`, in a quarter of the time.
        make: Callable[[type[Entry[Key, Value]], tuple[Key, Value, int]], Entry[Key, Value]] = tuple.__new__
        pages = entry_pages(self._cluster, self._segments, span, self._cluster.settings.table_page_entry_count)
        async for page in pages:
            yield [make(Entry, (key_of(key, config), value_of(value), version)) for key, value, version in page]
            self._check_open()

    async def keys(
        self,
        *,
        primary: bytes | str | None = None,
        prefix: bytes | str | None = None,
        start: Key | None = None,
        end: Key | None = None,
    ) -> AsyncIterator[Key]:
        """Iterate over keys without reading values. Arguments and order as for `scan`."""
        async for page in self.key_pages(primary=primary, prefix=prefix, start=start, end=end):
            for key in page:
                yield key

    async def key_pages(
        self,
        *,
        primary: bytes | str | None = None,
        prefix: bytes | str | None = None,
        start: Key | None = None,
        end: Key | None = None,
    ) -> AsyncIterator[Sequence[Key]]:
        """As `keys`, but in lists of up to some thousands, at a lower cost per key."""
        self._check_open()
        span = self._span(primary, prefix, start, end)
        if span is None:
            return
        pages = key_pages(self._cluster, self._segments, span, self._cluster.settings.table_page_entry_count)
        async for page in pages:
            yield [self._keys.deserialize(key, self.config) for key, _ in page]
            self._check_open()

    async def items(self) -> AsyncIterator[tuple[Key, Value]]:
        """Iterate over all keys and values. Order as for `scan`."""
        async for page in self.scan_pages():
            for entry in page:
                yield entry.key, entry.value

    def watch(
        self,
        *,
        primary: bytes | str | None = None,
        prefix: bytes | str | None = None,
        start: Key | None = None,
        end: Key | None = None,
        from_now: bool = False,
    ) -> AsyncIterator[TableChange[Key, Value]]:
        """Iterate over changes of keys, until closed; all current entries come first, unless `from_now`.

        The table is polled every `table_watch_interval_s`. The newest state of each key whose version changed is
        returned; intermediate states may be missed. The watch remembers a version for each key
        (`table_watch_key_count_max`). Which keys: see `scan`.
        """
        self._check_open()
        span = self._span(primary, prefix, start, end)
        watch = (
            None
            if span is None
            else TableWatch(self._cluster, self._segments, span, self._check_open, is_from_now=from_now)
        )
        return TableChanges(watch, self._change_of)

    # -- inside -------------------------------------------------------------------------------------------------

    def _call(self, what: str) -> AbstractContextManager[Deadline]:
        return within(f"{what} of table {self.name}", self._cluster.settings.retry_time_max_s, "retry_time_max_s")

    async def _read(self, what: str, keys: Sequence[bytes]) -> list[TableEntry | None]:
        self._check_open()
        with self._call(what):
            return await self._segments.get(keys)

    async def _change(self, what: str, changes: Sequence[Change], *, is_whole: bool = True) -> list[int]:
        self._check_open()
        if not changes:
            return []
        with self._call(what):
            return await self._segments.apply(changes, is_whole=is_whole)

    async def _take(self, key: Key) -> Entry[Key, Value] | None:
        """Remove `key` in the version that was read, and return that entry; None if there was none."""
        with self._call("remove a key"):
            for _ in range(self._cluster.settings.table_update_count_max):
                entry = await self.entry(key)
                if entry is None:
                    return None
                try:
                    await self._change("remove", [TableRemoval(self._key(key), entry.version)])
                except TableConditionError:
                    continue
                return entry
        raise self._lost("remove", key)

    def _lost(self, what: str, key: Key) -> MetadataConflictError:
        return MetadataConflictError(
            f"table {self.name}: {self._cluster.settings.table_update_count_max} attempts in a row to {what} key "
            f"{key!r} conflicted with other writers (table_update_count_max)"
        )

    def _key(self, key: Key) -> bytes:
        return self._keys.serialize(key, self.config)

    def _update(self, key: Key, value: Value, version: int | None) -> TableUpdate:
        data = self._values.serialize(value)
        if len(data) > TABLE_VALUE_LENGTH_MAX:
            raise InvalidArgumentError(
                f"table {self.name}: the value of key {key!r} has {len(data)} bytes, the limit is "
                f"{TABLE_VALUE_LENGTH_MAX}"
            )
        return TableUpdate(self._key(key), data, _wanted(version))

    def _span(
        self, primary: bytes | str | None, prefix: bytes | str | None, start: Key | None, end: Key | None
    ) -> KeySpan | None:
        return span_of(
            self._segments,
            primary=None if primary is None else self._keys.primary(primary, self.config),
            prefix=prefix.encode() if isinstance(prefix, str) else prefix,
            start=None if start is None else self._key(start),
            end=None if end is None else self._key(end),
        )

    def _change_of(self, change: KeyChange) -> TableChange[Key, Value]:
        key = self._keys.deserialize(change.key, self.config)
        found = change.entry
        return TableChange(
            key, None if found is None else Entry(key, self._values.deserialize(found.value), found.version)
        )


def _wanted(version: int | None) -> int:
    if version is None:
        return VERSION_ANY
    if version < VERSION_ABSENT:
        raise InvalidArgumentError(f"version {version}: a version is 0 or more, or -1 for a key that must not exist")
    return version


async def item(table: Table[Key, Value], key: Key) -> Value:
    """Return the value of `key`. Raises `TableKeyMissingError`."""
    entry = await table.entry(key)
    if entry is None:
        raise TableKeyMissingError(table.name, key=table._key(key))
    return entry.value


async def delete_item(table: Table[Key, Value], key: Key) -> None:
    """Remove `key`. Raises `TableKeyMissingError`, and as `Table.pop`."""
    if await table._take(key) is None:
        raise TableKeyMissingError(table.name, key=table._key(key))
