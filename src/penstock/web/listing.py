"""Pages of names over REST: `limit` and `token` of a request, and the token of the next page in a header."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from penstock.web.errors import BadRequestError
from penstock.web.routes import Query, Request

#: Entries of a listing without ``limit``, and the largest limit.
_LISTED_MAX = 10_000
_LIMIT_MAX = 1000

#: Header of a listing that has more entries.
NEXT_TOKEN: str = "Penstock-Next-Token"
#: The parameters of each listing.
PAGED: tuple[Query, ...] = (
    Query("limit", "Number of entries, at most 1000.", is_number=True),
    Query("token", "The Penstock-Next-Token of the page before."),
)


#: Names that a token has. While one of them exists, the next page begins after it.
_KNOWN_MAX = 8


class _Place(msgspec.Struct):
    page: str
    known: list[str]


async def names_page(
    request: Request,
    pages: Callable[[str], AsyncIterator[tuple[str, Sequence[str]]]],
    is_wanted: Callable[[str], bool] = lambda name: True,
) -> tuple[list[str], dict[str, str]]:
    """Return the names of a page, and the headers of its reply: the token of the next page, if there is one.

    `pages` iterates over the controller's pages from a token on, each with its own token. The token of the reply has
    that of the controller's page and the last names that were read of it, so no page costs more than the controller's.
    If all of these are deleted before the next request, names of that page come twice. None is missed.
    """
    limit = request.number("limit", _LISTED_MAX, least=1, most=_LIMIT_MAX)
    first, known = _place(request.query.get("token", ""))
    found: list[str] = []
    async for token, names in pages(first):
        begin = 1 + max((names.index(each) for each in known if each in names), default=-1) if token == first else 0
        for position, name in enumerate(names[begin:], begin):
            if not is_wanted(name):
                continue
            if len(found) == limit:
                place = msgspec.json.encode(_Place(token, list(names[max(position - _KNOWN_MAX, 0) : position])))
                return found, {NEXT_TOKEN: base64.urlsafe_b64encode(place).decode()}
            found.append(name)
    return found, {}


def _place(token: str) -> tuple[str, list[str]]:
    """Return what a token has: the token of a page of the controller, and the last names that were read of it."""
    if not token:
        return "", []
    try:
        place = msgspec.json.decode(base64.urlsafe_b64decode(token), type=_Place)
    except (binascii.Error, ValueError) as error:
        raise BadRequestError(f"token={token!r} is not one of a page before") from error
    return place.page, place.known
