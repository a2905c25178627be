"""Filters that a user keeps for a stream: a name for the inputs of the page of events, in a cookie of the browser.

The server keeps nothing. A cookie holds few filters, so the oldest ones give way.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from urllib.parse import urlencode

import msgspec

from penstock.web.console.pages import ROOT, Answer, Elsewhere, PageRequest, PageRoute, address
from penstock.web.errors import BadRequestError

COOKIE: str = "penstock_filters"
FILTERS_MAX: int = 20
NAME_LENGTH_MAX: int = 40
#: Browsers refuse a cookie above 4096 bytes with its name and attributes.
_COOKIE_LENGTH_MAX = 3500
_AGE_S = 400 * 24 * 3600
#: Inputs of the page that belong to a filter.
FIELDS: tuple[str, ...] = ("at", "segment", "contains", "where", "columns", "form", "limit")


class SavedFilter(msgspec.Struct, frozen=True, array_like=True):
    """One filter. `query`: the inputs that are set."""

    stream: str
    name: str
    query: dict[str, str]

    @property
    def text(self) -> str:
        """The query of the address of its page."""
        return urlencode(self.query)


def filters_in(cookie: str) -> list[SavedFilter]:
    """Return the filters of a cookie, the oldest first; none of a cookie that is damaged."""
    try:
        data = base64.b64decode(cookie, altchars=b"-_", validate=True)
        found = msgspec.json.decode(data, type=list[SavedFilter])
    except (ValueError, binascii.Error, msgspec.DecodeError):
        return []
    return found[:FILTERS_MAX]


def cookie_of(filters: list[SavedFilter]) -> str:
    """Return the text of a cookie with these filters, without the oldest if there are too many."""
    left = filters[-FILTERS_MAX:]
    while True:
        text = base64.urlsafe_b64encode(msgspec.json.encode(left)).decode()
        if len(text) <= _COOKIE_LENGTH_MAX:
            return text
        left = left[1:]


def set_cookie(text: str, *, is_https: bool) -> str:
    """Return the value of ``Set-Cookie``."""
    secure = "; Secure" if is_https else ""
    return f"{COOKIE}={text}; Path={ROOT}; Max-Age={_AGE_S}; HttpOnly; SameSite=Strict{secure}"


def of_stream(request: PageRequest) -> list[SavedFilter]:
    """Return the filters that the sender keeps for the stream of a page."""
    return [each for each in filters_in(request.cookies.get(COOKIE, "")) if each.stream == request.stream]


def query_of(values: Mapping[str, str]) -> dict[str, str]:
    """Return the inputs of a filter that are set."""
    return {name: values[name] for name in FIELDS if values.get(name)}


async def change_filters(request: PageRequest) -> Answer:
    """Keep the filter of a form under its name, in place of one with that name, or remove it; return to the events."""
    name = request.text("filter_name")
    if not name or len(name) > NAME_LENGTH_MAX:
        raise BadRequestError(f"{name!r} is no name for a filter: write 1 to {NAME_LENGTH_MAX} characters")
    query = query_of(request.form)
    place = address("streams", request.path["scope"], request.path["stream"], "events", **query)
    others = [
        each
        for each in filters_in(request.cookies.get(COOKIE, ""))
        if (each.stream, each.name) != (request.stream, name)
    ]
    if request.text("action") == "remove":
        return Elsewhere(place, cookie_of(others))
    kept = SavedFilter(request.stream, name, query)
    text = cookie_of([*others, kept])
    if kept not in filters_in(text):
        raise BadRequestError("the filter is too long to be kept in a cookie: bookmark the address of its page")
    return Elsewhere(place, text)


async def to_events(request: PageRequest) -> Answer:
    """Return the answer: a form changes filters; who only opens the address is led to the events."""
    if request.is_change:
        return await change_filters(request)
    return Elsewhere(address("streams", request.path["scope"], request.path["stream"], "events"))


ROUTES: tuple[PageRoute, ...] = (PageRoute("/streams/{scope}/{stream}/filters", to_events, is_form=True),)
