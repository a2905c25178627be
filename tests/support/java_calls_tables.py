"""Calls of the Java client on key-value tables: see `support.java_client`.

Keys have two parts: 8 bytes that choose the partition, and 4 that follow. Here a key is the text of both, 12 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from support.java_calls_streams import SCOPE
from support.java_client import JavaObject, JavaSession, content_of

PARTITION_COUNT = 2
PRIMARY_LENGTH = 8
SECONDARY_LENGTH = 4
#: ``KeyValueTable.MAXIMUM_VALUE_LENGTH``.
VALUE_LENGTH_MAX = 1024 * 1024 - 8192


def _manager(java: JavaSession) -> JavaObject:
    return java.keep("table manager", lambda: java.java("admin.KeyValueTableManager").create(java.config))


def _table(java: JavaSession, name: str) -> JavaObject:
    tables = java.keep("tables", lambda: java.java("KeyValueTableFactory").withScope(SCOPE, java.config))
    builder = java.java("tables.KeyValueTableClientConfiguration").builder()
    builder = builder.initialBackoffMillis(50).maxBackoffMillis(500).retryAttempts(60)
    return java.keep(f"table {name}", lambda: tables.forKeyValueTable(name, builder.build()))


def _bytes(java: JavaSession, text: str) -> JavaObject:
    return java.java("java.nio.ByteBuffer").wrap(text.encode())


def _text(buffer: JavaObject) -> str:
    return content_of(buffer).decode()


def _key(java: JavaSession, text: str) -> JavaObject:
    parts = _bytes(java, text[:PRIMARY_LENGTH]), _bytes(java, text[PRIMARY_LENGTH:])
    return java.java("tables.TableKey")(*parts)


def _key_text(key: JavaObject) -> str:
    return _text(key.getPrimaryKey()) + _text(key.getSecondaryKey())


def create_table(java: JavaSession, name: str) -> bool:
    """Create a table; return whether it is new."""
    builder = java.java("tables.KeyValueTableConfiguration").builder().partitionCount(PARTITION_COUNT)
    builder = builder.primaryKeyLength(PRIMARY_LENGTH).secondaryKeyLength(SECONDARY_LENGTH)
    return bool(_manager(java).createKeyValueTable(SCOPE, name, builder.build()))


def delete_table(java: JavaSession, name: str) -> bool:
    """Delete a table; return whether there was one."""
    return bool(_manager(java).deleteKeyValueTable(SCOPE, name))


def list_tables(java: JavaSession) -> list[str]:
    """Return the names of all tables, sorted."""
    return sorted(str(found.getKeyValueTableName()) for found in _manager(java).listKeyValueTables(SCOPE))


def put(java: JavaSession, name: str, entries: dict[str, str]) -> list[str]:
    """Put entries unconditionally, one by one; return their versions. Says "begun" at a third."""
    table, versions = _table(java, name), []
    for index, (key, value) in enumerate(entries.items()):
        update = java.java("tables.Put")(_key(java, key), _bytes(java, value))
        versions.append(str(table.update(update).get()))
        if index == len(entries) // 3:
            java.say("begun")
    return versions


def change(java: JavaSession, name: str, changes: Sequence[tuple[str, str, str, str]]) -> list[str]:
    """Make changes of one first key part as one: each is (what, key, value, version).

    `what` is "insert", "put" or "remove"; an empty version represents none. Returns the new versions.
    """
    import jpype

    table, version_of = _table(java, name), java.java("tables.Version").fromString
    updates = java.java("java.util.ArrayList")()
    for what, key, value, version in changes:
        versions = (version_of(version),) if version else ()
        if what == "insert":
            updates.add(java.java("tables.Insert")(_key(java, key), _bytes(java, value)))
        elif what == "put":
            updates.add(java.java("tables.Put")(_key(java, key), _bytes(java, value), *versions))
        else:
            updates.add(java.java("tables.Remove")(_key(java, key), *versions))
    # One change goes another way through the client than several.
    if len(changes) == 1:
        return [str(table.update(jpype.JObject(updates.get(0), java.java("tables.TableModification"))).get())]
    iterable = jpype.JObject(updates, java.java("java.lang.Iterable"))
    return [str(version) for version in table.update(iterable).get()]


def get(java: JavaSession, name: str, keys: Sequence[str]) -> list[tuple[str, str] | None]:
    """Return value and version of each key, None where it is missing."""
    wanted = java.java("java.util.ArrayList")()
    for key in keys:
        wanted.add(_key(java, key))
    found = _table(java, name).getAll(wanted).get()
    return [None if entry is None else (_text(entry.getValue()), str(entry.getVersion())) for entry in found]


def exists(java: JavaSession, name: str, key: str) -> bool:
    """Return whether a key is there."""
    return bool(_table(java, name).exists(_key(java, key)).get())


def iterate(java: JavaSession, name: str, how: str, first: str, last: str, page_size: int) -> list[tuple[str, str]]:
    """Return keys and values of a range: all, those of a first part, or of first parts by prefix or range.

    `how` is "all", "primary" (`first` is the first part, `last` empty or two bounds of the second part with a ``:``
    between), "prefix" or "range" (inclusive).
    """
    builder = _table(java, name).iterator().maxIterationSize(page_size)
    if how == "all":
        chosen = builder.all()
    elif how == "prefix":
        chosen = builder.forPrefix(_bytes(java, first))
    elif how == "range":
        chosen = builder.forRange(_bytes(java, first), _bytes(java, last))
    elif last:
        bounds = (_bytes(java, part) for part in last.split(":"))
        chosen = builder.forPrimaryKey(_bytes(java, first), *bounds)
    else:
        chosen = builder.forPrimaryKey(_bytes(java, first))
    entries = [
        (_key_text(entry.getKey()), _text(entry.getValue()))
        for page in chosen.entries().asIterator()
        for entry in page.getItems()
    ]
    keys = [_key_text(key) for page in chosen.keys().asIterator() for key in page.getItems()]
    assert keys == [key for key, _ in entries], "iteration by keys and by entries differ"
    return entries


def forget(java: JavaSession, name: str) -> None:
    """Open a table again with the next call: the client keeps what it knows of its segments."""
    java.close(f"table {name}")
