"""`StorageTurns`: which read goes to long-term storage next, in turns by client.

A bounded number is under way. The others wait in a queue for each client, and each client in turn has one begun: a
client with a thousand reads delays another one's read by one of its own, not by all. A client is a connection, or
another caller; the container's own reads are one client together. A read that two clients want waits in the queues of
both, and the first turn of either begins it.

The caller bounds how many wait for one client, see `ConnectionSettings.reads_max`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable


class Turn:
    """The place of one read.

    Attributes:
        clients: for whom it is.
        is_given: it may go to storage, or has been there.
    """

    __slots__ = ("_future", "clients", "is_given")

    def __init__(self, client: Hashable) -> None:
        self.clients: dict[Hashable, None] = {client: None}
        self.is_given: bool = False
        self._future: asyncio.Future[None] | None = None


class StorageTurns:
    """See the module. `count_max`: turns that are given at once."""

    def __init__(self, count_max: int) -> None:
        self._free_count = count_max
        #: Who is next comes first; there is no empty queue.
        self._queues: OrderedDict[Hashable, OrderedDict[Turn, None]] = OrderedDict()

    @property
    def waiting_count(self) -> int:
        """Reads that wait, those of several clients once for each."""
        return sum(map(len, self._queues.values()))

    async def take(self, turn: Turn) -> None:
        """Wait until it is this one's turn. `leave` is to follow, whether this returned or raised."""
        if self._free_count and not self._queues:
            self._free_count -= 1
            turn.is_given = True
            return
        turn._future = asyncio.get_running_loop().create_future()
        for client in turn.clients:
            self._queues.setdefault(client, OrderedDict())[turn] = None
        await turn._future

    def join(self, turn: Turn, client: Hashable) -> None:
        """Let a read that waits, or will, be another client's, too."""
        if client not in turn.clients:
            turn.clients[client] = None
            if turn._future is not None and not turn.is_given:
                self._queues.setdefault(client, OrderedDict())[turn] = None

    def leave(self, turn: Turn) -> None:
        """End a turn, or the wait for it."""
        if turn.is_given:
            self._free_count += 1
            self._give_next()
        elif turn._future is not None:
            self._unqueue(turn)

    def _give_next(self) -> None:
        while self._free_count and self._queues:
            client, queue = next(iter(self._queues.items()))
            turn = next(iter(queue))
            self._unqueue(turn)
            if client in self._queues:
                self._queues.move_to_end(client)
            self._free_count -= 1
            turn.is_given = True
            assert turn._future is not None
            if not turn._future.done():  # One that was cancelled leaves when its task goes on.
                turn._future.set_result(None)

    def _unqueue(self, turn: Turn) -> None:
        for client in turn.clients:
            queue = self._queues.get(client)
            if queue is not None:
                queue.pop(turn, None)
                if not queue:
                    del self._queues[client]
