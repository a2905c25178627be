"""Real servers whose controllers ask their stores for scale advice: in one process, and between processes."""

from __future__ import annotations

import collections
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import penstock
from support.standalone_process import StandaloneProcess

pytestmark = pytest.mark.e2e

#: What takes twenty minutes of silence takes two seconds.
QUICK = """
[controller.auto_scaling]
interval_s = 0.2
mute_s = 0.0
[segment_store.container.activity]
interval_s = 0.1
[segment_store.container.activity.statistics]
tick_s = 0.1
expiry_s = 2.0
"""


@pytest.mark.parametrize("segment_stores", [1, 2])
def test_a_stream_without_writers_is_merged(
    make_server: Callable[..., StandaloneProcess], tmp_path: Path, segment_stores: int
) -> None:
    """Down to what its policy asks for; one that has no policy by rate stays as it is."""
    settings = tmp_path / "settings.toml"
    settings.write_text(QUICK)
    server = make_server("--config", str(settings), segment_stores=segment_stores).start()
    with penstock.connect(server.uri) as client:
        client.create_stream("s/fixed", scaling=penstock.Scaling.fixed(4))
        client.create_stream("s/quiet", scaling=penstock.Scaling.by_event_rate(1000, min_segments=8))
        assert len(client.segments_of("s/quiet")) == 8
        client.update_stream("s/quiet", scaling=penstock.Scaling.by_event_rate(1000, min_segments=2))
        deadline_s = time.monotonic() + 120.0
        while len(client.segments_of("s/quiet")) != 2 and time.monotonic() < deadline_s:
            time.sleep(0.2)
        segments = client.segments_of("s/quiet")
        assert len(segments) == 2
        assert (segments[0].key_low, segments[-1].key_high) == (0.0, 1.0)
        assert len(client.segments_of("s/fixed")) == 4


#: What is said of 2, 5, 10 and 20 minutes is meant of 1, 2.5, 5 and 10 seconds.
FOLLOWING = """
[controller.auto_scaling]
interval_s = 0.2
mute_s = 0.0
[segment_store.container.activity]
interval_s = 0.1
[segment_store.container.activity.statistics]
tick_s = 0.25
window_unit_s = 0.5
expiry_s = 20.0
[segment_store.container.activity.scale_advice]
cool_down_s = 0.0
"""
KEYS = [f"key{number}" for number in range(32)]
#: For a machine that does much else meanwhile; nothing is said about how long it takes.
STAGE_S = 150.0


class Ramp:
    """Writes numbered events, of one key after the other, many a second until `is_slow`. `written`: how many by key."""

    def __init__(self, uri: str, stream: str) -> None:
        self.written = dict.fromkeys(KEYS, 0)
        self.is_slow = False
        self._uri = uri
        self._stream = stream
        self._is_over = threading.Event()
        self._threads = ThreadPoolExecutor(1)

    def __enter__(self) -> Ramp:
        self._writing = self._threads.submit(self._write)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._threads.shutdown()
        self._writing.result()

    def _write(self) -> None:
        with penstock.connect(self._uri) as client, client.event_writer(self._stream) as writer:
            for key in itertools.cycle(KEYS):
                if self._is_over.wait(0.3 if self.is_slow else 0.001):
                    return
                writer.write(f"{key}:{self.written[key]}".encode(), key)
                self.written[key] += 1

    @property
    def is_writing(self) -> bool:
        return not self._writing.done()


def wait_for(what: str, is_reached: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + STAGE_S
    while not is_reached():
        assert time.monotonic() < deadline_s, f"no {what} within {STAGE_S:g} s"
        time.sleep(0.1)


@pytest.mark.timeout(4 * STAGE_S)
def test_a_stream_follows_a_load_ramp(make_server: Callable[..., StandaloneProcess], tmp_path: Path) -> None:
    """It splits under load, all its segments take their part of it, and it merges after; each key is read in order.

    A reader follows all the while. The load is far above the policy's rate, then far below it.
    """
    settings = tmp_path / "settings.toml"
    settings.write_text(FOLLOWING)
    server = make_server("--config", str(settings)).start()
    stream = "s/ramp"
    with penstock.connect(server.uri) as client:
        client.create_stream(stream, scaling=penstock.Scaling.by_event_rate(25))
        read: dict[str, list[int]] = collections.defaultdict(list)
        with client.reader_group("follower", [stream]) as group, group.reader() as reader:

            def follow() -> None:
                for _ in range(1000):
                    event = reader.read(timeout_s=0.05)
                    if event is None:
                        return
                    key, _, number = event.data.decode().partition(":")
                    read[key].append(int(number))

            def segment_count() -> int:
                follow()
                return len(client.segments_of(stream))

            with Ramp(server.uri, stream) as ramp:
                wait_for("split in four", lambda: not ramp.is_writing or segment_count() >= 4)
                split = {segment.segment_id for segment in client.segments_of(stream)}
                ramp.is_slow = True
                wait_for("merge", lambda: not ramp.is_writing or segment_count() == 1)

            def has_read_all() -> bool:
                follow()
                return all(len(read[key]) >= count for key, count in ramp.written.items())

            wait_for("end of what was written", has_read_all)
        assert read == {key: list(range(count)) for key, count in ramp.written.items()}
        # Again from the beginning: a later reader gets the split and merged data in the same order.
        again: dict[str, list[int]] = collections.defaultdict(list)
        took: collections.Counter[int] = collections.Counter()
        with client.reader_group("later", [stream]) as group, group.reader() as reader:
            for _ in range(sum(ramp.written.values())):
                event = reader.read(timeout_s=30)
                assert event is not None
                key, _, number = event.data.decode().partition(":")
                again[key].append(int(number))
                took[event.segment_id] += 1
        assert again == read
        assert all(took[segment] for segment in split)
        counts = [len(epoch.segments) for epoch in client.history(stream).epochs]
        assert max(counts) >= 4
        assert 1 in counts[counts.index(max(counts)) :]
