"""Requests to a segment store in numbers: several connections, a window of requests on each, progress on stderr.

The commands here that ask for a million small things speak the wire protocol themselves, so that the client library's
bookkeeping is not what they measure. What is sent is what any client would send.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from penstock.wire.commands import WireCommand
from penstock.wire.connection import ConnectionSettings, WireConnection, open_connection

#: Given a connection and a number, does the work of that number.
Work = Callable[[WireConnection, int], Awaitable[None]]
#: Given a request id, the request.
Make = Callable[[int], WireCommand]

_PROGRESS_INTERVAL_S = 5.0


class UnexpectedReplyError(Exception):
    """The server answered with something that the command cannot go on from."""


async def ask(connection: WireConnection, make: Make, *expected: type[WireCommand]) -> WireCommand:
    """Send a request and return its reply. Raises `UnexpectedReplyError` if that is none of `expected`."""
    request_id = connection.next_request_id()
    reply = await connection.request(request_id, make(request_id), timeout_s=None)
    if not isinstance(reply, expected):
        raise UnexpectedReplyError(f"{make(request_id)} was answered with {reply}")
    return reply


async def connect(port: int) -> WireConnection:
    """Open a connection to the segment store at `port`, one that is patient."""
    settings = ConnectionSettings(connect_timeout_s=30.0, keepalive_interval_s=300.0)
    return await open_connection("127.0.0.1", port, settings=settings)


class Progress:
    """Says on stderr how far a phase is."""

    def __init__(self, what: str, count: int) -> None:
        self._what = what
        self._count = count
        self._begin_s = self._said_s = time.perf_counter()
        self.done = 0

    def add(self, count: int = 1) -> None:
        """Count what is done."""
        self.done += count
        now_s = time.perf_counter()
        if now_s - self._said_s >= _PROGRESS_INTERVAL_S:
            self._said_s = now_s
            rate = self.done / (now_s - self._begin_s)
            say(f"{self._what}: {self.done:,} of {self._count:,}, {rate:,.0f}/s")


def say(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)


async def for_each(
    port: int,
    what: str,
    numbers: Sequence[int],
    work: Work,
    *,
    connections: int,
    window: int,
    per_connection_max: int = 1 << 62,
) -> float:
    """Do `work` for each of `numbers`, which are divided among connections; return the seconds that it took.

    Each connection has `window` of them under way, and is replaced by a new one after `per_connection_max`.
    """
    progress = Progress(what, len(numbers))
    begin_s = time.perf_counter()

    async def lane(mine: Sequence[int]) -> None:
        for first in range(0, len(mine), per_connection_max):
            rest: Iterator[int] = iter(mine[first : first + per_connection_max])
            connection = await connect(port)

            async def worker(rest: Iterator[int] = rest, connection: WireConnection = connection) -> None:
                for number in rest:
                    await work(connection, number)
                    progress.add()

            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(window):
                        group.create_task(worker())
            finally:
                await connection.close()

    async with asyncio.TaskGroup() as group:
        for lane_number in range(connections):
            group.create_task(lane(numbers[lane_number::connections]))
    return time.perf_counter() - begin_s


def run(main: Awaitable[None]) -> None:
    """Run a command's coroutine on the loop that the server uses, too."""
    from penstock.cli.serve import new_loop

    async def whole() -> None:
        await main

    with asyncio.Runner(loop_factory=new_loop()) as runner:
        try:
            runner.run(whole())
        except BaseExceptionGroup as group:
            raise SystemExit(f"{_first(group)}") from group


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextmanager
def stopwatch(into: dict[str, float], name: str) -> Iterator[None]:
    """Note the seconds that a block takes."""
    begin_s = time.perf_counter()
    yield
    into[name] = round(time.perf_counter() - begin_s, 2)
