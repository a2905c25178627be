"""``penstock table``: key-value tables, whose keys and values are text here."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import typer

from penstock.cli.failure import exit_on_error, fail
from penstock.cli.names import complete_tables
from penstock.cli.options import URI, AsJson, ScopeToList, Uri, Yes
from penstock.cli.output import confirm, tell, write_bytes, write_text
from penstock.cli.quantities import bytes_of

if TYPE_CHECKING:
    from penstock.client.client import Client
    from penstock.client.tables.table_keys import Entry
    from penstock.client.tables.tables import Table

    TextTable: TypeAlias = Table[tuple[str, str], bytes]
    TextEntry: TypeAlias = Entry[tuple[str, str], bytes]

T = TypeVar("T")

TableName = Annotated[
    str, typer.Argument(metavar="TABLE", help="As SCOPE/TABLE.", show_default=False, autocompletion=complete_tables)
]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key, or its first part.", show_default=False)]
Second = Annotated[str, typer.Option(help="The second part of the key, in tables whose keys have two. [default: none]")]
Version = Annotated[
    int | None, typer.Option(min=-1, help="Only if the key has this version; -1: only if it has no value.")
]

table: typer.Typer = typer.Typer(name="table")


@table.command("list")
def list_tables(
    scope: ScopeToList = None,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """List the key-value tables."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json), connected(uri) as session:
        client = session.client
        scopes = [scope] if scope else [name for name in session.iterate(client.scopes()) if not name.startswith("_")]
        names = sorted(f"{each}/{name}" for each in scopes for name in session.iterate(client.tables(each)))
    tell("tables", {"tables": names}, names, as_json=as_json)


@table.command()
def create(
    table: TableName,
    key_length: Annotated[int, typer.Option(min=1, help="Maximum bytes of a key, or of its first part.")] = 32,
    second_length: Annotated[int, typer.Option(min=0, help="Maximum bytes of a key's second part.")] = 0,
    partitions: Annotated[
        int, typer.Option(min=1, help="Number of segments that share the keys, by their first part.")
    ] = 1,
    rollover: Annotated[str | None, typer.Option(help="Maximum size of a file in long-term storage, as 64MiB.")] = None,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Leave it unchanged if it exists with the same key sizes and partitions.")
    ] = False,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Create a table, and its scope if missing. Key sizes and partitions cannot be changed later."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json):
        rollover_bytes = 0 if rollover is None else bytes_of(rollover)
        with connected(uri) as session:
            session.call(
                session.client.create_table(
                    table,
                    key_length=key_length,
                    secondary_key_length=second_length,
                    partition_count=partitions,
                    rollover_bytes=rollover_bytes,
                    exist_ok=exist_ok,
                )
            )
    tell("created", {"table": table}, [f"table {table} is created"], as_json=as_json)


@table.command()
def describe(table: TableName, uri: Uri = URI, as_json: AsJson = False) -> None:
    """Show a table's key sizes, partitions and number of keys."""

    async def read(opened: TextTable) -> tuple[dict[str, object], str]:
        config, count = opened.config, await opened.count()
        fields: dict[str, object] = {
            "table": table,
            "keys": count,
            "key_length": config.primary_key_length,
            "second_length": config.secondary_key_length,
            "partitions": config.partition_count,
        }
        second = f" and {config.secondary_key_length}" if config.secondary_key_length else ""
        return fields, (
            f"table {table}: keys: {count}, of {config.primary_key_length}{second} bytes at most, partitions: "
            f"{config.partition_count}"
        )

    fields, text = _with_table(table, uri, as_json, read)
    tell("table", fields, [text], as_json=as_json)


