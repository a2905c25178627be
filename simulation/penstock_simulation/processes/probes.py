"""`ContainerProbes`: clients that find out, for each container and for the controllers, how long nothing is answered.

A probe of a container appends to a segment of its own in it, and reads the bytes back. The probe of the controllers
begins and aborts transactions. Each does so again as soon as it has an answer, after a pause.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from penstock.client.client import Client
from penstock.model.errors import PenstockError, SegmentExistsError
from penstock.model.names import segment_name
from penstock.model.policies import Scaling
from penstock.model.routing import container_of

_SCOPE = "probes"
_STREAM = f"{_SCOPE}/transactions"
#: Name of the probe of the controllers; a probe of a container has the container's number.
CONTROLLERS = "controllers"
_RETRY_S = 0.05
_NAMES_TRIED_MAX = 100_000
_ERRORS_KEPT_MAX = 50


@dataclass(slots=True)
class Answers:
    """When one probe was answered.

    Attributes:
        last_s: the end of the last round that succeeded, by `time.monotonic`.
        last_begin_s: the beginning of that round.
        longest_s: the longest time between two such ends since the last reset.
    """

    last_s: float
    last_begin_s: float = 0.0
    longest_s: float = 0.0

    def note(self, begin_s: float) -> None:
        """Note that a round has succeeded."""
        now_s = time.monotonic()
        self.longest_s = max(self.longest_s, now_s - self.last_s)
        self.last_s, self.last_begin_s = now_s, begin_s


@dataclass(slots=True)
class ContainerProbes:
    """See the module. `connect` opens a client; `container_count`: of the cluster; `pause_s`: after each round.

    Attributes:
        answers: by name of the probe.
        errors: of rounds, newest last, as text; they are repeated.
        error_count: number of rounds that failed since the last reset.
        broken: promises that a probe saw broken: bytes that it did not read back.
    """

    connect: Callable[[], Client]
    container_count: int
    pause_s: float = 0.1
    answers: dict[str, Answers] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    error_count: int = 0
    broken: list[str] = field(default_factory=list)
    _has_answer: asyncio.Event = field(default_factory=asyncio.Event)

    async def prepare(self) -> None:
        """Create the segments and the stream."""
        async with self.connect() as client:
            await client.create_stream(_STREAM, scaling=Scaling.fixed(1), exist_ok=True)
            for _, segment in self._segments():
                try:
                    await client._segment_client.create_segment(segment)
                except SegmentExistsError:
                    continue

    async def run(self) -> None:
        """Probe until cancelled."""
        async with self.connect() as client, asyncio.TaskGroup() as probes:
            for container_id, segment in self._segments():
                probes.create_task(self._probe_container(client, str(container_id), segment))
            probes.create_task(self._probe_controllers(client))

    def reset(self) -> None:
        """Forget the errors and the longest times so far."""
        for each in self.answers.values():
            each.longest_s = 0.0
        self.errors.clear()
        self.error_count = 0

    def gaps_s(self) -> dict[str, float]:
        """Return the longest time without an answer of each probe, which may still last."""
        now_s = time.monotonic()
        return {name: max(each.longest_s, now_s - each.last_s) for name, each in self.answers.items()}

    async def all_answered(self) -> None:
        """Wait until each probe has succeeded in a round that began after this call."""
        since_s = time.monotonic()
        while any(each.last_begin_s < since_s for each in self.answers.values()):
            self._has_answer.clear()
            await self._has_answer.wait()

    def _segments(self) -> Iterator[tuple[int, str]]:
        """Yield a segment for each container."""
        missing = set(range(self.container_count))
        for number in range(_NAMES_TRIED_MAX):
            segment = segment_name(_SCOPE, f"probe-{number}", 0)
            container_id = container_of(segment, self.container_count)
            if container_id in missing:
                missing.remove(container_id)
                yield container_id, segment
            if not missing:
                return

    async def _probe_container(self, client: Client, name: str, segment: str) -> None:
        segments = client._segment_client
        answers = self.answers[name] = Answers(time.monotonic())
        number = 0
        while True:
            begin_s = time.monotonic()
            number += 1
            data = b"%020d" % number
            try:
                end = await segments.append(segment, data)
                found = (await segments.read(segment, end - len(data), len(data))).joined()
            except PenstockError as error:
                await self._failed(name, error)
                continue
            if found != data:
                self.broken.append(f"container {name}: appended {data!r} and read {found!r}")
            answers.note(begin_s)
            self._has_answer.set()
            await asyncio.sleep(self.pause_s)

    async def _probe_controllers(self, client: Client) -> None:
        answers = self.answers[CONTROLLERS] = Answers(time.monotonic())
        while True:
            begin_s = time.monotonic()
            try:
                transaction = await client.begin_transaction(_STREAM, lease_s=60.0)
                await transaction.abort()
            except PenstockError as error:
                await self._failed(CONTROLLERS, error)
                continue
            answers.note(begin_s)
            self._has_answer.set()
            await asyncio.sleep(self.pause_s)

    async def _failed(self, name: str, error: PenstockError) -> None:
        self.error_count += 1
        if len(self.errors) < _ERRORS_KEPT_MAX:
            self.errors.append(f"probe {name}: {type(error).__name__}: {error}")
        await asyncio.sleep(_RETRY_S)
