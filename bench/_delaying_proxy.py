"""`delaying_proxy`: a TCP proxy in a process of its own that adds a fixed time to each request.

What a client sends is passed on after the delay, in order and without a limit of rate; answers are passed on at once.
So each request takes that much longer, however long it is and however many are under way.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

_READ_BYTES = 1 << 20
#: Bytes of one connection that are delayed at a time; more are not read.
_HELD_BYTES_MAX = 64 << 20


@contextmanager
def delaying_proxy(target_port: int, delay_s: float) -> Iterator[tuple[int, int]]:
    """Run a proxy before a port of this machine; give its port and its process id."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(target_port, delay_s, theirs), daemon=True)
    process.start()
    try:
        assert process.pid is not None
        yield int(ours.recv()), process.pid
    finally:
        process.kill()
        process.join()


def _run(target_port: int, delay_s: float, pipe: Connection) -> None:
    #: asyncio itself keeps no reference to the task of a connection.
    flows: set[asyncio.Task[None] | None] = set()

    async def serve() -> None:
        async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            flows.add(own := asyncio.current_task())
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target_port, limit=_READ_BYTES)
            try:
                await asyncio.gather(_pass_on(reader, far_writer, delay_s), _pass_on(far_reader, writer, 0.0))
            finally:
                flows.discard(own)
                for each in (writer, far_writer):
                    each.close()

        server = await asyncio.start_server(on_connection, "127.0.0.1", 0, limit=_READ_BYTES)
        pipe.send(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    try:
        import uvloop

        uvloop.run(serve())
    except ImportError:
        asyncio.run(serve())


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_HELD_BYTES_MAX // _READ_BYTES)

    async def send() -> None:
        while True:
            due_s, data = await held.get()
            if (rest_s := due_s - loop.time()) > 0:
                await asyncio.sleep(rest_s)
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()

    sending = loop.create_task(send())
    try:
        with suppress(ConnectionError):
            while True:
                data = await reader.read(_READ_BYTES)
                await held.put((loop.time() + delay_s, data))
                if not data:
                    break
        with suppress(ConnectionError, RuntimeError):
            await sending
    finally:
        sending.cancel()
