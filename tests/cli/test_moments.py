"""Times on a command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from penstock.cli.moments import is_moment, moment_of
from penstock.cli.positions import noted, position_text
from penstock.model.errors import InvalidArgumentError

ZONE = timezone(timedelta(hours=2))
NOW = datetime(2026, 11, 22, 12, 0, tzinfo=ZONE)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", NOW),
        ("-1h", NOW - timedelta(hours=1)),
        ("-1h30m", NOW - timedelta(hours=1, minutes=30)),
        ("-2d", NOW - timedelta(days=2)),
        ("2026-11-22 10:30", datetime(2026, 11, 22, 10, 30, tzinfo=ZONE)),
        ("2026-11-22T10:30", datetime(2026, 11, 22, 10, 30, tzinfo=ZONE)),
        ("2026-11-22 10:30:15.5", datetime(2026, 11, 22, 10, 30, 15, 500_000, tzinfo=ZONE)),
        ("2026-11-22", datetime(2026, 11, 22, tzinfo=ZONE)),
        ("2026-11-22T10:30Z", datetime(2026, 11, 22, 10, 30, tzinfo=UTC)),
        ("2026-11-22 10:30+05:30", datetime(2026, 11, 22, 5, 0, tzinfo=UTC)),
        ("1763807400", datetime.fromtimestamp(1763807400, UTC)),
        ("1763807400.25", datetime.fromtimestamp(1763807400.25, UTC)),
        ("1763807400123", datetime.fromtimestamp(1763807400.123, UTC)),
    ],
)
def test_times_are_parsed_in_common_notations(text: str, moment: datetime) -> None:
    assert is_moment(text)
    assert abs(moment_of(text, NOW, ZONE) - moment) < timedelta(milliseconds=1)


@pytest.mark.parametrize(
    "text", ["2026-13-01", "2026-11-22 25:00", "-1 fortnight", "-5", "2026-11-22T10:30:00+99:00", "-9999999999999d"]
)
def test_a_wrong_time_is_refused_in_words_of_the_shell(text: str) -> None:
    assert is_moment(text)
    with pytest.raises(InvalidArgumentError) as caught:
        moment_of(text, NOW)
    assert text in str(caught.value) or "duration" in str(caught.value)
    assert "datetime" not in str(caught.value)
    assert "astimezone" not in str(caught.value)


@pytest.mark.parametrize("text", ["earliest", "latest", "nonsense", "noted:7", "@file", "12", "AAAAAA=="])
def test_other_positions_are_no_times(text: str) -> None:
    assert not is_moment(text)


def test_now_is_the_tail() -> None:
    """The server refuses times to come, and its clock may be behind."""
    assert position_text("now") == position_text(" now ") == "latest"


def test_times_that_writers_note_are_numbers_or_moments() -> None:
    assert noted("1763807400") == 1763807400, "the unit is the writers'"
    assert noted("-5") == -5
    assert noted("2026-11-22T10:30Z") == "2026-11-22T10:30:00+00:00"
