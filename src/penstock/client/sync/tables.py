"""The blocking `Table`. Generated from `penstock.client.tables.tables`: do not edit.

`python -m penstock_tools.generate_sync` regenerates it; see ``docs/sync-client.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic

from penstock.client.sync.table_handle import TableHandle
from penstock.client.tables.table_keys import Entry
from penstock.client.tables.tables import Default, Key, TableChange, Value
from penstock.model.tables import TableConfig


class Table(TableHandle[Key, Value], Generic[Key, Value]):
    """A key-value table. Made by `Client.table`; any number of calls may be in progress at once.

    Every key has a *version*, which grows with each write and is never reused. A change with a version is applied if
    the key has that version; otherwise `TableKeyVersionError` or `TableKeyMissingError` is raised, and nothing changes.
    Both are subclasses of `TableConditionError`. `OutcomeUnknownError` means that the reply to a change was lost: it
    may be applied or not. A change with a version is retried until there is a reply, so the error is rare there; other
    changes are sent once.

    All methods raise `NoSuchTableError` once the table is deleted, and `ClosedError`.
    """

    @property
    def name(self) -> str:
        """The table as ``scope/table``."""
        return self._part.name

    @property
    def config(self) -> TableConfig:
        """The lengths of its keys, and its number of partitions."""
        return self._part.config

    def get(self, key: Key, default: Default | None = None) -> Value | Default | None:
        """Return the value of `key`, or `default` if it has none."""
        return self._portal.call(self._part.get(key, default))

    def entry(self, key: Key) -> Entry[Key, Value] | None:
        """Return value and version of `key`, None if it has none."""
        return self._portal.call(self._part.entry(key))

    def get_many(self, keys: Iterable[Key]) -> list[Entry[Key, Value] | None]:
        """Return value and version of each key, in order, None for keys without a value.

        The results may be of different moments.
        """
        return self._portal.call(self._part.get_many(keys))

    def contains(self, key: Key) -> bool:
        """Return whether `key` has a value, without reading the value."""
        return self._portal.call(self._part.contains(key))

    def count(self) -> int:
        """Return the number of keys in the table. Sends one request per partition."""
        return self._portal.call(self._part.count())

    def put(self, key: Key, value: Value, *, version: int | None = None) -> int:
        """Store `value` under `key`; return its new version. With `version`, only if that is the key's current version.

        Raises `TableConditionError`, `SerializationError`, `OutcomeUnknownError`.
        """
        return self._portal.call(self._part.put(key, value, version=version))

    def insert(self, key: Key, value: Value) -> int:
        """Store `value` under `key`, which must have no value; return its version.

        Raises `TableKeyVersionError`, `SerializationError`, `OutcomeUnknownError`.
        """
        return self._portal.call(self._part.insert(key, value))

    def put_many(
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
        return self._portal.call(self._part.put_many(items, as_one=as_one))

    def remove(self, key: Key, *, version: int | None = None) -> None:
        """Remove `key`. With `version`, only if that is its current version; without, a missing key is no error.

        Raises `TableConditionError`, `OutcomeUnknownError`.
        """
        self._portal.call(self._part.remove(key, version=version))

    def pop(self, key: Key, default: Default | None = None) -> Value | Default | None:
        """Remove `key` and return its value, or `default` if it has none. Of concurrent calls, one gets the value.

        Raises:
            MetadataConflictError: `table_update_count_max` consecutive attempts lost against concurrent changes.
            OutcomeUnknownError: a reply was lost; the key may be removed or not.
        """
        return self._portal.call(self._part.pop(key, default))

    def remove_many(self, keys: Iterable[Key | Entry[Key, Value]], *, as_one: bool = False) -> None:
        """Remove many keys. The version of an `Entry` is a condition, as in `remove`. `as_one`: see `put_many`."""
        self._portal.call(self._part.remove_many(keys, as_one=as_one))

    def update(self, key: Key, step: Callable[[Value], Value], *, default: Value | None = None) -> Entry[Key, Value]:
        """Atomically replace the value of `key` by the result of `step` for it; return the new value.

        `step` may be called more than once. A key without a value has the value `default`, if that is given.

        Raises:
            TableKeyMissingError: the key has no value, and there is no `default`.
            MetadataConflictError: `table_update_count_max` consecutive attempts lost against concurrent changes.
            OutcomeUnknownError: a reply was lost; the value may be replaced or not.
        """
        return self._portal.call(self._part.update(key, step, default=default))

    def scan(
        self,
        *,
        primary: bytes | str | None = None,
        prefix: bytes | str | None = None,
        start: Key | None = None,
        end: Key | None = None,
    ) -> Iterator[Entry[Key, Value]]:
        """Iterate over entries in the order of the keys' bytes, across partitions.

        Concurrent changes are seen or not; an entry that exists throughout the scan is returned once.

        Args:
            primary: the whole first part of the keys; it selects a single partition.
            prefix: the beginning of the keys; after `primary`, if that is given.
            start: the first key.
            end: the first key that is excluded.
        """
        for page in self.scan_pages(primary=primary, prefix=prefix, start=start, end=end):
            yield from page

    def scan_pages(
        self,
        *,
        primary: bytes | str | None = None,
        prefix: bytes | str | None = None,
        start: Key | None = None,
        end: Key | None = None,
    ) -> Iterator[Sequence[Entry[Key, Value]]]:
        """As `scan`, but in lists of up to some thousands, at a lower cost per entry."""
        return self._portal.iterate(self._part.scan_pages(primary=primary, prefix=prefix, start=start, end=end))

    def keys(
        self,
        *,
        primary: bytes | str | None = None,
        prefix: bytes | str | None = None,
        start: Key | None = None,
        end: Key | None = None,
    ) -> Iterator[Key]:
        """Iterate over keys without reading values. Arguments and order as for `scan`."""
        for page in self.key_pages(primary=primary, prefix=prefix, start=start, end=end):
            yield from page

    def key_pages(
        self,
        *,
        primary: bytes | str | None = None,
        prefix: bytes | str | None = None,
        start: Key | None = None,
        end: Key | None = None,
    ) -> Iterator[Sequence[Key]]:
        """As `keys`, but in lists of up to some thousands, at a lower cost per key."""
        return self._portal.iterate(self._part.key_pages(primary=primary, prefix=prefix, start=start, end=end))

    def items(self) -> Iterator[tuple[Key, Value]]:
        """Iterate over all keys and values. Order as for `scan`."""
        for page in self.scan_pages():
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
    ) -> Iterator[TableChange[Key, Value]]:
        """Iterate over changes of keys, until closed; all current entries come first, unless `from_now`.

        The table is polled every `table_watch_interval_s`. The newest state of each key whose version changed is
        returned; intermediate states may be missed. The watch remembers a version for each key
        (`table_watch_key_count_max`). Which keys: see `scan`.
        """
        return self._portal.iterate(self._part.watch(
            primary=primary, prefix=prefix, start=start, end=end, from_now=from_now
        ))
