"""`TableHandle`: what a blocking table has of a `dict`. Written by hand: to await there is no such syntax."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic

from penstock.client.sync.handle import Handle
from penstock.client.tables import tables as aio
from penstock.client.tables.tables import Key, Value, delete_item, item


class TableHandle(Handle[aio.Table[Key, Value]], Generic[Key, Value]):
    """``table[key]``, ``table[key] = value``, ``del table[key]``, ``key in table`` and ``for key in table``.

    There is no ``len``: it would ask every partition, also whenever a table is asked whether it is true. `count` says
    what it does.
    """

    def __getitem__(self, key: Key) -> Value:
        """Return the value of `key`. Raises `TableKeyMissingError`, a `KeyError`."""
        return self._portal.call(item(self._part, key))

    def __setitem__(self, key: Key, value: Value) -> None:
        """Store `value` under `key`, as `Table.put` without a version does."""
        self._portal.call(self._part.put(key, value))

    def __delitem__(self, key: Key) -> None:
        """Remove `key`, as `Table.pop` does. Raises `TableKeyMissingError`, a `KeyError`."""
        self._portal.call(delete_item(self._part, key))

    def __contains__(self, key: Key) -> bool:
        """Say whether `key` has a value, as `Table.contains` does."""
        return self._portal.call(self._part.contains(key))

    def __iter__(self) -> Iterator[Key]:
        """Iterate over the keys, as `Table.keys` does."""
        for page in self._portal.iterate(self._part.key_pages()):
            yield from page
