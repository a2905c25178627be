"""Servers without a local disk are killed, started twice and suspended under load, over a real S3 server.

In nightly runs: 50 kills, 20 starts of two servers at once, and a server that is suspended for a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.server.errors import ServerProcessError
from penstock.server.standalone_process import StandaloneProcess
from penstock.wire.commands import (
    CreateSegment,
    GetStreamSegmentInfo,
    ReadSegment,
    SegmentCreated,
    SegmentRead,
    StreamSegmentInfo,
)
from support.bucket_server import Make, bucket_options
from support.exactly_once_writer import ExactlyOnceWriter, decode_events
from support.s3_server import S3Server
from support.wire_client import WireClient

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

WRITER_COUNT = 4
LEASE_S = 1.0
_POLL_S = 0.02


@pytest.fixture
def make(make_server: Make, s3_server: S3Server, tmp_path: Path) -> Callable[[], StandaloneProcess]:
    """Make a server, as on another machine: nothing is there but the options."""
    options = bucket_options(s3_server, tmp_path, lease_s=LEASE_S)
    return lambda: make_server(*options)


def make_writers(server: StandaloneProcess, seed: int) -> list[ExactlyOnceWriter]:
    """Create segments, and return a writer of each."""
    draws = random.Random(seed)
    segments = [f"kill/load/{index}.#epoch.0" for index in range(WRITER_COUNT)]
    with WireClient(server.segment_store_port, timeout_s=60.0) as client:
        for segment in segments:
            client.ask(CreateSegment(client.next_id(), segment, 0, 0, "", 0), SegmentCreated)
    return [ExactlyOnceWriter(segment, draws.getrandbits(32)) for segment in segments]


async def load(writers: list[ExactlyOnceWriter], port: int, *, is_last: bool = False) -> None:
    """Run all writers until their connections are lost; or, in the end, until everything is acknowledged."""

    async def run(writer: ExactlyOnceWriter) -> None:
        lost = () if is_last else (ConnectionError, asyncio.IncompleteReadError)
        with contextlib.suppress(*lost):
            await writer.run(port, is_last=is_last)

    async with asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(run(writer))


async def load_until_progress(writers: list[ExactlyOnceWriter], server: StandaloneProcess) -> asyncio.Task[None]:
    """Start the load, and return once each writer had an acknowledgement of this server."""
    for writer in writers:
        writer.progress.clear()
    loading = asyncio.create_task(load(writers, server.segment_store_port))
    acknowledged = asyncio.gather(*(writer.progress.wait() for writer in writers))
    await asyncio.wait((loading, acknowledged), return_when=asyncio.FIRST_COMPLETED)
    assert acknowledged.done(), server.log
    return loading


def read_all(server: StandaloneProcess, writers: list[ExactlyOnceWriter]) -> None:
    """Check that each segment has the events of its writer once, in order."""
    with WireClient(server.segment_store_port, timeout_s=60.0) as client:
        for writer in writers:
            info = client.ask(GetStreamSegmentInfo(client.next_id(), writer.segment, ""), StreamSegmentInfo)
            writer.assert_complete(decode_events(client.read_whole(writer.segment, info.write_offset)))


@pytest.mark.parametrize("cycles", [3, pytest.param(50, marks=pytest.mark.nightly)])
async def test_kills_of_servers_without_a_disk_lose_double_and_reorder_nothing(
    cycles: int, make: Callable[[], StandaloneProcess]
) -> None:
    """Each start is on another machine: the killed server's directory is not used again, and has no data."""
    moments = random.Random(cycles)
    server = make()
    await asyncio.to_thread(server.start)
    writers = make_writers(server, cycles)
    for _ in range(cycles):
        loading = await load_until_progress(writers, server)
        await asyncio.sleep(moments.uniform(0.0, 0.6))
        server.kill9()
        await loading
        assert not server.data_dir.exists()
        server = make()
        await asyncio.to_thread(server.start)
        assert server.ready["failures"] == {}, server.log
    await load(writers, server.segment_store_port, is_last=True)
    await asyncio.to_thread(read_all, server, writers)
    assert server.terminate() == 0
    server = make()
    await asyncio.to_thread(server.start)
    await asyncio.to_thread(read_all, server, writers)
    assert all(writer.acknowledged == writer.sent for writer in writers)
    assert " ERROR " not in server.log


