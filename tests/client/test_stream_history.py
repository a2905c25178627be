"""A client's view of the segments that a stream has had, from the real controller."""

from __future__ import annotations

import time
import uuid

import pytest

from penstock import Client, InvalidArgumentError, NoSuchStreamError, Scaling, StreamHistory
from penstock.client.controller.addition_calls import AdditionCalls
from penstock.client.streams import stream_history
from penstock.model.names import segment_id

FIRST, LEFT, RIGHT, WHOLE = 0, segment_id(1, 1), segment_id(2, 1), segment_id(3, 2)


@pytest.fixture
def stream(penstock_client: Client) -> str:
    """A stream that was split and merged again. The server is the same for all tests here."""
    stream = f"history/stream-{uuid.uuid4()}"
    penstock_client.create_stream(stream)
    penstock_client.scale_stream(stream, seal=[FIRST], key_ranges=[(0.0, 0.25), (0.25, 1.0)])
    penstock_client.scale_stream(stream, seal=[LEFT, RIGHT], key_ranges=[(0.0, 1.0)])
    return stream


def ids(history: StreamHistory) -> list[list[int]]:
    return [[segment.segment_id for segment in epoch.segments] for epoch in history.epochs]


def test_a_stream_that_never_changed_has_one_epoch(penstock_client: Client) -> None:
    """All its segments begin and continue there."""
    penstock_client.create_stream("history/still", scaling=Scaling.fixed(3))
    history = penstock_client.history("history/still")
    assert (history.scope, history.stream, history.epoch_count, history.is_sealed) == ("history", "still", 1, False)
    assert ids(history) == [[0, 1, 2]]
    assert [(life.first_epoch, life.last_epoch) for life in history.lives()] == [(0, 0)] * 3
    ((epoch, gone, new),) = history.changes()
    assert (epoch, gone, new) == (history.epochs[0], [], list(history.epochs[0].segments))


def test_each_scale_is_an_epoch_with_its_sealed_and_created_segments(penstock_client: Client, stream: str) -> None:
    """In order, by the keys that the segments take."""
    history = penstock_client.history(stream)
    assert ids(history) == [[FIRST], [LEFT, RIGHT], [WHOLE]]
    assert [(part.key_low, part.key_high) for part in history.epochs[1].segments] == [(0.0, 0.25), (0.25, 1.0)]
    assert [
        (epoch.number, [part.segment_id for part in gone], [part.segment_id for part in new])
        for epoch, gone, new in history.changes()
    ] == [(0, [], [FIRST]), (1, [FIRST], [LEFT, RIGHT]), (2, [LEFT, RIGHT], [WHOLE])]
    assert [(life.segment.segment_id, life.first_epoch, life.last_epoch) for life in history.lives()] == [
        (FIRST, 0, 0), (LEFT, 1, 1), (RIGHT, 1, 1), (WHOLE, 2, 2)
    ]  # fmt: skip


def test_each_epoch_has_the_time_at_which_it_began(penstock_client: Client, stream: str) -> None:
    history = penstock_client.history(stream)
    times = [epoch.began_ms for epoch in history.epochs]
    assert None not in times
    assert times == sorted(times, key=lambda time: time or 0)
    assert times[0] is not None
    assert abs(times[0] / 1000 - time.time()) < 600
    assert [(epoch.number, splits, merges) for epoch, splits, merges in history.scales()] == [
        (0, 0, 0), (1, 1, 0), (2, 0, 1)
    ]  # fmt: skip


def test_history_from_a_controller_without_the_call_is_read_epoch_by_epoch(
    penstock_client: Client, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Pravega's: the same epochs, without times."""
    paged = penstock_client.history(stream)

    async def unsupported(*arguments: object, **options: object) -> None:
        return None

    monkeypatch.setattr(AdditionCalls, "stream_history", unsupported)
    by_epoch = penstock_client.history(stream)
    assert ids(by_epoch) == ids(paged)
    assert {epoch.began_ms for epoch in by_epoch.epochs} == {None}
    penstock_client.seal_stream(stream)
    assert penstock_client.history(stream).epoch_count == 3


def test_a_long_history_is_read_in_pages(penstock_client: Client, stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = penstock_client.history(stream)
    monkeypatch.setattr(stream_history, "_EPOCHS_PER_PAGE", 1)
    assert penstock_client.history(stream) == whole
    assert ids(penstock_client.history(stream, epoch_count_max=2)) == ids(whole)[1:]


@pytest.mark.parametrize("scale_count", range(6))
def test_all_epochs_of_a_sealed_stream_are_found(penstock_client: Client, scale_count: int) -> None:
    """It has no current segments that would tell which epoch is the last one."""
    stream = f"history/sealed-{scale_count}"
    penstock_client.create_stream(stream)
    for _ in range(scale_count):
        (segment,) = penstock_client.segments_of(stream)
        penstock_client.scale_stream(stream, seal=[segment.segment_id], key_ranges=[(0.0, 1.0)])
    penstock_client.seal_stream(stream)
    history = penstock_client.history(stream)
    assert history.is_sealed
    assert history.epoch_count == scale_count + 1
    assert [epoch.number for epoch in history.epochs] == list(range(scale_count + 1))


def test_history_is_requested_in_parts_from_the_latest_back(penstock_client: Client, stream: str) -> None:
    """Each answer has as many epochs as were asked for, and says how many there are."""
    latest = penstock_client.history(stream, epoch_count_max=2)
    assert (ids(latest), latest.epoch_count) == ([[LEFT, RIGHT], [WHOLE]], 3)
    before = penstock_client.history(stream, epoch_count_max=2, before=latest.epochs[0].number)
    assert (ids(before), before.epoch_count) == ([[FIRST]], 3)
    assert penstock_client.history(stream, before=99).epochs == penstock_client.history(stream).epochs
    # Where something began earlier is not known from a part.
    assert [(life.first_epoch, life.last_epoch) for life in latest.lives()] == [(1, 1), (1, 1), (2, 2)]


def test_history_of_a_missing_stream_is_refused(penstock_client: Client, stream: str) -> None:
    """No epochs, epochs before the first one, and a stream that is not there."""
    for options in ({"epoch_count_max": 0}, {"before": 0}, {"before": -1}):
        with pytest.raises(InvalidArgumentError):
            penstock_client.history(stream, **options)
    with pytest.raises(NoSuchStreamError):
        penstock_client.history("history/missing")
