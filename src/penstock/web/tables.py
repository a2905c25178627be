"""Key-value tables over REST: their names, and a page of entries in the order of their keys.

Keys and values are bytes of unknown origin: they are returned as text if they are UTF-8, otherwise in base64.
"""

from __future__ import annotations

import base64
import binascii

import msgspec

from penstock.client.low_level import controller_of
from penstock.model.errors import NoSuchScopeError
from penstock.web.errors import BadRequestError
from penstock.web.listing import PAGED, names_page
from penstock.web.routes import Query, Reply, Request, Route

_ENTRIES_MAX = 1000
#: Bytes of one value that are returned, and bytes of keys and values in a page.
_SHOWN_BYTES_MAX = 64 * 1024
_PAGE_BYTES_MAX = 4 * 1024 * 1024


class TableNames(msgspec.Struct):
    """A page of the tables of a scope, sorted."""

    tables: list[str]


class TableEntry(msgspec.Struct, omit_defaults=True):
    """An entry. Of ``keyText`` and ``keyBase64`` one is set, and one of ``text`` and ``base64``, the value.

    ``length`` is of the whole value, in bytes; ``isCut``: only its first 64 KiB are returned.
    """

    version: int
    length: int
    keyText: str | None = None
    keyBase64: str | None = None
    text: str | None = None
    base64: str | None = None
    isCut: bool = False


class TablePage(msgspec.Struct, omit_defaults=True):
    """Entries in the order of their keys' bytes, and the token of the next page, if there is one."""

    entries: list[TableEntry]
    token: str | None = None


async def list_tables(request: Request) -> Reply:
    """List the key-value tables of a scope."""
    scope = request.path["scope"]
    if not await controller_of(request.client).scope_exists(scope):
        raise NoSuchScopeError(f"scope {scope} does not exist")
    controller = controller_of(request.client)
    names, headers = await names_page(request, lambda token: controller.table_pages(scope, token=token))
    return Reply(content=TableNames(sorted(names)), headers=headers)


async def table_entries(request: Request) -> Reply:
    """Return entries of a table."""
    limit = request.number("limit", 100, least=1, most=_ENTRIES_MAX)
    start = _key_of(request.query["token"]) if "token" in request.query else None
    prefix = request.query.get("prefix") or None
    found: list[TableEntry] = []
    length = 0
    async with request.client.table(f"{request.path['scope']}/{request.path['table']}") as table:
        async for key, value, version in table.scan(prefix=prefix, start=start):
            if len(found) == limit or length >= _PAGE_BYTES_MAX:
                return Reply(content=TablePage(found, base64.urlsafe_b64encode(key).decode()))
            found.append(_entry(key, value, version))
            length += len(key) + min(len(value), _SHOWN_BYTES_MAX)
    return Reply(content=TablePage(found))


def _key_of(token: str) -> bytes:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequestError(f"token={token!r} is not one of a page before") from error


def _entry(key: bytes, value: bytes, version: int) -> TableEntry:
    entry = TableEntry(version, len(value), isCut=len(value) > _SHOWN_BYTES_MAX)
    shown = value[:_SHOWN_BYTES_MAX]
    try:
        entry.keyText = key.decode()
    except UnicodeDecodeError:
        entry.keyBase64 = base64.b64encode(key).decode()
    try:
        entry.text = shown.decode()
    except UnicodeDecodeError:
        entry.base64 = base64.b64encode(shown).decode()
    return entry


_TABLES = "/v1/scopes/{scope}/tables"
ROUTES: tuple[Route, ...] = (
    Route(
        "GET", _TABLES, "List the key-value tables of a scope.", list_tables,
        queries=PAGED, reply=(TableNames,), needs="READ on the scope",
    ),
    Route(
        "GET",
        _TABLES + "/{table}/entries",
        "Return entries of a table in the order of their keys.",
        table_entries,
        queries=(
            Query("prefix", "Only keys that begin with this text."),
            Query("token", "The token of the page before."),
            Query("limit", "Number of entries, at most 1000.", is_number=True),
        ),
        reply=(TablePage,),
        needs="READ on the table",
    ),
)  # fmt: skip
