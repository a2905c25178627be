"""`Route`: one row of the table of the REST interface, and `Request`, what its handler gets."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from penstock import aio
from penstock.web.errors import BadRequestError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter after the ``?`` of a path."""

    name: str
    summary: str
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """A request whose path is known.

    Attributes:
        client: a client of the cluster with the rights of the sender.
        path: the variable parts of the path, decoded.
        query: the parameters.
        body: bytes.
        user: the account of the sender; empty: it sent no password.
        is_https: whether the request came encrypted.
        end_session: refuses the session of the request from now on; does nothing without one.
        last_event_id: the ``Last-Event-ID`` of a caller that connects again to server-sent events.
    """

    client: aio.Client
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    user: str = ""
    is_https: bool = False
    end_session: Callable[[], None] = lambda: None
    last_event_id: str = ""

    @property
    def stream(self) -> str:
        """``scope/stream`` of the path."""
        return f"{self.path['scope']}/{self.path['stream']}"

    def json(self, kind: type[T]) -> T:
        """Return the body. Raises `BadRequestError` if it is not a `kind`."""
        try:
            return msgspec.json.decode(self.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequestError(f"the body is not what is expected: {error}") from error

    def number(self, name: str, default: int, *, least: int = 0, most: int = (1 << 63) - 1) -> int:
        """Return a parameter that is a number. Raises `BadRequestError`."""
        text = self.query.get(name)
        if text is None:
            return default
        try:
            found = int(text)
        except ValueError:
            raise BadRequestError(f"{name}={text!r} is not a number") from None
        if not least <= found <= most:
            raise BadRequestError(f"{name}={found}: use {least} to {most}")
        return found


@dataclass(frozen=True, slots=True)
class Reply:
    """What a handler answers: JSON, nothing, or server-sent events.

    Attributes:
        stream: server-sent events as they come, in place of `content`. Closed when the caller goes away.
    """

    status: int = 200
    content: object = None
    has_content: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: AsyncGenerator[bytes, None] | None = None


NOTHING: Reply = Reply(204, has_content=False)


@dataclass(frozen=True, slots=True)
class Route:
    """One row.

    Attributes:
        method, path: variable parts of the path are in braces.
        summary: one line for people.
        answer: the handler.
        status: of a success.
        later: status of a change that continues after the reply; None: there is none.
        queries: the parameters; others are ignored.
        body: type of the JSON body; None: there is none.
        reply: types of the JSON reply, more than one if a parameter decides; empty: it has none.
        needs: the permission, in words.
        is_pravega: whether Pravega's REST interface has it.
        is_stream: whether the reply is server-sent events.
        body_is_lines: whether the body is newline-delimited JSON, each line a `body`.
    """

    method: str
    path: str
    summary: str
    answer: Callable[[Request], Awaitable[Reply]]
    status: int = 200
    queries: tuple[Query, ...] = ()
    body: type | None = None
    reply: tuple[object, ...] = ()
    needs: str = ""
    is_pravega: bool = False
    body_is_lines: bool = False
    is_stream: bool = False
    later: int | None = None
