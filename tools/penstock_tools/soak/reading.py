"""Clients that read: one reader of everything, and a group whose readers come, leave and die."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.client.client import Client
from penstock.client.groups.reader import Reader
from penstock.client.groups.reader_group import ReaderGroup
from penstock.client.reading.event import Event
from penstock.model.errors import PenstockError
from penstock_tools.soak.events import DamagedEventError, parse_in_transaction, parse_numbered
from penstock_tools.soak.session import EVENTS, FOLLOWER, PAYMENTS, READER_TIMEOUT_S, SHARED, Session

_POLL_S = 1.0
_CLOSE_TIMEOUT_S = 120.0


class Follower:
    """The only reader of a group of both streams: it never ends, so it sees each event once, in order."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def run(self) -> None:
        """Read until `is_read` is set."""
        session = self._session
        async with session.connect() as client:
            group = await session.patiently("follower", lambda: _group(client, FOLLOWER, [EVENTS, PAYMENTS]))
            reader = await session.patiently("follower", lambda: group.reader("follower"))
            try:
                while not session.is_read.is_set():
                    try:
                        event = await reader.read(_POLL_S)
                    except PenstockError as error:
                        session.error("follower", error)
                        await asyncio.sleep(_POLL_S)
                        continue
                    if event is not None:
                        self._see(event)
            finally:
                await reader.abandon()

    def _see(self, event: Event) -> None:
        session = self._session
        try:
            if event.stream == PAYMENTS:
                session.check(session.transactions.see(parse_in_transaction(event.data)))
            else:
                session.check(session.order.see(parse_numbered(event.data)))
        except DamagedEventError as error:
            session.check([f"{event.stream}, segment {event.segment_id} at byte {event.offset}: {error}"])


class Churn:
    """The readers of a group. Each one reads for a while, then leaves in order or dies; another one takes its place.

    A dead reader is removed by its group after the time-out, or by an administrator at once.
    """

    def __init__(self, session: Session, number: int, life_s: float) -> None:
        self._session = session
        self._number = number
        self._rng = session.rng(f"churn-{number}")
        self._life_s = life_s
        self._count = 0

    async def run(self) -> None:
        """Read, with one reader after another, until `is_read` is set."""
        session = self._session
        name = f"churn-{self._number}"
        while not session.is_read.is_set():
            # Each reader has a client of its own, as separate programs would; a dead one leaves nothing open.
            async with session.connect() as client:
                group = await session.patiently(name, lambda client=client: _group(client, SHARED, [EVENTS]))  # type: ignore[misc]
                await self._one_life(group)

    async def _one_life(self, group: ReaderGroup) -> None:
        session = self._session
        self._count += 1
        name = f"reader-{self._number}-{self._count}"
        try:
            reader = await group.reader(name)
        except PenstockError as error:
            session.error(name, error)
            session.group.died(name)
            await asyncio.sleep(_POLL_S)
            return
        session.counts["readers started"] += 1
        end_s = asyncio.get_running_loop().time() + self._life_s * self._rng.uniform(0.3, 1.7)
        try:
            await self._read_until(reader, end_s, lambda event: session.group.see(name, parse_numbered(event.data)))
            # At the end all of them close, so that no event is left to one that died.
            if session.is_read.is_set() or self._rng.random() < 0.5:
                await reader.close(_CLOSE_TIMEOUT_S)
                return
            session.counts["readers died"] += 1
        except PenstockError as error:
            session.error(name, error)
        session.group.died(name)
        await reader.abandon()
        if self._rng.random() < 0.7:
            await session.patiently(name, lambda: group.remove_reader(name))

    async def _read_until(self, reader: Reader, end_s: float, see: Callable[[Event], object]) -> None:
        session, loop = self._session, asyncio.get_running_loop()
        while loop.time() < end_s and not session.is_read.is_set():
            event = await reader.read(_POLL_S)
            if event is None:
                continue
            try:
                session.check(see(event))  # type: ignore[arg-type]
            except DamagedEventError as error:
                session.check([f"group, segment {event.segment_id} at byte {event.offset}: {error}"])


async def _group(client: Client, name: str, streams: list[str]) -> ReaderGroup:
    return await client.reader_group(
        name, streams, retention="automatic", reader_timeout_s=READER_TIMEOUT_S, processing_time_max_s=READER_TIMEOUT_S
    )
