"""Durations and sizes, as people write them, and back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cli.output import counted, in_bytes, in_time, table
from penstock.cli.quantities import bytes_of, milliseconds_of, seconds_of
from penstock.model.errors import InvalidArgumentError
from support.command_line import run_command


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("7d", 604_800_000), ("1h30m", 5_400_000), ("0.5s", 500), ("250ms", 250), (" 2W ", 1_209_600_000), ("0s", 0)],
)
def test_durations_are_understood(text: str, milliseconds: int) -> None:
    """Several parts, fractions, any case."""
    assert milliseconds_of(text) == milliseconds


@pytest.mark.parametrize(
    ("text", "count"),
    [("4096", 4096), ("10GB", 10**10), ("512MiB", 2**29), ("512m", 2**29), ("1.5 k", 1536), ("0", 0), ("7B", 7)],
)
def test_sizes_are_understood(text: str, count: int) -> None:
    """Powers of 1000 and of 1024, as the units say."""
    assert bytes_of(text) == count


@pytest.mark.parametrize("text", ["", "7", "d", "7 d 3", "-7d", "7y", "7dd", "seven"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    """A number alone is none: seconds, or days?"""
    with pytest.raises(InvalidArgumentError, match="is not a duration"):
        milliseconds_of(text)


@pytest.mark.parametrize("text", ["", "B", "-1", "7furlongs", "1e3", "GB"])
def test_an_invalid_size_is_refused(text: str) -> None:
    """With an example of one."""
    with pytest.raises(InvalidArgumentError, match="is not a size"):
        bytes_of(text)


@settings(deadline=None)
@given(st.integers(0, 10**13))
def test_a_duration_is_read_back(milliseconds: int) -> None:
    """What is printed can be given again."""
    assert milliseconds_of(in_time(milliseconds)) == milliseconds


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (2**20, "1.0 MiB"), (2**80, "1048576.0 EiB")]
)
def test_sizes_are_printed_for_people(count: int, text: str) -> None:
    """With one digit behind the point."""
    assert in_bytes(count) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 files"), (1, "1 file"), (2, "2 files")])
def test_a_number_of_things_is_printed_with_its_plural(count: int, text: str) -> None:
    assert counted(count, "file") == text


def test_tables_are_aligned() -> None:
    """Numbers to the right, text to the left, nothing at all without rows."""
    lines = list(table(("name", "count"), [("a", 1), ("bbbbbb", 200)]))
    assert lines == ["NAME    COUNT", "a           1", "bbbbbb    200"]
    assert list(table(("name",), [])) == []


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("1m", 60), ("200ms", 0.2), ("5", 5), ("0.5", 0.5), (5.0, 5)]
)
def test_a_duration_of_an_option_has_a_unit_or_means_seconds(text: object, seconds: float) -> None:
    """A default, which is a number, passes too."""
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("option", ["--timeout", "--timeout-s"])
@pytest.mark.parametrize("text", ["x", "0", "0s", "nan", "1e400"])
def test_a_wrong_duration_of_an_option_is_a_usage_error(option: str, text: str) -> None:
    """By both names of the option, before anything is connected."""
    refused = run_command("ready", option, text)
    assert refused.code == 2
    assert option in refused.stderr