@table.command()
def delete(table: TableName, yes: Yes = False, uri: Uri = URI, as_json: AsJson = False) -> None:
    """Delete a table and its contents. Asks for confirmation."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json), connected(uri) as session:

        async def count() -> int:
            async with session.client.table(table) as opened:
                return await opened.count()

        held = session.call(count())
        confirm(f"Delete table {table} with {held} keys?", f"{table} ({held} keys)", is_agreed=yes, as_json=as_json)
        session.call(session.client.delete_table(table))
    tell("deleted", {"table": table, "keys": held}, [f"table {table} is deleted"], as_json=as_json)


@table.command()
def get(table: TableName, key: Key, second: Second = "", uri: Uri = URI, as_json: AsJson = False) -> None:
    """Print the value of a key. Exit code 1 if it has none."""

    async def read(opened: TextTable) -> TextEntry | None:
        return await opened.entry((key, second))

    entry = _with_table(table, uri, as_json, read)
    if entry is None:
        message = f"{table} has no key {_shown_key((key, second))}"
        raise fail(message, kind="TableKeyMissingError", as_json=as_json)
    if as_json:
        tell("entry", _fields(entry), (), as_json=True)
        return
    with exit_on_error(as_json=False):
        write_bytes(entry.value + b"\n")


@table.command()
def put(
    table: TableName,
    key: Key,
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="The value.", show_default="standard input")
    ] = None,
    second: Second = "",
    version: Version = None,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Store a value under a key, and print its version."""

    async def change(opened: TextTable) -> int:
        with _conditions_told(table, (key, second), version):
            return await opened.put((key, second), data, version=version)

    with exit_on_error(as_json=as_json):
        data = sys.stdin.buffer.read() if value is None else value.encode("utf-8", "surrogateescape")
    stored = _with_table(table, uri, as_json, change)
    fields: dict[str, object] = {"table": table, "key": key, "second": second, "version": stored}
    tell("stored", fields, [f"{_shown_key((key, second))} is stored, version {stored}"], as_json=as_json)


@table.command()
def remove(
    table: TableName,
    key: Key,
    second: Second = "",
    version: Version = None,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Remove a key and its value. A missing key is an error only if a version is given."""

    async def change(opened: TextTable) -> None:
        with _conditions_told(table, (key, second), version):
            await opened.remove((key, second), version=version)

    _with_table(table, uri, as_json, change)
    fields: dict[str, object] = {"table": table, "key": key, "second": second}
    tell("removed", fields, [f"{_shown_key((key, second))} is removed"], as_json=as_json)


@table.command()
def scan(
    table: TableName,
    prefix: Annotated[str | None, typer.Option(help="Only keys with this prefix.")] = None,
    first: Annotated[str | None, typer.Option("--key", help="Only keys with this first part.")] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Stop after this many. [default: all]")
    ] = None,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Print keys and values, sorted by key, separated by a tab; with --json one document for each key."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json), connected(uri) as session:
        opened = session.call(_opened(session.client, table))
        left = count
        for page in session.iterate(opened.scan_pages(primary=first, prefix=prefix)):
            shown = page if left is None else page[:left]
            _print_entries(shown, as_json=as_json)
            if left is not None:
                left -= len(shown)
                if not left:
                    return


def _print_entries(entries: Sequence[TextEntry], *, as_json: bool) -> None:
    if as_json:
        write_text("".join(json.dumps(_fields(entry)) + "\n" for entry in entries))
    else:
        write_bytes(b"".join([b"%b\t%b\n" % (_shown_key(entry.key).encode(), entry.value) for entry in entries]))
    sys.stdout.flush()


def _with_table(table: str, uri: str, as_json: bool, work: Callable[[TextTable], Awaitable[T]]) -> T:
    """Do something with a table."""
    from penstock.cli.session import connected

    async def opened_and_done(client: Client) -> T:
        async with await _opened(client, table) as opened:
            return await work(opened)

    with exit_on_error(as_json=as_json), connected(uri) as session:
        return session.call(opened_and_done(session.client))


@contextmanager
def _conditions_told(table: str, key: tuple[str, str], version: int | None) -> Iterator[None]:
    """Tell in a user's words that a key has not the version that was asked for. The kind of error stays."""
    from penstock.model.errors import TableConditionError

    try:
        yield
    except TableConditionError as error:
        wanted = "no value" if version == -1 else f"version {version}"
        error.args = (
            f"{_shown_key(key)} in {table} does not have {wanted}; nothing was changed: "
            "see its version with penstock table get --json",
        )
        raise


async def _opened(client: Client, table: str) -> TextTable:
    from penstock.client.tables.table_keys import TextPairKeys

    return await client.table(table, keys=TextPairKeys())


def _shown_key(key: tuple[str, str]) -> str:
    return "/".join(key) if key[1] else key[0]


def _fields(entry: TextEntry) -> dict[str, object]:
    first, second = entry.key
    fields: dict[str, object] = {"key": first, **({"second": second} if second else {}), "version": entry.version}
    try:
        return {**fields, "value": entry.value.decode()}
    except UnicodeDecodeError:
        return {**fields, "value_base64": base64.b64encode(entry.value).decode()}
