"""Policies: which values users may set, and the errors for the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.model.errors import InvalidArgumentError
from penstock.model.policies import LIMIT_NONE, Retention, RetentionKind, Scaling, ScalingKind, StreamConfig


def test_scaling_policies_accept_all_values_of_the_wire() -> None:
    """The three kinds with their defaults; a fixed count carries no rate and no factor, as the clients send it."""
    assert Scaling.fixed(3) == Scaling(ScalingKind.FIXED, 0, 0, 3)
    assert Scaling.by_event_rate(1000) == Scaling(ScalingKind.BY_EVENT_RATE, 1000, 2, 1)
    assert Scaling.by_data_rate(10, factor=3, min_segments=4) == Scaling(ScalingKind.BY_DATA_RATE, 10, 3, 4)
    assert [int(kind) for kind in ScalingKind] == [0, 1, 2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Scaling.fixed(0),
        lambda: Scaling.fixed(-1),
        lambda: Scaling.fixed(1 << 31),
        lambda: Scaling.by_event_rate(0),
        lambda: Scaling.by_event_rate(10, factor=1),
        lambda: Scaling.by_data_rate(10, min_segments=0),
        lambda: Retention.by_time(),
        lambda: Retention.by_time(days=-1),
        lambda: Retention.by_time(days=2, max_days=1),
        lambda: Retention.by_size(0),
        lambda: Retention.by_size(10, -1),
        lambda: Retention.by_size(10, 9),
        lambda: Retention.by_size(1 << 63),
    ],
)
def test_impossible_policies_are_refused(make: Callable[[], object]) -> None:
    """Values at and beyond each bound."""
    with pytest.raises(InvalidArgumentError):
        make()


def test_retention_periods_add_up_to_milliseconds() -> None:
    """Parts of a period are added; without a maximum there is none."""
    kept = Retention.by_time(days=1, hours=2, minutes=3, seconds=4.5)
    assert kept == Retention(RetentionKind.BY_TIME, 93_784_500, LIMIT_NONE)
    assert not kept.has_max
    assert Retention.by_time(days=7, max_days=30).max_limit == 30 * 86_400_000
    assert Retention.by_time(days=7, max_days=7).has_max
    assert not Retention(RetentionKind.BY_SIZE, 1, 0).has_max, "0 from the wire means no limit"


def test_configuration_drops_duplicate_tags_and_keeps_their_order() -> None:
    """Tags are a set, listed as they were given."""
    config = StreamConfig(tags=("b", "a", "b")).checked()
    assert config.tags == ("b", "a")
    assert StreamConfig(tags=("a",)).checked() == StreamConfig(tags=("a",))


@pytest.mark.parametrize(
    "config",
    [
        StreamConfig(Scaling(min_segments=0)),
        StreamConfig(rollover_bytes=-1),
        StreamConfig(tags=tuple(map(str, range(128)))),
        StreamConfig(tags=("x" * 256,)),
    ],
)
def test_configuration_out_of_bounds_is_refused(config: StreamConfig) -> None:
    """One past each bound; the values just inside are fine."""
    with pytest.raises(InvalidArgumentError):
        config.checked()
    StreamConfig(tags=(*map(str, range(126)), "x" * 255)).checked()
