"""Garbage, oversize, truncated and slow input on both ports: typed errors or a closed connection; others are served."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from penstock.rpc import controller_pb2 as pb
from penstock.rpc.controller_pb2_grpc import ControllerServiceStub
from penstock.wire.codec import encode
from penstock.wire.commands import (
    AppendBlockEnd,
    AppendSetup,
    CreateSegment,
    DataAppended,
    ErrorMessage,
    GetStreamSegmentInfo,
    Hello,
    KeepAlive,
    NoSuchSegment,
    ReadSegment,
    ReadTable,
    SegmentCreated,
    SegmentRead,
    SetupAppend,
    StreamSegmentInfo,
)
from support.standalone_process import StandaloneProcess
from support.wire_client import WireClient

pytestmark = pytest.mark.e2e

SEGMENT = "hostile/stream/0.#epoch.0"
MIB = 1024 * 1024
HELLO = encode(Hello(16, 5))

SETTINGS = """
[segment_store.connection]
handshake_timeout_s = 0.5
frame_timeout_s = 0.5
"""


@contextmanager
def quick_server(directory: Path) -> Iterator[StandaloneProcess]:
    """Run a server with short time-outs and one segment."""
    settings = directory / "settings.toml"
    settings.write_text(SETTINGS)
    with StandaloneProcess(directory, "--config", str(settings), memory=True) as made:
        with WireClient(made.segment_store_port) as client:
            client.ask(CreateSegment(client.next_id(), SEGMENT, 0, 0, "", 0), SegmentCreated)
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    """Run a server for all tests: each finds it as it should be after the input of those before."""
    with quick_server(tmp_path_factory.mktemp("hostile")) as made:
        yield made


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[StandaloneProcess]:
    """Run a server for one test, which measures it."""
    with quick_server(tmp_path) as made:
        yield made


def assert_alive(server: StandaloneProcess) -> None:
    """Both ports answer properly."""
    with WireClient(server.segment_store_port) as client:
        client.ask(GetStreamSegmentInfo(client.next_id(), SEGMENT, ""), StreamSegmentInfo)
    with grpc.insecure_channel(f"127.0.0.1:{server.controller_port}") as channel:
        assert "_system" in ControllerServiceStub(channel).listScopes(pb.ScopesRequest(), timeout=10).scopes
    assert "Traceback" not in server.log


def frame(type_code: int, payload: bytes, length: int | None = None) -> bytes:
    """Return a frame, with a false length if given."""
    return struct.pack(">ii", type_code, len(payload) if length is None else length) + payload


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(frame(12345, b"what is this"), id="unknown type"),
        pytest.param(frame(9, b"", -1), id="negative length"),
        pytest.param(frame(9, b"", 0x7FFFFFFF), id="length of 2 GiB"),
        pytest.param(frame(9, b"", 0x00FFFFFF), id="one byte too long"),
        pytest.param(frame(9, b"\0"), id="payload too short"),
        pytest.param(frame(9, b"\xff\xff" + b"x" * 40), id="text longer than its frame"),
        pytest.param(frame(78, struct.pack(">q", 1) + b"\0\1a\0\0" + b"\x7f\xff\xff\xff"), id="2^31 table keys"),
        pytest.param(frame(78, struct.pack(">q", 1) + b"\0\1a\0\0" + b"\xff\xff\xff\xff"), id="-1 table keys"),
        pytest.param(frame(11, struct.pack(">q", 1) + b"\0\2\xff\xfe\0\0"), id="text that is not UTF-8"),
        pytest.param(encode(AppendBlockEnd(b"x" * 16, 0, b"", 1, 1, 1)), id="append without a writer"),
        pytest.param(HELLO, id="a second Hello"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", id="HTTP"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100, id="TLS"),
    ],
)
def test_bad_frames_close_the_connection_and_no_other(server: StandaloneProcess, bad: bytes) -> None:
    """After a good Hello and in its place; a neighbour on another connection notices nothing."""
    with WireClient(server.segment_store_port) as neighbour:
        for hello in (HELLO, b"") if bad != HELLO else (HELLO,):
            with WireClient(server.segment_store_port, greet=False) as client:
                client.socket.sendall(hello + bad)
                client.receive_until_closed()
        neighbour.ask(GetStreamSegmentInfo(neighbour.next_id(), SEGMENT, ""), StreamSegmentInfo)
    assert_alive(server)


def test_requests_that_make_no_sense_get_typed_errors(server: StandaloneProcess) -> None:
    """Well-formed frames with bad content are answered, and the connection stays usable."""
    with WireClient(server.segment_store_port) as client:
        client.ask(ReadSegment("no/such/0.#epoch.0", 0, 10, "", client.next_id()), NoSuchSegment)
        client.ask(SetupAppend(client.next_id(), b"w" * 16, "no/such/0.#epoch.0", ""), NoSuchSegment)
        client.ask(ReadTable(client.next_id(), "no/such/0.#epoch.0", "", ()), NoSuchSegment)
        for name in ("../../etc/passwd", "a//b", "a/\0/b", "", "x" * 5000):
            client.ask(CreateSegment(client.next_id(), name, 0, 0, "", 0), ErrorMessage)
        client.ask(GetStreamSegmentInfo(client.next_id(), SEGMENT, ""), StreamSegmentInfo)
    assert_alive(server)


@pytest.mark.parametrize("seed", range(4))
def test_random_bytes_and_flipped_bits_never_kill_the_server(server: StandaloneProcess, seed: int) -> None:
    """Noise, and frames with a few changed bytes, on many connections."""
    draw = random.Random(seed)
    good = [
        encode(ReadSegment(SEGMENT, 0, 100, "", 1)),
        encode(SetupAppend(2, b"w" * 16, SEGMENT, "")),
        encode(AppendBlockEnd(b"w" * 16, 3, b"abc", 1, 1, 2)),
        encode(GetStreamSegmentInfo(3, SEGMENT, "")),
        encode(KeepAlive()),
    ]
    for _ in range(60):
        with WireClient(server.segment_store_port, greet=False) as client:
            if draw.random() < 0.3:
                data = draw.randbytes(draw.randrange(1, 5000))
            else:
                changed = bytearray(b"".join(draw.choices(good, k=10)))
                for _ in range(draw.randrange(1, 6)):
                    changed[draw.randrange(len(changed))] = draw.randrange(256)
                data = HELLO + bytes(changed)
            client.socket.sendall(data)
            client.socket.shutdown(socket.SHUT_WR)
            client.receive_until_closed()
    assert_alive(server)


def test_silent_and_slow_peers_are_closed(server: StandaloneProcess) -> None:
    """No Hello in time; a frame that never becomes whole; and a peer that is idle after a whole frame, which may."""
    with (
        WireClient(server.segment_store_port, greet=False) as silent,
        WireClient(server.segment_store_port) as slow,
        WireClient(server.segment_store_port) as idle,
    ):
        slow.socket.sendall(frame(3, b"w" * 16, 1000))
        silent.receive_until_closed()
        slow.receive_until_closed()
        idle.ask(GetStreamSegmentInfo(idle.next_id(), SEGMENT, ""), StreamSegmentInfo)
    assert_alive(server)


def test_aborted_connections_leave_nothing(own_server: StandaloneProcess) -> None:
    """Connections that end inside a frame, hundreds of times: no descriptors are kept."""
    descriptors = Path(f"/proc/{own_server.pid}/fd")
    before = len(list(descriptors.iterdir()))
    for length in range(300):
        with WireClient(own_server.segment_store_port, greet=False) as client:
            client.socket.sendall((HELLO + frame(4, b"w" * 400))[: 1 + length])
    assert_alive(own_server)
    deadline_s = time.monotonic() + 60
    while len(list(descriptors.iterdir())) > before + 4:
        assert time.monotonic() < deadline_s, "descriptors are leaking"
        time.sleep(0.05)


def test_memory_stays_bounded_under_begun_giant_frames(own_server: StandaloneProcess) -> None:
    """64 connections that announce 16 MiB each and send a little: memory is taken for what arrives, not announced."""
    before = own_server.resident_bytes()
    clients = [WireClient(own_server.segment_store_port) for _ in range(64)]
    try:
        for client in clients:
            client.socket.sendall(frame(3, b"w" * 1000, 0x00FFFFFF - 8))
        assert_alive(own_server)
        assert own_server.resident_bytes() - before < 300 * MIB
    finally:
        for client in clients:
            client.close()
    assert_alive(own_server)


def test_memory_stays_bounded_when_a_peer_reads_no_replies(own_server: StandaloneProcess) -> None:
    """Thousands of reads of a full segment, none of whose replies are taken: the server stops reading requests."""
    with WireClient(own_server.segment_store_port) as client:
        client.send(SetupAppend(1, b"w" * 16, SEGMENT, ""))
        client.receive()
        data = b"x" * (4 * MIB)
        client.send(AppendBlockEnd(b"w" * 16, len(data), data, 1, 1, 2))
        client.receive()
    before = own_server.resident_bytes()
    request = encode(ReadSegment(SEGMENT, 0, 2 * MIB, "", 1))
    with WireClient(own_server.segment_store_port) as greedy:
        greedy.socket.settimeout(2.0)
        try:
            # Some 30 MB: far more than the buffers of both ends of a socket hold by themselves.
            for _ in range(1000):
                greedy.socket.sendall(request * 500)
        except TimeoutError:
            pass
        else:
            pytest.fail("500 000 requests were taken without a reply being read")
        assert own_server.resident_bytes() - before < 200 * MIB
        assert_alive(own_server)
        # It takes replies after all: they are right. The server may be slow on a loaded machine.
        greedy.socket.settimeout(60.0)
        reply = greedy.receive(SegmentRead)
        assert bytes(reply.data) == b"x" * len(reply.data)
    assert_alive(own_server)


def test_garbage_on_the_controller_port(server: StandaloneProcess) -> None:
    """Noise, the other protocol, a broken message, and one over the limit."""
    draw = random.Random(0)
    for data in (b"", HELLO, b"GET / HTTP/1.1\r\n\r\n", *(draw.randbytes(2000) for _ in range(20))):
        with socket.create_connection(("127.0.0.1", server.controller_port), timeout=10) as raw:
            raw.sendall(data)
    with grpc.insecure_channel(f"127.0.0.1:{server.controller_port}") as channel:
        method = "/io.pravega.controller.stream.api.grpc.v1.ControllerService/"
        for name, message in (
            ("createScope", b"\xff\xff\xff\xff"),
            ("createScope", b"\x0a\xff\xff\xff\xff\x0f"),
            ("noSuchCall", b""),
            ("createScope", b"\x0a\x85\x80\x80\x04" + b"s" * (8 * MIB + 5)),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(method + name)(message, timeout=10)
            assert caught.value.code() is not grpc.StatusCode.OK
            assert "Traceback" not in (caught.value.details() or "")
    assert_alive(server)


def test_a_segment_whose_files_could_not_be_named_is_refused_at_its_creation(
    make_server: Callable[..., StandaloneProcess], tmp_path: Path
) -> None:
    """With 230 characters in the last part it was created, and every flush failed. The longest that can be
    created is flushed to files, and is there after a restart."""
    settings = tmp_path / "settings.toml"
    settings.write_text("[segment_store.container]\nflush_bytes = 1\nflush_age_s = 0.05\nwriter_interval_s = 0.02\n")
    server = make_server("--config", str(settings)).start()
    longest = "hostile/stream/" + "x" * 145
    with WireClient(server.segment_store_port) as client:
        for length in (146, 230, 255):
            refused = client.ask(
                CreateSegment(client.next_id(), "hostile/stream/" + "x" * length, 0, 0, "", 0), ErrorMessage
            )
            assert refused.error_code == 0
            assert f"its last part has {length} bytes, 145 are possible" in refused.message
        client.ask(CreateSegment(client.next_id(), longest, 0, 0, "", 0), SegmentCreated)
        client.ask(SetupAppend(client.next_id(), b"w" * 16, longest, ""), AppendSetup)
        client.ask(AppendBlockEnd(b"w" * 16, 5, b"bytes", 1, 1, client.next_id()), DataAppended)
    deadline_s = time.monotonic() + 60
    while not list((server.data_dir / "tier2").rglob("x" * 145 + ".E-*")):
        assert time.monotonic() < deadline_s, server.log
        time.sleep(0.02)
    server.restart()
    with WireClient(server.segment_store_port) as client:
        assert bytes(client.ask(ReadSegment(longest, 0, 100, "", 1), SegmentRead).data) == b"bytes"
