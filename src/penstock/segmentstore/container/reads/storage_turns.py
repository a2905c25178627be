"""`StorageTurns`: schedules reads of long-term storage round-robin by client.

A bounded number of reads is running. The rest wait in one queue per client, and the queues are served in turn: a client
with a thousand reads delays another client's read by one of its reads, not by all. A client is a connection or another
caller; all of the container's own reads together are one client. A read shared by two clients waits in both queues and
starts at the first turn of either.

The caller bounds the number of queued reads per client, see `ConnectionSettings.reads_max`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable


class Turn:
    """The position of one read in the queues.

    Attributes:
        clients: the clients that the read is for.
        is_given: whether the read may access storage, or has done so.
    """

    __slots__ = ("_future", "clients", "is_given")

    def __init__(self, client: Hashable) -> None:
        self.clients: dict[Hashable, None] = {client: None}
        self.is_given: bool = False
        self._future: asyncio.Future[None] | None = None


class StorageTurns:
    """See the module. `count_max`: maximum number of concurrent turns."""

    def __init__(self, count_max: int) -> None:
        self._free_count = count_max
        #: The next client comes first; there are no empty queues.
        self._queues: OrderedDict[Hashable, OrderedDict[Turn, None]] = OrderedDict()

    @property
    def waiting_count(self) -> int:
        """Number of queued reads; a shared read counts once per client."""
        return sum(map(len, self._queues.values()))

    async def take(self, turn: Turn) -> None:
        """Wait for this read's turn. Call `leave` afterwards, whether this returns or raises."""
        if self._free_count and not self._queues:
            self._free_count -= 1
            turn.is_given = True
            return
        turn._future = asyncio.get_running_loop().create_future()
        for client in turn.clients:
            self._queues.setdefault(client, OrderedDict())[turn] = None
        await turn._future

    def join(self, turn: Turn, client: Hashable) -> None:
        """Add a client to a read that is queued or will be."""
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
            if not turn._future.done():  # A cancelled read calls `leave` when its task resumes.
                turn._future.set_result(None)

    def _unqueue(self, turn: Turn) -> None:
        for client in turn.clients:
            queue = self._queues.get(client)
            if queue is not None:
                queue.pop(turn, None)
                if not queue:
                    del self._queues[client]
