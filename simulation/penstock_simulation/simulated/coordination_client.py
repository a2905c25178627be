"""`SimulatedCoordinator`: a controller's side of the simulated coordination service, over the simulated network.

As with ZooKeeper's client, a disconnected controller does not know whether its session has ended: it learns that only
from the service, once it can reach it again. Until then `SimulatedMembership.is_over` is false, and requests fail.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import cast

from penstock.controller.errors import MembershipLostError
from penstock.controller.ownership.coordinator import Members
from penstock.model.errors import ControllerUnavailableError, InvalidArgumentError
from penstock_simulation.simulated.coordination import CoordinationSettings, Lines, Refusal, Reply, Request

_logger = logging.getLogger(__name__)


class SimulatedCoordinator:
    """`Coordinator` over a connection to the service at a host and port, one for each membership."""

    def __init__(self, host: str, port: int, settings: CoordinationSettings) -> None:
        self._address = (host, port)
        self._settings = settings

    async def join(self, name: str) -> SimulatedMembership:
        """See `Coordinator.join`. Raises `ControllerUnavailableError`: the member may exist until its session ends."""
        link = _Link(*self._address, self._settings)
        try:
            reply = await link.ask("join", name)
        except BaseException:
            link.close()
            raise
        if reply["refusal"] == Refusal.TAKEN.value:
            link.close()
            raise InvalidArgumentError(f"controller {name} is already a member: names must be unique")
        return SimulatedMembership(link, name, reply["session"], self._settings)


class SimulatedMembership:
    """`Membership` by a session, kept alive by heartbeats."""

    def __init__(self, link: _Link, name: str, session: int, settings: CoordinationSettings) -> None:
        self._link = link
        self._name = name
        self._session = session
        self._settings = settings
        self._is_over = False
        self._beats = asyncio.get_running_loop().create_task(self._beat(), name=f"signs of life of {name}")

    @property
    def name(self) -> str:
        """See `Membership.name`."""
        return self._name

    @property
    def is_over(self) -> bool:
        """See `Membership.is_over`."""
        return self._is_over

    async def members(self) -> Members:
        """See `Membership.members`. Raises `ControllerUnavailableError` when there is no answer."""
        return _members(await self._ask("members"))

    async def changed(self, version: int) -> Members:
        """See `Membership.changed`. Raises `ControllerUnavailableError` when the connection is lost while waiting."""
        return _members(await self._ask("changed", version=version, waits=True))

    async def leave(self) -> None:
        """See `Membership.leave`. If the request fails, the session ends at its timeout."""
        if self._is_over:
            return
        try:
            await self._ask("leave")
        except MembershipLostError:
            return
        except ControllerUnavailableError as error:
            _logger.info("controller %s leaves, and cannot say so: %s", self._name, error)
        finally:
            self._end()

    async def _ask(self, call: str, *, version: int = 0, waits: bool = False) -> Reply:
        if self._is_over:
            raise self._lost()
        try:
            reply = await self._link.ask(call, self._name, session=self._session, version=version, waits=waits)
        except ControllerUnavailableError as error:
            if self._is_over:
                raise self._lost() from error
            raise
        if reply["refusal"] == Refusal.EXPIRED.value:
            self._end()
            raise self._lost()
        return reply

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._settings.heartbeat_interval_s)
            try:
                await self._ask("beat")
            except MembershipLostError:
                return
            except ControllerUnavailableError as error:
                _logger.info("the coordinator gets no message from controller %s: %s", self._name, error)

    def _end(self) -> None:
        self._is_over = True
        self._beats.cancel()
        self._link.close()

    def _lost(self) -> MembershipLostError:
        return MembershipLostError(f"controller {self._name} is no longer a member: it must join again")


def _members(reply: Reply) -> Members:
    return Members(reply["version"], frozenset(reply["names"]))


class _Link:
    """Sends requests over one connection; reconnects when it is lost."""

    def __init__(self, host: str, port: int, settings: CoordinationSettings) -> None:
        self._address = (host, port)
        self._settings = settings
        self._connection: Lines | None = None
        self._connecting = asyncio.Lock()
        self._last_number = 0
        self._asked: dict[int, tuple[Lines, asyncio.Future[Reply]]] = {}

    async def ask(self, call: str, name: str, *, session: int = 0, version: int = 0, waits: bool = False) -> Reply:
        """Return the answer. `waits`: no timeout while the connection lives. Raises `ControllerUnavailableError`."""
        connection: Lines | None = None
        self._last_number = number = self._last_number + 1
        try:
            async with asyncio.timeout(self._settings.request_timeout_s) as limit:
                connection = await self._connected()
                answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
                self._asked[number] = connection, answer
                connection.send(Request(number=number, call=call, name=name, session=session, version=version))
                if waits:
                    limit.reschedule(None)
                return await answer
        except (TimeoutError, OSError) as error:
            if connection is not None:
                connection.abort()
                self._closed(connection)
            raise ControllerUnavailableError(f"the coordinator gives no answer to {call} of {name}: {error}") from error
        finally:
            self._asked.pop(number, None)

    def close(self) -> None:
        """Close the connection; pending requests fail."""
        if self._connection is not None:
            self._connection.abort()
            self._closed(self._connection)

    async def _connected(self) -> Lines:
        async with self._connecting:
            if self._connection is None or self._connection.is_lost:
                loop = asyncio.get_running_loop()
                _, self._connection = await loop.create_connection(
                    lambda: Lines(self._received, self._closed), *self._address
                )
            return self._connection

    def _received(self, connection: Lines, line: bytes) -> None:
        reply = cast(Reply, json.loads(line))
        asked = self._asked.get(reply["number"])
        if asked is not None and not asked[1].done():
            asked[1].set_result(reply)

    def _closed(self, connection: Lines) -> None:
        for used, answer in self._asked.values():
            if used is connection and not answer.done():
                answer.set_exception(ConnectionResetError("the connection to the coordinator is lost"))
