"""Calls that Penstock adds to Pravega's protocols, while servers of several versions answer or do not know them.

Each gives what it has promised, whichever server answers: the stream's identity, or none; the same history; statistics;
a tail that no transaction crosses, or the error that says that the server does not support it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from penstock.client.client import Client
from penstock.model.errors import PenstockError, UnsupportedOperationError
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.world import Workload, World

_PAUSE_S = 0.7


class AddedCalls(Workload):
    """See the module. `stream`: one that is scaled, and is never deleted."""

    verifies_again = False

    def __init__(self, world: World, host: Host, name: str, rng: random.Random, *, stream: str) -> None:
        super().__init__(world, host, name, rng)
        self._stream = stream
        self._identity = ""
        #: Segments, by epoch.
        self._epochs: dict[int, list[int]] = {}

    async def run(self) -> None:
        """See `Workload.run`."""
        # Clients that are made one after the other begin with different controllers.
        clients = [self.make_client() for _ in range(2)]
        for client in clients:
            client._open()
        try:
            while self.world.is_writing:
                calls = (self._identify, self._list_epochs, self._measure, self._find_tail)
                await self._call(self.rng.choice(clients), self.rng.choice(calls))
                await self.rest(_PAUSE_S)
        finally:
            for client in clients:
                await client.close()

    async def _call(self, client: Client, call: Callable[[Client], Awaitable[None]]) -> None:
        name = call.__name__.strip("_")
        try:
            await call(client)
        except UnsupportedOperationError as error:
            if name != "find_tail":
                self.world.problem(f"{self.name}: {name} needs no support of the server: {error!r}")
            self.world.counts["added calls refused"] += 1
        except PenstockError as error:
            if not self.world.is_passing(error):
                self.world.problem(f"{self.name}: {name}: {error!r}")
        else:
            self.world.counts[f"added calls: {name}"] += 1

    async def _identify(self, client: Client) -> None:
        identity = await client.stream_identity(self._stream)
        if identity is None:
            return
        if self._identity not in ("", identity):
            self.world.problem(f"{self.name}: the identity was {self._identity}, and is {identity}")
        self._identity = identity

    async def _list_epochs(self, client: Client) -> None:
        history = await client.history(self._stream)
        for epoch in history.epochs:
            segments = sorted(int(each.segment_id) for each in epoch.segments)
            known = self._epochs.setdefault(epoch.number, segments)
            if known != segments:
                self.world.problem(f"{self.name}: epoch {epoch.number} had the segments {known}, now {segments}")

    async def _measure(self, client: Client) -> None:
        await client.statistics()

    async def _find_tail(self, client: Client) -> None:
        await client.tail(self._stream, whole_transactions=True)
