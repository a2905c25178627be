"""`LongReplies`: answers of one connection that may be as long as a frame, to short questions: reads of tables.

A peer that asks and takes no answers must not fill memory with them. So a long reply is made only while the peer takes
what was sent before; one that was made when the peer had stopped is thrown away, and made again when it goes on: these
requests change nothing. What is made again comes one at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from penstock.model.routing import container_of
from penstock.wire import commands as wire
from penstock.wire.codec import encode
from penstock.wire.commands import WireCommand

#: The requests that have long replies.
LONG_REPLY_REQUESTS = (wire.ReadTable, wire.ReadTableKeys, wire.ReadTableEntries, wire.ReadTableEntriesDelta)
LongReplyRequest = wire.ReadTable | wire.ReadTableKeys | wire.ReadTableEntries | wire.ReadTableEntriesDelta


class LongReplyHost(Protocol):
    """The sending side of a connection, as long replies see it."""

    @property
    def takes_replies(self) -> bool:
        """Whether what waits to be sent is little enough; `LongReplies.resume` is called when it becomes so."""
        ...

    def send_long(self, frame: bytes) -> None:
        """Queue a reply, which counts until it is handed to the transport."""


class LongReplies:
    """Answers the reads of tables of one connection.

    Args:
        answer: makes the reply to a request.
        container_count: of the store.
        under_way_max: reads under way in each container, each of which may hold a reply that is partly made.
    """

    def __init__(
        self,
        host: LongReplyHost,
        answer: Callable[[WireCommand], Awaitable[WireCommand]],
        *,
        container_count: int,
        under_way_max: int,
    ) -> None:
        self._host = host
        self._answer = answer
        self._container_count = container_count
        self._under_way_max = under_way_max
        #: By container: one whose storage is stuck holds up its own reads alone.
        self._turns: dict[int, asyncio.Semaphore] = {}
        #: Whose reply was thrown away, or not begun, since the peer took nothing.
        self._line = asyncio.Lock()
        self._resumed: asyncio.Future[None] | None = None

    async def reply(self, command: LongReplyRequest) -> None:
        """Answer a request, once the peer takes the answer. Raises what `answer` raises."""
        container_id = container_of(command.segment, self._container_count)
        turn = self._turns.get(container_id)
        if turn is None:
            turn = self._turns[container_id] = asyncio.Semaphore(self._under_way_max)
        async with turn:
            if self._host.takes_replies and await self._is_sent(command):
                return
            async with self._line:
                while True:
                    await self._until_taken()
                    if await self._is_sent(command):
                        return

    async def _is_sent(self, command: LongReplyRequest) -> bool:
        reply = await self._answer(command)
        if not self._host.takes_replies:
            return False
        self._host.send_long(encode(reply))
        return True

    async def _until_taken(self) -> None:
        while not self._host.takes_replies:
            if self._resumed is None:
                self._resumed = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._resumed)

    def resume(self) -> None:
        """Go on: the peer takes replies."""
        if self._resumed is not None:
            self._resumed.set_result(None)
            self._resumed = None
