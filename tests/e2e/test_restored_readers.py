"""A server is restored from an older backup while clients continue with newer positions. Real processes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.model.names import segment_name
from support.standalone_process import StandaloneProcess

pytestmark = pytest.mark.e2e

STREAM = "shop/orders"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StandaloneProcess]:
    with StandaloneProcess(tmp_path / "a") as process:
        yield process


def write(client: penstock.Client, count: int, text: bytes) -> None:
    client.create_stream(STREAM, exist_ok=True)
    with client.event_writer(STREAM) as writer:
        for number in range(count):
            writer.write(b"%s %04d" % (text, number), routing_key="key")


def test_no_position_of_before_a_restore_is_read_where_other_events_are(
    server: StandaloneProcess, tmp_path: Path
) -> None:
    """A reader that is open over the restore, and each kind of position that was kept: all raise the same error."""
    with penstock.connect(server.uri) as client:
        write(client, 10, b"first")
        server.stop()
        shutil.copytree(server.data_dir, tmp_path / "backup")
        server.start()
        write(client, 10, b"lost ")
        cut = client.tail(STREAM)
        ((number, position),) = cut.positions.items()
        segment = segment_name("shop", "orders", number)
        with client.batch(STREAM) as batch:
            ranges = list(batch.ranges)
        with client.segment_reader(segment, 0) as open_reader:
            read_bytes = 0
            while read_bytes < position:
                read_bytes += len(open_reader.read())
            server.stop()
            shutil.rmtree(server.data_dir)
            shutil.move(tmp_path / "backup", server.data_dir)
            server.start()
            end = position // 2
            with pytest.raises(penstock.PositionBeyondEndError) as caught:
                open_reader.read()
            assert (caught.value.segment, caught.value.position, caught.value.end) == (segment, position, end)
        with pytest.raises(penstock.PositionBeyondEndError, match=f"{position} is after the end"):
            client.segment_reader(segment, position).read()
        with pytest.raises(penstock.PositionBeyondEndError, match=f"{position}"):
            client.reader_group("audit", [STREAM], start=cut)
        with pytest.raises(penstock.PositionBeyondEndError):
            client.batch(STREAM, ranges=ranges)
        with pytest.raises(penstock.PositionBeyondEndError):
            client.batch(STREAM, start=cut)
