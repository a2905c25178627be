"""A real server on a real file system that is full: a small tmpfs, which takes root. See docs/full-disk.md."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.client.settings import ClientSettings
from penstock.client.transport.connection_pool import ConnectionPool
from penstock.client.transport.wire_segments import WireSegments
from penstock.model.errors import OutcomeUnknownError, PenstockError, StorageFullError
from penstock.model.segments import TableUpdate
from penstock.runtime.runtime import real_runtime
from support.standalone_process import StandaloneProcess, child_environment, run_penstock

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

MIB = 1024 * 1024
FILE_SYSTEM_BYTES = 96 * MIB
BLOCK_BYTES = 256 * 1024
SEGMENT = "shop/orders/0.#epoch.0"
OTHER = "shop/returns/0.#epoch.0"
#: For segments that nothing else is asked of.
NAMES = itertools.count()
TABLE = "shop/prices_kvtable/0.#epoch.0"
SETTINGS = """
[segment_store]
container_count = 1
restart_delay_s = 0.1
[segment_store.container]
flush_bytes = 1_048_576
flush_age_s = 0.5
checkpoint_log_bytes = 4_194_304
[segment_store.container.space]
check_interval_s = 0.05
log_free_bytes_min = 16_777_216
log_free_percent_max = 100
storage_free_bytes_min = {storage_free_bytes_min}
storage_free_percent_max = 100
[durable_log]
file_length_bytes = 8_388_608
free_bytes_min = 4_194_304
free_percent_max = 100
space_check_interval_s = 0.1
"""
#: Bytes go to long-term storage soon, ...
FLOWING = SETTINGS.format(storage_free_bytes_min=8 * MIB)
#: ... or not at all: the log has them, as on a busy machine.
STANDING = SETTINGS.format(storage_free_bytes_min=FILE_SYSTEM_BYTES)


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("a file system of its own takes Linux and root")
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={FILE_SYSTEM_BYTES}", "tmpfs", str(place)],
        capture_output=True, check=False,
    )  # fmt: skip
    if mounted.returncode != 0:
        pytest.skip(f"tmpfs cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


class Client:
    """Segments over the wire, of a server that is killed and started again; `hasty` soon gives up what is refused."""

    def __init__(self, server: StandaloneProcess) -> None:
        async def resolve(segment: str) -> tuple[str, int]:
            return "127.0.0.1", server.segment_store_port

        self.pool = ConnectionPool(resolve, ClientSettings())
        self.segments = WireSegments(self.pool, ClientSettings(), real_runtime(1).rng)
        self.hasty = WireSegments(self.pool, ClientSettings(retry_time_max_s=1.0), real_runtime(2).rng)


def block(number: int) -> bytes:
    """Return the bytes at ``number * BLOCK_BYTES`` of a segment."""
    return number.to_bytes(8, "big") * (BLOCK_BYTES // 8)


async def fill(client: Client, segment: str) -> tuple[int, asyncio.Task[int] | None]:
    """Append until appends are refused or held; return what was acknowledged, and the append that is held.

    The server keeps moving bytes, and truncates its log, so it may have room again after it had none.
    """
    acknowledged = (await client.segments.segment_info(segment)).length
    while True:
        assert acknowledged < 2 * FILE_SYSTEM_BYTES
        append = asyncio.create_task(client.segments.append(segment, block(acknowledged // BLOCK_BYTES)))
        await asyncio.wait([append], timeout=3.0)
        while not append.done():
            if await is_refused(client):
                await asyncio.wait([append], timeout=1.0)
                if not append.done() and await is_refused(client):
                    return acknowledged, append
        acknowledged = append.result()


async def is_refused(client: Client) -> bool:
    """Whether a creation is refused, with the error that says why."""
    try:
        await client.hasty.create_segment(f"shop/more{next(NAMES)}/0.#epoch.0")
    except StorageFullError:
        return True
    except OutcomeUnknownError:
        return False  # No answer in time: of a busy machine, or of a log that waits for room.
    return False


async def until_refused(client: Client, ballast: Path) -> None:
    """Wait until creations are refused, with the error that says why.

    Meanwhile `ballast` takes all the room that the server still makes.
    """
    async with asyncio.timeout(60):
        while True:
            take_all_room(ballast)
            if await is_refused(client):
                return
            await asyncio.sleep(0.05)


async def read(client: Client, segment: str, start: int, end: int) -> bytes:
    parts: list[bytes] = []
    while start < end:
        data = await client.segments.read(segment, start, min(MIB, end - start))
        parts += [bytes(part) for part in data.data]
        start += sum(map(len, data.data))
    return b"".join(parts)


async def check(client: Client, segment: str, start: int, end: int) -> None:
    expected = b"".join(block(number) for number in range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES)))
    offset = start % BLOCK_BYTES
    assert await read(client, segment, start, end) == expected[offset : offset + end - start]


def take_all_room(path: Path) -> int:
    """Fill the file system to the last byte; return how many that were."""
    taken = 0
    with path.open("ab") as file:
        for length in (MIB, 4096, 1):
            while True:
                try:
                    taken += os.write(file.fileno(), bytes(length))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    break
    return taken


def configure(tmp_path: Path, settings: str) -> Path:
    config = tmp_path / "penstock.toml"
    config.write_text(settings)
    return config


def server_on(small_file_system: Path, tmp_path: Path, settings: str = FLOWING) -> StandaloneProcess:
    config = configure(tmp_path, settings)
    (small_file_system / "log").mkdir(exist_ok=True)
    server = StandaloneProcess(small_file_system, "--config", str(config))
    server.log_path = tmp_path / "server.log"  # There is no room for it where the data are.
    return server


async def append_in_the_end(client: Client, segment: str, number: int) -> int:
    """Append a block whose predecessors are known to be there, however often that is refused before."""
    async with asyncio.timeout(60.0):
        while True:
            try:
                return await client.segments.append(segment, block(number), expected_offset=number * BLOCK_BYTES)
            except OutcomeUnknownError:
                if (await client.segments.segment_info(segment)).length > number * BLOCK_BYTES:
                    return (number + 1) * BLOCK_BYTES
            except PenstockError as error:
                if not error.is_retriable:
                    raise
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("settings", [FLOWING, STANDING], ids=["most is in storage", "all is in the log"])
async def test_a_full_disk_is_not_terminal(small_file_system: Path, tmp_path: Path, settings: str) -> None:
    """Filled by writers and then to the last byte by another program, killed and started there: reads, truncations and
    deletions work, writes wait or are refused with a typed error; once room is made, by a truncation or by the other
    program, writers continue, and nothing that was acknowledged is lost.
    """
    ballast = small_file_system / "ballast"
    with server_on(small_file_system, tmp_path, settings) as server:
        configure(tmp_path, FLOWING)  # For its next lives.
        client = Client(server)
        for segment in (SEGMENT, OTHER):
            await client.segments.create_segment(segment, rollover_bytes=MIB)
        await client.segments.create_table(TABLE)
        await client.segments.append(OTHER, block(0))
        # 1. Writers fill it: they are held, creations and table updates are refused, reads work.
        acknowledged, held = await fill(client, SEGMENT)
        assert acknowledged > 16 * MIB
        with pytest.raises(StorageFullError, match="log_free_bytes_min"):
            await client.hasty.table_put(TABLE, [TableUpdate(b"key", b"value")])
        await check(client, SEGMENT, 0, 2 * MIB)
        # 2. Another program takes the rest, and the server is killed there.
        take_all_room(ballast)
        assert held is not None
        server.kill9()
        with pytest.raises(OutcomeUnknownError):
            await held
        server.start()
        client = Client(server)
        await check(client, SEGMENT, 0, 2 * MIB)
        # The start itself made some: it has cleared away what the last one had prepared.
        await until_refused(client, ballast)
        length = (await client.segments.segment_info(SEGMENT)).length
        assert length >= acknowledged
        # 3. A deletion and a truncation, which make room: writers continue.
        await client.segments.delete_segment(OTHER)
        start = length // 2 // BLOCK_BYTES * BLOCK_BYTES
        await client.segments.truncate_segment(SEGMENT, start)
        await check(client, SEGMENT, start, length)
        ballast.unlink()
        number = length // BLOCK_BYTES
        assert await append_in_the_end(client, SEGMENT, number) == length + BLOCK_BYTES
        # 4. Full again, this time while it runs; room comes back when the other file goes.
        await until_refused(client, ballast)
        waiting = asyncio.create_task(append_in_the_end(client, SEGMENT, number + 1))
        await check(client, SEGMENT, start, length)
        ballast.unlink()
        assert await waiting == length + 2 * BLOCK_BYTES
        await client.pool.close()
        server.kill9()
        server.start()
        client = Client(server)
        await check(client, SEGMENT, start, length + 2 * BLOCK_BYTES)
        await client.pool.close()


@pytest.mark.parametrize("settings", [FLOWING, STANDING], ids=["most is in storage", "all is in the log"])
async def test_a_truncation_makes_room_on_a_full_disk(small_file_system: Path, tmp_path: Path, settings: str) -> None:
    """Not a byte is free but what the truncation frees itself, and writers continue in that."""
    with server_on(small_file_system, tmp_path, settings) as server:
        client = Client(server)
        await client.segments.create_segment(SEGMENT, rollover_bytes=MIB)
        acknowledged, held = await fill(client, SEGMENT)
        assert held is not None
        take_all_room(small_file_system / "ballast")
        # All but the last few blocks.
        start = acknowledged // BLOCK_BYTES * BLOCK_BYTES - 2 * BLOCK_BYTES
        await client.segments.truncate_segment(SEGMENT, start)
        async with asyncio.timeout(60.0):
            assert await held == acknowledged + BLOCK_BYTES
        await check(client, SEGMENT, start, acknowledged + BLOCK_BYTES)
        await client.pool.close()


def start_command(uri: str, *arguments: str, tmp_path: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Start ``penstock`` with its standard error in a file, which is returned, too."""
    errors = tmp_path / f"errors-of-{arguments[0]}"
    with errors.open("wb") as stderr:
        running = subprocess.Popen(
            [sys.executable, "-m", "penstock", *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
            env={**child_environment(), "PENSTOCK_URI": uri},
        )  # fmt: skip
    return running, errors


def wait_for_text(path: Path, text: str) -> None:
    deadline_s = time.monotonic() + 60
    while text not in path.read_text():
        assert time.monotonic() < deadline_s, path.read_text()
        time.sleep(0.1)


def test_clients_and_commands_report_a_full_disk_and_resume(small_file_system: Path, tmp_path: Path) -> None:
    """`ready` fails, a client gets `StorageFullError` at its limit, commands report what they wait for and resume."""
    ballast = small_file_system / "ballast"
    impatient = penstock.ClientSettings(retry_time_max_s=6.0, wait_notice_after_s=1.0)
    with server_on(small_file_system, tmp_path) as server:
        with penstock.connect(server.uri, impatient) as client:
            client.create_stream("shop/orders")
            writer = client.event_writer("shop/orders")
            writer.write(b"before").wait(30)
            # All but 8 MiB: the log has its reserve, and users' writes are held.
            free = os.statvfs(small_file_system)
            with ballast.open("wb") as file:
                file.write(bytes(free.f_bavail * free.f_frsize - 8 * MIB))
            deadline_s = time.monotonic() + 60
            while True:
                probe = run_penstock("ready", "--uri", server.uri, "--timeout-s", "2", "--json")
                # On a loaded machine there may be no answer within 2 s.
                if probe.returncode == 1 and "disk full on segment store" in json.loads(probe.stdout)["message"]:
                    break
                assert time.monotonic() < deadline_s, probe.stdout
            began_s = time.monotonic()
            with pytest.raises(penstock.StorageFullError, match="disk full on the server"):
                writer.write(b"held").wait(30)
            with pytest.raises(penstock.StorageFullError, match="disk full on the server"):
                client.create_stream("shop/more")
            assert time.monotonic() - began_s < 60.0
            writer.abandon()
        writing, write_errors = start_command(server.uri, "write", "shop/orders", tmp_path=tmp_path)
        creating, create_errors = start_command(server.uri, "stream", "create", "shop/later", tmp_path=tmp_path)
        assert writing.stdin is not None
        writing.stdin.write(b"one\ntwo\n")
        writing.stdin.close()
        for errors, what in ((write_errors, "write to shop/orders"), (create_errors, "create stream shop/later")):
            wait_for_text(errors, "disk full on the server")
            assert f"penstock: {what}: waiting for " in errors.read_text()
            assert " s left" in errors.read_text()
        ballast.unlink()
        assert writing.wait(60) == 0, write_errors.read_text()
        assert creating.wait(60) == 0, create_errors.read_text()
        assert "penstock: the wait ended after " in write_errors.read_text()
        assert run_penstock("ready", "--uri", server.uri).returncode == 0
        with penstock.connect(server.uri) as client:
            assert client.stream_exists("shop/later")
