"""A process with the clients of a cluster: `Load`, and `ContainerProbes`. It does what its standard input says.

``python -m penstock_simulation.processes.cluster_load URI SEED CONTAINERS [probes]``, with ``probes`` without a `Load`.
A command is a word on a line; each answer is a JSON object on a line:

| Command | Does | Answer |
| --- | --- | --- |
| (start) | creates streams and segments, starts the clients | ``ready`` |
| ``reset`` | forgets gaps and errors | ``reset`` |
| ``answered`` | waits until each probe has an answer to a request sent after the command | ``s``: time waited |
| ``gaps`` | | ``gaps``: s by probe; ``errors``, ``error_count``: of all clients since the reset |
| ``finish`` | stops the load, reads everything, checks the history | ``violations``, ``counts`` |

The end of the input ends the process.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter

from penstock.client.client import Client
from penstock.client.settings import ClientSettings
from penstock.model.errors import PenstockError
from penstock.runtime.disk import LocalDisk
from penstock.runtime.runtime import Runtime, ThreadedWork
from penstock_simulation.checks.history import check_history
from penstock_simulation.checks.history_events import EventSeen, History
from penstock_simulation.processes.load import Load, LoadSettings
from penstock_simulation.processes.probes import ContainerProbes

#: A load that leaves most of a small machine to the servers.
SETTINGS = LoadSettings(
    writer_count=2, transaction_client_count=1, table_client_count=2, pause_s_max=0.1, settle_timeout_s=120.0
)
_ERRORS_KEPT_MAX = 50


class ClusterClients:
    """All clients of one run. `seed` draws the load, and names its streams."""

    def __init__(self, uri: str, seed: int, container_count: int, *, has_load: bool = True) -> None:
        self._uri = uri
        self._rng = random.Random(f"{seed}/clients")
        self._work = ThreadedWork(1)
        began_s = time.monotonic()
        self._history = History(lambda: time.monotonic() - began_s)
        self._probes = ContainerProbes(self._connect, container_count)
        settings = LoadSettings(
            **{name: getattr(SETTINGS, name) for name in SETTINGS.__slots__ if name != "stream"},
            stream=f"faults-{seed}/events",
        )
        self._load = _NotingLoad(self._connect, self._history, seed, settings) if has_load else None
        self._tasks: list[asyncio.Task[None]] = []

    def _connect(self) -> Client:
        runtime = Runtime(
            disk=LocalDisk(),
            work=self._work,
            rng=random.Random(self._rng.getrandbits(64)),
            wall_clock_ms=lambda: time.time_ns() // 1_000_000,
        )
        return Client(self._uri, ClientSettings(), runtime=runtime)

    async def start(self) -> None:
        """Prepare and start everything."""
        await self._probes.prepare()
        if self._load is not None:
            await self._load.prepare()
            self._tasks.append(asyncio.create_task(self._load.run()))
        self._tasks.append(asyncio.create_task(self._probes.run()))
        await asyncio.sleep(0)
        await self._probes.all_answered()

    async def do(self, command: str) -> dict[str, object]:
        """Execute a command, and return the answer."""
        for task in self._tasks:
            if task.done():
                await task
        match command:
            case "reset":
                self._probes.reset()
                if self._load is not None:
                    self._load.noted.clear()
                return {"reset": True}
            case "answered":
                begin_s = time.monotonic()
                await self._probes.all_answered()
                return {"s": time.monotonic() - begin_s}
            case "gaps":
                noted = [] if self._load is None else self._load.noted
                return {
                    "gaps": self._probes.gaps_s(),
                    "errors": [*self._probes.errors, *noted],
                    "error_count": self._probes.error_count + len(noted),
                }
            case "finish":
                return await self._finish()
            case _:
                raise ValueError(f"no command: {command!r}")

    async def _finish(self) -> dict[str, object]:
        violations = list(self._probes.broken)
        if self._load is not None:
            self._load.stop()
            await self._tasks[0]
            await self._load.read_whole("after-faults")
            violations += self._load.problems
            violations += check_history(self._history)
        counts = Counter(
            f"{type(ended.invocation.call).__name__} {ended.outcome.value}" for ended in self._history.calls()
        )
        counts["EventSeen"] = sum(isinstance(seen.observation, EventSeen) for seen in self._history.observations())
        return {"violations": violations, "counts": dict(sorted(counts.items()))}

    async def close(self) -> None:
        """Stop everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._work.close()


class _NotingLoad(Load):
    """`Load` that notes all errors of calls, also those that a fault explains."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.noted: list[str] = []

    def _problem(self, name: str, error: PenstockError) -> None:
        if len(self.noted) < _ERRORS_KEPT_MAX:
            self.noted.append(f"{name}: {type(error).__name__}: {error}")
        super()._problem(name, error)


async def _run(uri: str, seed: int, container_count: int, *, has_load: bool) -> None:
    clients = ClusterClients(uri, seed, container_count, has_load=has_load)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        await clients.start()
        _say({"ready": True})
        while line := await reader.readline():
            _say(await clients.do(line.decode().strip()))
    finally:
        await clients.close()


def _say(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), has_load="probes" not in sys.argv[4:]))
