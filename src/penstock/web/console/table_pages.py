"""The pages of key-value tables: their names, and the entries of one in the order of their keys. Read only."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from penstock.model.errors import AccessDeniedError
from penstock.web.console.pages import Answer, Page, PageRequest, PageRoute, address
from penstock.web.console.snippets import Snippet, command
from penstock.web.console.streams import scopes_of
from penstock.web.errors import BadRequestError

_TABLES_MAX = 1000
_ENTRIES_MAX = 100
#: Bytes of one value that are shown, and of all values of a page.
_SHOWN_BYTES_MAX = 16 * 1024
_PAGE_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EntryRow:
    """An entry as a page shows it. `length`: of the whole value, in bytes."""

    key: bytes
    value: bytes
    length: int
    version: int


async def list_tables(request: PageRequest) -> Answer:
    """List key-value tables."""
    scope, problem = request.text("scope"), ""
    scopes: list[str] = []
    try:
        scopes = await scopes_of(request)
    except AccessDeniedError as error:
        problem = f"{error}: enter a scope that your account may read"
    found: list[str] = []
    is_complete = True
    for each in [scope] if scope else scopes:
        async for name in request.client.tables(each):
            if len(found) == _TABLES_MAX:
                is_complete = False
                break
            found.append(name if "/" in name else f"{each}/{name}")
    return Page("tables.html", "Tables", {
        "tables": sorted(found), "scopes": scopes, "scope": scope, "problem": problem, "is_complete": is_complete,
    })  # fmt: skip


async def show_table(request: PageRequest) -> Answer:
    """Show entries of one table."""
    name = f"{request.path['scope']}/{request.path['table']}"
    prefix, after = request.text("prefix"), request.text("from", length_max=16 * 1024)
    start = _key_of(after) if after else None
    rows: list[EntryRow] = []
    following, shown_bytes = "", 0
    config = await request.client.table_config(name)
    async with request.client.table(name) as table:
        async for key, value, version in table.scan(prefix=prefix or None, start=start):
            if len(rows) == _ENTRIES_MAX or shown_bytes >= _PAGE_BYTES_MAX:
                token = base64.urlsafe_b64encode(key).decode()
                following = address("tables", *name.split("/", 1), prefix=prefix, **{"from": token})
                break
            rows.append(EntryRow(key, value[:_SHOWN_BYTES_MAX], len(value), version))
            shown_bytes += len(key) + min(len(value), _SHOWN_BYTES_MAX)
    return Page("table.html", f"Table {name}", {
        "name": name, "config": config, "rows": rows, "prefix": prefix, "next": following,
        "snippets": [Snippet("Command", command("penstock", "table", "scan", name, "--uri", request.controller))],
    })  # fmt: skip


def _key_of(token: str) -> bytes:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequestError(f"from={token!r} is not the key of a page before") from error


ROUTES: tuple[PageRoute, ...] = (
    PageRoute("/tables", list_tables),
    PageRoute("/tables/{scope}/{table}", show_table),
)
