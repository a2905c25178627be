"""A child process of `security.py`: a segment store, or a bare server of asyncio, with or without TLS and tokens.

It prints its port, then answers each line of its input: ``watch`` notes the longest turn of the loop from then on,
``report`` prints it with the memory of the process, ``cpu`` the CPU time of the process so far.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
import threading
import time

from _common import TurnWatch, memory_mb
from penstock.model.permissions import Permission
from penstock.runtime.collector import settle_collector
from penstock.runtime.descriptors import raise_descriptor_limit
from penstock.runtime.runtime import real_runtime
from penstock.security.tokens import TokenKeys, TokenSigner, TokenVerifier
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.settings import CacheSettings, SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.segmentstore.token_access import TokenAccess

KEYS = TokenKeys((b"k" * 64,))
SEGMENT = "bench/security/0.#epoch.0"
#: What the bare server sends for each byte that it receives after the ``s``; a read of the segment store is as long.
CHUNK_BYTES = 1 << 20
_MIB = 1 << 20


def token() -> str:
    """Return a token for the segment that is valid for a day."""
    return TokenSigner(KEYS, 86_400, time.time).sign({"prn::/scope:bench": Permission.READ_UPDATE})


class Bare(asyncio.BufferedProtocol):
    """Takes bytes and drops them; after a first ``s`` it sends a chunk for each byte."""

    #: Memory of its own: zeros would be one page, however many bytes they are.
    _chunk = b"x" * CHUNK_BYTES

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(512 * 1024))
        self._sends: bool | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]  # TCP has these

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        if self._sends is None:
            self._sends = self._buffer[0] == ord("s")
            nbytes -= 1
        if self._sends:
            for _ in range(nbytes):
                self._transport.write(self._chunk)
        elif nbytes and self._buffer[nbytes - 1] == ord("e"):
            self._transport.write(b"e")


async def serve(is_bare: bool, tls: ssl.SSLContext | None, *, has_tokens: bool) -> tuple[int, object]:
    """Start a server; return its port, and what must be kept."""
    if is_bare:
        bare = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0, ssl=tls)
        return bare.sockets[0].getsockname()[1], bare
    runtime = real_runtime(2)
    settings = SegmentStoreSettings(
        container_count=1, cache=CacheSettings(bytes_max=512 * _MIB), container=ContainerSettings()
    )
    store = SegmentStore(
        logs=MemoryLogFactory(runtime), chunks=MemoryChunkStorage(), runtime=runtime, settings=settings
    )
    await store.start()
    await store.create_segment(SEGMENT)
    access = None
    if has_tokens:
        access = TokenAccess(TokenVerifier(KEYS, lambda: runtime.wall_clock_ms() / 1000),
                             lambda: runtime.wall_clock_ms() / 1000)  # fmt: skip
    server = SegmentStoreServer(store, access=access, tls=tls)
    await server.start("127.0.0.1", 0)
    return server.port, (store, server)


async def main() -> None:
    """Serve until the end of the input. Arguments: ``bare`` or ``store``, PEM file or ``-``, ``tokens`` or ``-``."""
    kind, pem, tokens = sys.argv[1:]
    raise_descriptor_limit()
    tls = None
    if pem != "-":
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.minimum_version = ssl.TLSVersion.TLSv1_2
        tls.load_cert_chain(pem)
    port, kept = await serve(kind == "bare", tls, has_tokens=tokens == "tokens")
    settle_collector()
    print(port, flush=True)
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[str]()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line.strip())
        loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, daemon=True).start()
    watching: tuple[TurnWatch, asyncio.Task[None]] | None = None
    while line := await lines.get():
        if line == "watch":
            watch = TurnWatch()
            watching = watch, asyncio.ensure_future(watch())
            print("{}", flush=True)
            continue
        if line == "cpu":
            print(json.dumps({"cpu_s": time.process_time()}), flush=True)
            continue
        longest_s = 0.0
        if watching is not None:
            longest_s = watching[0].longest_s
            watching[1].cancel()
        print(json.dumps({"longest_turn_ms": round(1e3 * longest_s, 2), **memory_mb(os.getpid())}), flush=True)
    del kept


if __name__ == "__main__":
    from penstock.cli.serve import new_loop

    with asyncio.Runner(loop_factory=new_loop()) as runner:
        runner.run(main())
