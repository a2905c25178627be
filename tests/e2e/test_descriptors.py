"""A real server that may have few descriptors, and more connections than that."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from pathlib import Path

import pytest

import penstock
from penstock.client.settings import ClientSettings
from penstock.client.transport.connection_pool import ConnectionPool
from penstock.client.transport.wire_segments import WireSegments
from penstock.model.routing import container_of
from penstock.runtime.runtime import real_runtime
from penstock.wire.codec import encode
from penstock.wire.commands import Hello
from support.standalone_process import StandaloneProcess, warnings_in

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform == "win32", reason="there is no limit of descriptors"),
]

#: So low that a server without a reserve, which lets connections have all that it has, runs out of descriptors.
LIMIT = 128
#: Sets the limits, then becomes what its arguments say.
_LIMITED = (
    "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}));"
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
SETTINGS = """
[descriptors]
controller_percent = 10
[segment_store]
container_count = 2
[segment_store.container]
flush_age_s = 0.2
[durable_log]
first_file_length_bytes = 65_536
file_length_bytes = 65_536
spare_file_count_max = 0
"""
CONTAINER_COUNT = 2
#: A segment in each container.
SEGMENTS = [
    next(
        name
        for name in (f"shop/orders{number}/0.#epoch.0" for number in range(1000))
        if container_of(name, CONTAINER_COUNT) == container_id
    )
    for container_id in range(CONTAINER_COUNT)
]


class LimitedProcess(StandaloneProcess):
    """A server whose process, and those that it starts, may have `LIMIT` descriptors; its soft limit is lower."""

    def command(self) -> list[str]:
        """See `StandaloneProcess.command`."""
        python, *arguments = super().command()
        return [python, "-c", _LIMITED.format(soft=LIMIT // 2, hard=LIMIT), *arguments]


class Crowd:
    """Connections that say Hello, and those that were closed at once."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.sockets: list[socket.socket] = []

    def connect(self, count: int) -> None:
        for _ in range(count):
            with contextlib.suppress(OSError):
                connected = socket.create_connection(("127.0.0.1", self._port), timeout=5.0)
                self.sockets.append(connected)
                connected.sendall(encode(Hello(17, 5)))

    def served(self) -> int:
        """Count those that were answered; the others are closed."""
        count = 0
        for connected in self.sockets:
            try:
                count += bool(connected.recv(100))
            except OSError:
                continue
        return count

    def close(self) -> None:
        for connected in self.sockets:
            connected.close()
        self.sockets.clear()


async def write_for(segments: WireSegments, seconds: float) -> int:
    """Append to all containers for a while; return how many bytes of each were acknowledged."""
    end_s = time.monotonic() + seconds
    block = bytes(30_000)
    length = 0
    while time.monotonic() < end_s:
        for segment in SEGMENTS:
            length = await segments.append(segment, block)
    return length


@pytest.mark.parametrize("store_count", [1, 2])
async def test_connections_cannot_take_the_descriptors_that_containers_need(tmp_path: Path, store_count: int) -> None:
    """Hundreds of connections, more than descriptors: some are served, others closed at once; containers continue to
    make
    log files and chunks, and none of them ends. When connections close, new ones are served, also by the controller.
    """
    config = tmp_path / "penstock.toml"
    config.write_text(SETTINGS)
    with LimitedProcess(tmp_path, "--config", str(config), segment_stores=store_count) as server:
        stores = server.ready["segment_stores"]
        assert isinstance(stores, list)
        ports = {
            segment: int(store["address"].rpartition(":")[2])
            for container_id, segment in enumerate(SEGMENTS)
            for store in stores
            if container_id in store["containers"]
        }

        async def resolve(segment: str) -> tuple[str, int]:
            return "127.0.0.1", ports[segment]

        settings = ClientSettings(retry_time_max_s=10.0)
        pool = ConnectionPool(resolve, settings)
        segments = WireSegments(pool, settings, real_runtime(1).rng)
        for segment in SEGMENTS:
            await segments.create_segment(segment)
        before = await write_for(segments, 0.3)
        crowds = [Crowd(port) for port in dict.fromkeys(ports.values())]
        controller = Crowd(server.controller_port)
        for crowd in (*crowds, controller):
            await asyncio.to_thread(crowd.connect, 2 * LIMIT)
        for crowd in crowds:
            served = await asyncio.to_thread(crowd.served)
            assert 20 < served < LIMIT
        # Files are opened all the time: logs of 64 KiB, flushes after 0.2 s.
        async with asyncio.timeout(60.0):
            after = await write_for(segments, 3.0)
        assert after > before
        # At level INFO the controller logs attempts that it repeats.
        assert not [line for line in warnings_in(server.log) if "failed" in line]
        assert "Too many open files" not in server.log
        assert "refused a connection" in server.log
        for crowd in (*crowds, controller):
            crowd.close()
        for crowd in crowds:
            async with asyncio.timeout(60):
                while True:
                    await asyncio.to_thread(crowd.connect, 1)
                    if await asyncio.to_thread(crowd.served) == 1:
                        break
                    crowd.close()
                    await asyncio.sleep(0.05)
            crowd.close()
        for segment in SEGMENTS:
            assert (await segments.segment_info(segment)).length >= after
        await pool.close()

        def use_controller() -> None:
            with penstock.connect(server.uri) as client:
                client.create_scope("later")

        await asyncio.to_thread(use_controller)
