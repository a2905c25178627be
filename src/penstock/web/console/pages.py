"""`PageRoute`: one row of the table of pages, with `PageRequest`, what its handler gets, and what it returns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote, urlencode

from penstock import aio
from penstock.web.console.rates import Rates
from penstock.web.errors import BadRequestError

#: Where the console is served.
ROOT: str = "/console"


def address(*parts: str, **query: object) -> str:
    """Return the address of a page: `parts` are encoded one by one; parameters that are None or empty are left out."""
    path = "/".join([ROOT, *(quote(part, safe="") for part in parts)])
    shown = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(shown)}" if shown else path


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a page.

    Attributes:
        client: a client of the cluster with the rights of the sender.
        rates: samples of the cluster's statistics, taken with the rights of the sender.
        path: the variable parts of the path, decoded.
        query: the parameters after the ``?``.
        form: the fields of a form that was sent; empty for a page that is only read.
        is_change: whether a form was sent, and its token was checked.
        token: for the forms of the page.
        user: the account of the sender; empty: it sent no credentials.
        origin: scheme, host and port by which the sender reached the server, as ``http://localhost:9091``.
        controller: address of the cluster for commands and programs that a page shows.
        cookies: of the sender.
    """

    client: aio.Client
    rates: Rates
    path: Mapping[str, str]
    query: Mapping[str, str]
    form: Mapping[str, str]
    is_change: bool
    token: str
    user: str
    origin: str
    controller: str
    cookies: Mapping[str, str] = field(default_factory=dict)

    @property
    def stream(self) -> str:
        """``scope/stream`` of the path."""
        return f"{self.path['scope']}/{self.path['stream']}"

    @property
    def group(self) -> str:
        """``scope/group`` of the path."""
        return f"{self.path['scope']}/{self.path['group']}"

    def text(self, name: str, default: str = "", *, length_max: int = 1024) -> str:
        """Return a parameter or a field of the form, without spaces around it. Raises `BadRequestError` if too long."""
        found = self.form.get(name, self.query.get(name, default)).strip()
        if len(found) > length_max:
            raise BadRequestError(f"{name} is longer than {length_max} characters")
        return found

    def number(self, name: str, default: int, *, least: int = 0, most: int = (1 << 63) - 1) -> int:
        """Return a parameter that is a number; `default` if it is absent or empty. Raises `BadRequestError`."""
        text = self.text(name)
        if not text:
            return default
        try:
            found = int(text)
        except ValueError:
            raise BadRequestError(f"{name} is {text!r}: write a whole number") from None
        if not least <= found <= most:
            raise BadRequestError(f"{name} is {found}: use {least} to {most}")
        return found

    def now(self) -> datetime:
        """Return the time of the web server, in UTC."""
        return datetime.now(UTC)

    def unix_offset_s(self) -> float:
        """Return Unix time less the time of the event loop, in seconds."""
        return self.now().timestamp() - asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class Page:
    """A page: the file of its template, its title and the values that the template uses."""

    template: str
    title: str
    values: Mapping[str, object] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True, slots=True)
class Download:
    """Bytes that the browser stores in a file. They are never shown as a page."""

    data: bytes
    name: str


@dataclass(frozen=True, slots=True)
class Data:
    """A value that a script of the console fetches as JSON."""

    value: object


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The address of another page. `filters`: the cookie of saved filters to set; None: it stays as it is."""

    address: str
    filters: str | None = None


Answer = Page | Download | Data | Elsewhere


@dataclass(frozen=True, slots=True)
class PageRoute:
    """One row.

    Attributes:
        path: below `ROOT`; variable parts are in braces.
        answer: the handler.
        is_form: whether the page has a form that is sent to its own address.
    """

    path: str
    answer: Callable[[PageRequest], Awaitable[Answer]]
    is_form: bool = False
