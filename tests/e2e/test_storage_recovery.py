"""A store whose machine is gone, built again by ``penstock storage recover`` from its long-term storage alone."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from support.command_line import run_command
from support.lost_store import LostStore, event, flush
from support.standalone_process import StandaloneProcess

pytestmark = pytest.mark.e2e

#: Numbers of events that are written after the recovery.
LATER = 90_000_000
#: No test waits so long for the next thing to happen.
GUARD_S = 120.0


def read(uri: str, stream: str) -> list[bytes]:
    """Return all events, sorted."""
    with penstock.connect(uri) as client, client.batch(stream) as batch:
        return sorted(bytes(each.data) for part in batch.ranges for each in batch.events(part))


async def read_with_pypi(uri: str, stream: str, count: int) -> list[bytes]:
    """Return the first `count` events of a stream in the scope "shop", by the PyPI client, sorted."""
    import pravega_client

    manager = pravega_client.StreamManager(uri)
    reader = manager.create_reader_group("pypi", "shop", stream).create_reader("reader")
    events: list[bytes] = []
    async with asyncio.timeout(GUARD_S):
        while len(events) < count:
            piece = await reader.get_segment_slice_async()
            events += (bytes(each.data()) for each in piece)
            reader.release_segment(piece)
    return sorted(events)


@pytest.mark.parametrize("kind", ["s3", "hdfs", pytest.param("directory", marks=pytest.mark.nightly)])
def test_a_store_that_was_flushed_is_built_again_from_its_long_term_storage(
    kind: str, make_server: Callable[..., StandaloneProcess], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Under load: flushed, killed, its data directory wiped. Every event that the flush covered is recovered, byte for
    byte, with its stream, and empty streams; of later events a prefix of each segment, in order. The store keeps
    working. The PyPI client reads the same, where it is installed.
    """
    lost = LostStore(kind, make_server, tmp_path, request)
    covered = lost.lose()
    refused = run_command("storage", "recover", "--directory", str(tmp_path), "--tier2", lost.tier2, "--config",
                          str(lost.config), "--json")  # fmt: skip
    assert (refused.code, refused.json["kind"]) == (1, "DataDirectoryError")
    server = lost.recover()
    found = read(server.uri, "shop/orders")
    numbers = [int(data[:8]) for data in found]
    assert found == [event(number) for number in numbers]
    assert numbers[:covered] == list(range(covered))
    for segment in range(3):
        mine = [number for number in numbers if number % 3 == segment]
        assert mine == list(range(segment, segment + 3 * len(mine), 3)), "each image is of one moment"
    if importlib.util.find_spec("pravega_client") is not None:
        assert asyncio.run(read_with_pypi(server.uri, "orders", len(found))) == found
    assert read(server.uri, "shop/cut") == [event(number) for number in range(100)]
    assert read(server.uri, "shop/empty") == []
    with penstock.connect(server.uri) as client:
        assert len(client.segments_of("shop/orders")) == 3
        with client.event_writer("shop/orders") as writer:
            for number in range(LATER, LATER + 100):
                writer.write(event(number), routing_key=str(number % 17))
    assert read(server.uri, "shop/orders") == [*found, *(event(number) for number in range(LATER, LATER + 100))]
    flush(lost.admin_port)
    assert server.terminate() == 0
    well = run_command(
        "storage", "check", "--data-dir", str(server.data_dir), "--tier2", lost.tier2, "--config", str(lost.config)
    )
    assert well.ok.lines[-1] == "no problems found"
