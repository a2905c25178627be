"""kill -9 under load, many times over: what was acknowledged is there, once, in key order.

The server flushes, checkpoints and rolls its log files much more often than by default, so that the kills hit all of
that too. `--kill-cycles` says how often (CI: 20, in nightly runs 50), `--kill-seed` draws another load.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.wire.commands import CreateSegment, GetStreamSegmentInfo, SegmentCreated, StreamSegmentInfo
from support.exactly_once_writer import ExactlyOnceWriter, decode_events
from support.standalone_process import StandaloneProcess
from support.wire_client import WireClient

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SETTINGS = """
[segment_store]
restart_delay_s = 0.05
[segment_store.container]
flush_bytes = 262144
flush_age_s = 0.2
writer_interval_s = 0.02
checkpoint_log_bytes = 1048576
checkpoint_log_bytes_idle = 65536
[durable_log]
first_file_length_bytes = 262144
file_length_bytes = 1048576
zero_chunk_length_bytes = 262144
"""
WRITER_COUNT = 6


async def load(writers: list[ExactlyOnceWriter], port: int, *, is_last: bool = False) -> None:
    """Run all writers until their connections are lost; or, in the end, until everything is acknowledged."""

    async def run(writer: ExactlyOnceWriter) -> None:
        if is_last:
            await writer.run(port, is_last=True)
        else:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await writer.run(port)

    async with asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(run(writer))


async def test_acknowledged_events_survive_kill_9_once_and_in_order(
    make_server: Callable[..., StandaloneProcess], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Cycles of start, load, SIGKILL at a random moment; then all segments are read whole and compared."""
    cycles = request.config.getoption("--kill-cycles")
    moments = random.Random(request.config.getoption("--kill-seed"))
    settings = tmp_path / "settings.toml"
    settings.write_text(SETTINGS)
    server = make_server("--config", str(settings)).start()
    segments = [f"kill/load/{index}.#epoch.0" for index in range(WRITER_COUNT)]
    writers = [ExactlyOnceWriter(segment, moments.getrandbits(32)) for segment in segments]
    with WireClient(server.segment_store_port) as client:
        for segment in segments:
            client.ask(CreateSegment(client.next_id(), segment, 0, 0, "", 0), SegmentCreated)

    for _ in range(cycles):
        writers[0].progress.clear()
        loading = asyncio.create_task(load(writers, server.segment_store_port))
        # Not before something was acknowledged, so that every cycle shows something.
        progress = asyncio.create_task(writers[0].progress.wait())
        await asyncio.wait((loading, progress), return_when=asyncio.FIRST_COMPLETED)
        assert progress.done(), server.log
        await asyncio.sleep(moments.uniform(0.0, 0.6))
        server.kill9()
        await loading
        await asyncio.to_thread(server.start)
        assert server.ready["failures"] == {}, server.log
    await load(writers, server.segment_store_port, is_last=True)

    def read_all() -> None:
        with WireClient(server.segment_store_port) as client:
            for writer in writers:
                info = client.ask(GetStreamSegmentInfo(client.next_id(), writer.segment, ""), StreamSegmentInfo)
                writer.assert_complete(decode_events(client.read_whole(writer.segment, info.write_offset)))

    await asyncio.to_thread(read_all)
    # Again after an orderly restart: now nothing is left in memory.
    await asyncio.to_thread(server.restart)
    await asyncio.to_thread(read_all)
    assert all(writer.acknowledged == writer.sent for writer in writers)
    assert sum(writer.sent for writer in writers) > 100 * cycles
    # The load really reached long-term storage, or the test would show less than it says.
    assert sum(path.stat().st_size for path in (server.data_dir / "tier2").rglob("*") if path.is_file()) > 0
    assert " ERROR " not in server.log
