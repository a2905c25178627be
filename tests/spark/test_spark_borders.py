"""Event boundaries in a real store: what its index of appends saves the driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")

from penstock.model.segments import Buffer
from penstock.spark.options import parse_source_options
from penstock.spark.store import WALK_BYTES_MAX, StoredStream

if TYPE_CHECKING:
    from penstock.client.sync import Client
    from penstock.server.standalone_process import StandaloneProcess

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]


def test_borders_between_appends_save_the_driver_a_walk_over_a_batch(
    monkeypatch: pytest.MonkeyPatch, store: StandaloneProcess, client: Client, new_stream: Callable[[int], str]
) -> None:
    """The real store's index: of 24 MiB before the boundary a few are read. The index comes a little after the data."""
    name = new_stream(1)
    with client.event_writer(name) as writer:
        for _ in range(24):
            writer.write_many([b"x" * 65_528] * 16)
            writer.flush()
    stream = StoredStream(parse_source_options({"uri": store.uri, "stream": name}).store, *name.split("/"))
    read_bytes: list[int] = []

    def read(segment: int, start: int, end: int) -> Iterator[Buffer]:
        read_bytes.append(end - start)
        return StoredStream.read(stream, segment, start, end)

    monkeypatch.setattr(stream, "read", read)
    target, until_s = (23 << 20) + 5, time.monotonic() + 60
    while True:
        read_bytes.clear()
        assert list(stream.boundaries(0, 0, [target])) == [23 << 20]
        if sum(read_bytes) <= 2 * WALK_BYTES_MAX or time.monotonic() > until_s:
            break
        time.sleep(0.2)
    assert sum(read_bytes) <= 2 * WALK_BYTES_MAX
