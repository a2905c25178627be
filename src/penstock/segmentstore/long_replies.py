"""`LongReplies`: replies of one connection that may be as long as a frame, to short requests: reads of tables.

A peer that sends requests and reads no replies must not fill memory with them. So a long reply is created only while
the peer reads earlier ones. One created when the peer had stopped is discarded, and created again when it resumes:
these requests change nothing. Repeated replies are created one at a time.
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
    """The sending side of a connection, as used by long replies."""

    @property
    def takes_replies(self) -> bool:
        """Whether the bytes waiting to be sent are few enough; `LongReplies.resume` is called when they become so."""
        ...

    def send_long(self, frame: bytes) -> None:
        """Queue a reply, which is counted until it is handed to the transport."""


class LongReplies:
    """Answers the reads of tables of one connection.

    Args:
        answer: creates the reply to a request.
        container_count: containers of the store.
        under_way_max: concurrent reads in each container, each of which may hold a partly created reply.
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
        #: By container: one with stuck storage blocks only its own reads.
        self._turns: dict[int, asyncio.Semaphore] = {}
        #: Queue of requests whose reply was discarded, or not started, since the peer was not reading.
        self._line = asyncio.Lock()
        self._resumed: asyncio.Future[None] | None = None

    async def reply(self, command: LongReplyRequest) -> None:
        """Answer a request, once the peer reads the reply. Raises what `answer` raises."""
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
        """Resume: the peer reads replies."""
        if self._resumed is not None:
            self._resumed.set_result(None)
            self._resumed = None
