"""The simulated coordination service: group membership as in ZooKeeper.

A member is a session. A session lives while a heartbeat arrives at least every `session_timeout_s`; otherwise, after a
pause, a crash or a partition of its controller, it ends permanently. It ends by the clock of the service alone. Its
controller learns of it with its next request and until then wrongly considers itself a member.
`coordination_client` is the controller's side.

`Sessions` is the state that ZooKeeper's servers agree on; it outlives each server. `CoordinationServer` is one life of
the server that clients connect to. A server that has just started gives every session its full timeout again.

A message is a line of JSON: a `Request` from a controller, a `Reply` to it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypedDict, cast


@dataclass(frozen=True, slots=True)
class CoordinationSettings:
    """Times of the coordination service and its clients.

    Attributes:
            session_timeout_s: a session without heartbeats for this long ends.
            heartbeat_interval_s: interval between two heartbeats of a controller.
            request_timeout_s: a request without an answer fails after this, and its connection is closed.
    """

    session_timeout_s: float = 3.0
    heartbeat_interval_s: float = 0.7
    request_timeout_s: float = 1.0


class Refusal(Enum):
    """Why a request failed. NONE: it succeeded."""

    NONE = ""
    TAKEN = "taken"
    EXPIRED = "expired"


class Request(TypedDict):
    """A request of a controller: `call` is ``join``, ``beat``, ``members``, ``changed`` or ``leave``.

    `session` is 0 in ``join``, else the number that ``join`` returned; `version` is used by ``changed`` only.
    """

    number: int
    call: str
    name: str
    session: int
    version: int


class Reply(TypedDict):
    """The answer to the request with the same number: the members, and the session of the caller."""

    number: int
    refusal: str
    session: int
    version: int
    names: list[str]


class Sessions:
    """The members, by name; see the module. `note` is called for every change."""

    def __init__(self, note: Callable[[str], None] | None = None) -> None:
        self.version: int = 0
        self._numbers: dict[str, int] = {}
        self._last_number = 0
        self._note = note

    @property
    def names(self) -> frozenset[str]:
        """The members."""
        return frozenset(self._numbers)

    def numbers(self) -> dict[str, int]:
        """Return the sessions by name."""
        return dict(self._numbers)

    def is_alive(self, name: str, number: int) -> bool:
        """Return whether a session is alive."""
        return self._numbers.get(name) == number

    def begin(self, name: str) -> int:
        """Add a member, and return the number of its session."""
        self._last_number += 1
        self._numbers[name] = self._last_number
        self._changed(f"member {name} joins")
        return self._last_number

    def end(self, name: str, why: str) -> None:
        """Remove a member."""
        del self._numbers[name]
        self._changed(f"member {name} {why}")

    def _changed(self, what: str) -> None:
        self.version += 1
        if self._note is not None:
            self._note(what)


class Lines(asyncio.Protocol):
    """Splits incoming data into lines. `closed` is called once, when the connection has ended."""

    def __init__(self, received: Callable[[Lines, bytes], None], closed: Callable[[Lines], None]) -> None:
        self._received = received
        self._closed = closed
        self._pending = b""
        self._transport: asyncio.Transport | None = None
        self.is_lost: bool = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._received(self, line)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self.is_lost = True
        self._closed(self)

    def send(self, message: Request | Reply) -> None:
        """Send a message, if the connection is still open."""
        if self._transport is not None and not self.is_lost:
            self._transport.write(json.dumps(message).encode() + b"\n")

    def abort(self) -> None:
        """Close the connection; nothing more is received."""
        self.is_lost = True
        if self._transport is not None:
            self._transport.abort()


@dataclass(frozen=True, slots=True)
class _Watch:
    """A pending request ``changed``."""

    connection: Lines
    request: Request


class CoordinationServer:
    """See the module. One per life of the service, over the same `Sessions`."""

    def __init__(self, sessions: Sessions, settings: CoordinationSettings) -> None:
        self._sessions = sessions
        self._settings = settings
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._watches: dict[int, _Watch] = {}
        self._watch_count = 0
        self._listener: asyncio.AbstractServer | None = None

    async def start(self, host: str | None, port: int) -> int:
        """Start serving, and return the port. Existing sessions continue."""
        for name in sorted(self._sessions.names):
            self._heard_of(name)
        loop = asyncio.get_running_loop()
        self._listener = listener = await loop.create_server(lambda: Lines(self._received, self._closed), host, port)
        return int(listener.sockets[0].getsockname()[1])

    def stop(self) -> None:
        """Stop serving."""
        for timer in self._timers.values():
            timer.cancel()
        if self._listener is not None:
            self._listener.close()

    def expire(self, name: str) -> None:
        """End a session now, as if its timeout had passed."""
        self._end(name, "expires")

    def _heard_of(self, name: str) -> None:
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()
        self._timers[name] = asyncio.get_running_loop().call_later(self._settings.session_timeout_s, self.expire, name)

    def _end(self, name: str, why: str) -> None:
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()
        self._sessions.end(name, why)
        self._tell()

    def _tell(self) -> None:
        """Answer all requests that wait for a change."""
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            self._answer(watch.connection, watch.request)

    def _closed(self, connection: Lines) -> None:
        self._watches = {number: watch for number, watch in self._watches.items() if watch.connection is not connection}

    def _received(self, connection: Lines, line: bytes) -> None:
        request = cast(Request, json.loads(line))
        name = request["name"]
        if request["call"] == "join":
            if name in self._sessions.names:
                self._reply(connection, request, Refusal.TAKEN)
                return
            request["session"] = self._sessions.begin(name)
            self._heard_of(name)
            self._reply(connection, request, Refusal.NONE)
            self._tell()
        elif not self._sessions.is_alive(name, request["session"]):
            self._reply(connection, request, Refusal.EXPIRED)
        elif request["call"] == "leave":
            self._end(name, "leaves")
            self._reply(connection, request, Refusal.NONE)
        elif request["call"] == "changed" and request["version"] == self._sessions.version:
            self._heard_of(name)
            self._watch_count += 1
            self._watches[self._watch_count] = _Watch(connection, request)
        else:
            self._heard_of(name)
            self._reply(connection, request, Refusal.NONE)

    def _answer(self, connection: Lines, request: Request) -> None:
        is_alive = self._sessions.is_alive(request["name"], request["session"])
        self._reply(connection, request, Refusal.NONE if is_alive else Refusal.EXPIRED)

    def _reply(self, connection: Lines, request: Request, refusal: Refusal) -> None:
        names = [] if refusal is not Refusal.NONE else sorted(self._sessions.names)
        connection.send(
            Reply(
                number=request["number"], refusal=refusal.value, session=request["session"],
                version=self._sessions.version, names=names,
            )
        )  # fmt: skip