@pytest.mark.parametrize("cycles", [2, pytest.param(20, marks=pytest.mark.nightly)])
async def test_of_two_servers_that_start_at_the_same_moment_exactly_one_serves(
    cycles: int, make: Callable[[], StandaloneProcess]
) -> None:
    """Again and again on one log. The other one ends with 1 and says why; nothing is lost from start to start."""
    server = make()
    await asyncio.to_thread(server.start)
    writers = make_writers(server, cycles)
    for _ in range(cycles):
        loading = await load_until_progress(writers, server)
        server.kill9()
        await loading
        pair = [make(), make()]
        for one in pair:
            one.spawn()
        server, other = await asyncio.to_thread(_serving_and_ended, pair)
        assert other.exit_code == 1
        assert server.is_running
    await load(writers, server.segment_store_port, is_last=True)
    await asyncio.to_thread(read_all, server, writers)


def _serving_and_ended(pair: list[StandaloneProcess]) -> tuple[StandaloneProcess, StandaloneProcess]:
    """Return the server of two that serves, and the one that has ended. Both may get ready, one after the other."""
    ready = [one for one in pair if _gets_ready(one)]
    ended = [one for one in pair if one not in ready]
    while not ended:
        ended = [one for one in ready if not one.is_running]
        time.sleep(_POLL_S)
    assert len(ended) == 1, [one.log for one in ended]
    (served,) = (one for one in pair if one is not ended[0])
    if ended[0] in ready:
        assert b"another server has taken over the log" in ended[0].read_line()
    ended[0].wait()
    return served, ended[0]


def _gets_ready(server: StandaloneProcess) -> bool:
    try:
        server.wait_ready()
    except ServerProcessError as error:
        if "another server has taken over" not in str(error):
            raise
        return False
    return True


@pytest.mark.parametrize("paused_s", [2 * LEASE_S, pytest.param(60.0, marks=pytest.mark.nightly)])
async def test_an_owner_suspended_under_load_gives_no_old_answer_when_it_resumes(
    paused_s: float, make: Callable[[], StandaloneProcess]
) -> None:
    """Requests wait in its sockets when it resumes. It answers no read; what it acknowledges its successor has."""
    first, second = make(), make()
    await asyncio.to_thread(first.start)
    writers = make_writers(first, 7)
    loading = await load_until_progress(writers, first)
    with WireClient(first.segment_store_port, timeout_s=60.0) as asked:
        before = asked.ask(GetStreamSegmentInfo(asked.next_id(), writers[0].segment, ""), StreamSegmentInfo)
        first.pause()
        paused = asyncio.create_task(asyncio.sleep(paused_s))
        await asyncio.to_thread(second.start)
        # Appended by the successor: the first one does not have it.
        more = ExactlyOnceWriter(writers[0].segment, 8)
        writing = asyncio.create_task(more.run(second.segment_store_port))
        await more.progress.wait()
        asked.send(
            GetStreamSegmentInfo(asked.next_id(), writers[0].segment, ""),
            ReadSegment(writers[0].segment, before.start_offset, 1000, "", asked.next_id()),
        )
        await paused
        first.resume()
        replies = await asyncio.to_thread(_replies, asked)
    assert not [reply for reply in replies if isinstance(reply, StreamSegmentInfo | SegmentRead)]
    await loading
    assert b"another server has taken over the log" in await asyncio.to_thread(first.read_line)
    assert await asyncio.to_thread(first.wait) == 1
    writing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await writing
    # Each writer finds there what was acknowledged to it, by either server.
    await load([*writers, more], second.segment_store_port, is_last=True)
    await asyncio.to_thread(read_all, second, writers[1:])


def _replies(client: WireClient) -> list[object]:
    """Return what comes on a connection until its end."""
    replies: list[object] = []
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            replies.append(client.receive())
    return replies
