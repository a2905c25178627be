"""A client that repeatedly creates, changes, truncates, seals and deletes streams of a few names.

Now and then it abandons a call and does not use that name again: the controller must then finish the work it has begun,
see `check_controller`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from penstock.model.errors import NoSuchStreamError, PenstockError, StreamError, StreamExistsError
from penstock.model.policies import Scaling
from penstock.model.stream_cuts import StreamCut
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.world import Workload, World

_SEGMENT_COUNT = 2
_TAGS = ("red", "green", "blue")


@dataclass(slots=True)
class _Life:
    """The known state of a name. No other client uses it, and every call is repeated until its outcome is known."""

    name: str
    is_there: bool = False
    is_sealed: bool = False
    tags: tuple[str, ...] = ()
    #: The head and the tail of each segment.
    start: int = 0
    length: int = 0


class StreamLives(Workload):
    """See the module. Late requests must not change acknowledged state: each name is checked before each change."""

    def __init__(
        self, world: World, host: Host, name: str, rng: random.Random, *, prefix: str, mean_gap_s: float
    ) -> None:
        super().__init__(world, host, name, rng)
        self._mean_gap_s = mean_gap_s
        self._prefix = prefix
        self._name_count = 0
        self._lives = [self._new_life() for _ in range(2)]
        self._tag_number = 0

    async def run(self) -> None:
        """See `Workload.run`."""
        while self.world.is_writing:
            await self.rest(self._mean_gap_s / 2)
            at = self.rng.randrange(len(self._lives))
            life = self._lives[at]
            patience_s = self.rng.uniform(0.0, 0.2) if self.rng.random() < 0.3 else None
            try:
                await self._inspect(life)
                async with asyncio.timeout(patience_s):
                    await self._change(life)
            except TimeoutError:
                self._lives[at] = self._new_life()
                self.world.counts["changes of streams left"] += 1
            except PenstockError as error:
                # `insist` gave up, or the answer was invalid: both are reported.
                self.world.problem(f"{self.name}: {life.name}: {error!r}")
                return

    async def verify(self) -> None:
        """See `Workload.verify`."""
        for life in self._lives:
            await self._inspect(life)

    def _new_life(self) -> _Life:
        self._name_count += 1
        return _Life(f"{self._prefix}-{self._name_count}")

    async def _insist(self, what: str, call: Callable[[], Awaitable[object]]) -> None:
        async def attempt() -> None:
            await call()

        await self.world.insist(what, attempt)

    async def _change(self, life: _Life) -> None:
        rng, name = self.rng, life.name
        if not life.is_there:
            tags = self._new_tags()

            async def create() -> None:
                try:
                    await self.client.create_stream(name, scaling=Scaling.fixed(_SEGMENT_COUNT), tags=tags)
                except StreamExistsError:
                    # An attempt without an answer may have created it, with these tags: no other client does.
                    return

            await self._insist(f"creation of {name}", create)
            life.is_there, life.is_sealed, life.tags, life.start, life.length = True, False, tags, 0, 0
        elif life.is_sealed:

            async def delete() -> None:
                try:
                    await self.client.delete_stream(name)
                except NoSuchStreamError:
                    return

            await self._insist(f"deletion of {name}", delete)
            life.is_there = False
        elif (choice := rng.random()) < 0.3:
            await self._insist(f"seal of {name}", lambda: self.client.seal_stream(name))
            life.is_sealed = True
        elif choice < 0.65:
            tags = self._new_tags()
            await self._insist(f"update of {name}", lambda: self.client.update_stream(name, tags=tags))
            life.tags = tags
        else:
            await self._truncate(life)
        self.world.counts["changes of streams"] += 1

    async def _truncate(self, life: _Life) -> None:
        tail = await self.world.insist(f"tail of {life.name}", lambda: self.client.tail(life.name))
        scope, _, stream = life.name.partition("/")
        start = life.start + 1
        for segment, length in tail.positions.items():
            if length < start:
                name = f"{scope}/{stream}/{segment}.#epoch.0"

                async def append(name: str = name, length: int = length, missing: int = start - length) -> None:
                    found = await self.client._segment_client.segment_info(name)
                    if found.length == length:
                        await self.client._segment_client.append(name, bytes(missing), expected_offset=length)

                await self._insist(f"append to {name}", append)
        cut = StreamCut(scope, stream, dict.fromkeys(tail.positions, start))
        await self._insist(f"truncation of {life.name}", lambda: self.client.truncate_stream(cut))
        life.start = start

    def _new_tags(self) -> tuple[str, ...]:
        self._tag_number += 1
        return (self.rng.choice(_TAGS), f"tag-{self._tag_number}")

    async def _inspect(self, life: _Life) -> None:
        """Compare the controller's view of a name with the known state."""
        world, name = self.world, life.name
        exists = await world.insist(f"existence of {name}", lambda: self.client.stream_exists(name))
        if exists != life.is_there:
            world.problem(f"{name} {'is there' if exists else 'is not there'}, and should{' not' if exists else ''} be")
            return
        if not exists:
            return
        try:
            config = await world.insist(f"configuration of {name}", lambda: self.client.stream_config(name))
            head = await world.insist(f"head of {name}", lambda: self.client.head(name))
        except StreamError as error:
            world.problem(f"{name}: {error!r}")
            return
        if config.tags != life.tags:
            world.problem(f"{name} has the tags {config.tags}, and should have {life.tags}")
        if set(head.positions.values()) != {life.start}:
            world.problem(f"{name} begins at {head.positions}, and should at {life.start}")
        world.counts["streams inspected"] += 1
