"""A child process of `security.py`: a segment store with or without TLS and tokens, or five servers.

These are a segment store without TLS, the same with TLS, a bare server without TLS, one with that of the loop, and one
with that of the segment store. They share a process, since two processes differ by their layout in memory.

It prints its ports, then answers each line of its input: ``watch`` notes the longest turn of the loop from then on,
``report`` prints it with the memory of the process, ``cpu`` the CPU time of the process so far, and ``settle`` moves
all bytes to long-term storage.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import struct
import sys
import threading
import time

from _common import TurnWatch, memory_mb
from penstock.model.permissions import Permission
from penstock.runtime.collector import settle_collector
from penstock.runtime.descriptors import raise_descriptor_limit
from penstock.runtime.runtime import real_runtime
from penstock.runtime.tls_listener import TlsListener
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
#: What the bare server sends for a request of bytes; a read of the segment store is as long.
CHUNK_BYTES = 1 << 20
#: A request to a bare server: "r" with the number of bytes that follow, or "s" for a chunk.
BARE_REQUEST = struct.Struct(">cQ")
#: Variable that names the event loop of the servers: `asyncio`, or `server` for the one of `penstock standalone`.
LOOP_VARIABLE = "PENSTOCK_BENCH_LOOP"
_MIB = 1 << 20


def token() -> str:
    """Return a token for the segment that is valid for a day."""
    return TokenSigner(KEYS, 86_400, time.time).sign({"prn::/scope:bench": Permission.READ_UPDATE})


class Bare(asyncio.BufferedProtocol):
    """Drops the bytes that follow a request and acknowledges the last one, or sends a chunk."""

    #: Memory of its own: zeros would be one page, however many bytes they are.
    _chunk = b"x" * CHUNK_BYTES

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(512 * 1024))
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]  # TCP has these

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        if not self._left:
            # A client waits for each answer, so that a request is at the begin, and in one part.
            kind, self._left = BARE_REQUEST.unpack_from(self._buffer)
            if kind == b"s":
                self._transport.write(self._chunk)
                return
            nbytes -= BARE_REQUEST.size
        self._left -= nbytes
        if not self._left:
            self._transport.write(b"e")


async def serve(tls: ssl.SSLContext | None, *, has_tokens: bool) -> tuple[list[int], SegmentStore, object]:
    """Start a segment store; return its port, the store, and what must be kept.

    With tokens there is a second port, at which they are not checked.
    """
    store = await (_settled_store() if has_tokens else _store())
    servers = [SegmentStoreServer(store, tls=tls)]
    if has_tokens:
        clock_s = lambda: store.runtime.wall_clock_ms() / 1000  # noqa: E731
        access = TokenAccess(TokenVerifier(KEYS, clock_s), clock_s)
        servers.insert(0, SegmentStoreServer(store, access=access, tls=tls))
    for server in servers:
        await server.start("127.0.0.1", 0)
    return [server.port for server in servers], store, servers


async def serve_all(tls: ssl.SSLContext) -> tuple[list[int], SegmentStore, object]:
    """Start the five servers; return their ports, the store, and what must be kept."""
    store, loop = await _settled_store(), asyncio.get_running_loop()
    servers = [SegmentStoreServer(store, tls=each) for each in (None, tls)]
    for server in servers:
        await server.start("127.0.0.1", 0)
    bare = [await loop.create_server(Bare, "127.0.0.1", 0, ssl=each) for each in (None, tls)]
    listener = TlsListener(tls, Bare, work=store.runtime.work)
    await listener.bind("127.0.0.1", 0)
    listener.listen(16)
    ports = [server.port for server in servers]
    ports += [each.sockets[0].getsockname()[1] for each in bare]
    ports.append(listener.sockets[0].getsockname()[1])
    return ports, store, (servers, bare, listener)


async def _settled_store() -> SegmentStore:
    """Return a store that moves bytes to long-term storage by ``settle`` alone: it is counted for no server."""
    return await _store(64 * _MIB, ContainerSettings(flush_bytes=1 << 40, flush_age_s=86_400.0))


async def _store(cache_bytes: int = 512 * _MIB, container: ContainerSettings | None = None) -> SegmentStore:
    runtime = real_runtime(2)
    settings = SegmentStoreSettings(
        container_count=1, cache=CacheSettings(bytes_max=cache_bytes), container=container or ContainerSettings()
    )
    store = SegmentStore(
        logs=MemoryLogFactory(runtime), chunks=MemoryChunkStorage(), runtime=runtime, settings=settings
    )
    await store.start()
    await store.create_segment(SEGMENT)
    return store


async def main() -> None:
    """Serve until the end of the input. Arguments: ``all`` or ``store``, PEM file or ``-``, ``tokens`` or ``-``."""
    kind, pem, tokens = sys.argv[1:]
    raise_descriptor_limit()
    tls = None
    if pem != "-":
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.minimum_version = ssl.TLSVersion.TLSv1_2
        tls.load_cert_chain(pem)
    if kind == "all":
        assert tls is not None
        ports, store, kept = await serve_all(tls)
    else:
        ports, store, kept = await serve(tls, has_tokens=tokens == "tokens")
    settle_collector()
    print(*ports, flush=True)
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
        if line == "settle":
            for container in store.containers:
                await container.flush()
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

    is_plain = os.environ.get(LOOP_VARIABLE) == "asyncio"
    with asyncio.Runner(loop_factory=None if is_plain else new_loop()) as runner:
        runner.run(main())
