"""Clients of the controller that are gone without a word, as the server sees them: nothing answers its pings."""

from __future__ import annotations

import asyncio
import struct
import sys

import grpc.aio
import pytest

from penstock.controller.grpc.server import GrpcServer
from penstock.controller.settings import ControllerSettings
from penstock.rpc import controller_pb2 as pb
from penstock.rpc.controller_pb2_grpc import ControllerServiceStub
from penstock.runtime.sockets import DeadPeerSettings
from support.in_process_cluster import InProcessCluster

SETTINGS = ControllerSettings(dead_peers=DeadPeerSettings(probe_after_s=1.0, probe_interval_s=1.0, timeout_s=2.0))
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PING, SETTINGS_FRAME, ACK = 6, 4, 1


def frame(kind: int, flags: int = 0, payload: bytes = b"") -> bytes:
    """Return an HTTP/2 frame of stream 0."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + bytes(4) + payload


async def answer_pings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answered_max: int) -> int:
    """Speak HTTP/2 as far as it takes to be there; return how many pings came before the connection ended."""
    writer.write(PREFACE + frame(SETTINGS_FRAME))
    count = 0
    try:
        while True:
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags = head[3], head[4]
            if kind == SETTINGS_FRAME and not flags & ACK:
                writer.write(frame(SETTINGS_FRAME, ACK))
            elif kind == PING and not flags & ACK:
                count += 1
                if count <= answered_max:
                    writer.write(frame(PING, ACK, payload))
    except (asyncio.IncompleteReadError, ConnectionError):
        return count
    finally:
        writer.close()


@pytest.mark.parametrize("answered_count", [0, 2])
async def test_a_connection_without_calls_goes_when_nothing_answers_its_pings(
    cluster: InProcessCluster, answered_count: int
) -> None:
    """As long as pings are answered it stays, and so does one of gRPC's own that is as idle."""
    async with (
        GrpcServer(await cluster.start(), "127.0.0.1", 0, settings=SETTINGS) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        stub = ControllerServiceStub(channel)
        await stub.checkScopeExists(pb.ScopeInfo(scope="a"))  # type: ignore[misc]
        is_lost = asyncio.ensure_future(channel.wait_for_state_change(grpc.ChannelConnectivity.READY))
        async with asyncio.timeout(60):
            streams = await asyncio.open_connection("127.0.0.1", server.port)
            assert await answer_pings(*streams, answered_max=answered_count) == answered_count + 1
        assert not is_lost.done()
        await stub.checkScopeExists(pb.ScopeInfo(scope="a"))  # type: ignore[misc]
        is_lost.cancel()


IDLE_CLIENT = """
import sys
import pravega_client as pravega
manager = pravega.StreamManager("tcp://127.0.0.1:" + sys.argv[1])
assert manager.create_scope("s")
print("idle", flush=True)
sys.stdin.readline()
assert "s" in manager.list_scope()
"""


@pytest.mark.interop
async def test_an_idle_client_of_pravega_answers_the_pings(cluster: InProcessCluster) -> None:
    """The unmodified PyPI client, in a process of its own: it continues over the connection that it has."""
    pytest.importorskip("pravega_client")
    async with GrpcServer(await cluster.start(), "127.0.0.1", 0, settings=SETTINGS) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", IDLE_CLIENT, str(server.port),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(60):
                assert await process.stdout.readline() == b"idle\n"  # type: ignore[union-attr]
                connected = set(server._clients._peers)
                # As long as it takes until another client that answers two pings and then none is dropped.
                await answer_pings(*await asyncio.open_connection("127.0.0.1", server.port), answered_max=2)
                _, errors = await process.communicate(b"\n")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, errors.decode()
        assert set(server._clients._peers) == connected
