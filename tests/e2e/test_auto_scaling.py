"""Real servers whose controllers ask their stores what loads ask for: in one process, and between processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from support.standalone_process import StandaloneProcess

pytestmark = pytest.mark.e2e

#: What takes twenty minutes takes two seconds; only silence can be shortened so, windows of averages cannot.
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
def test_a_stream_that_nobody_writes_to_is_merged(
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
