"""The form of numbers, containers and keys in messages."""

from __future__ import annotations

import pytest

from penstock.model.errors import ContainerNotFoundError, ContainerOfflineError, TableKeyMissingError
from penstock.model.times import seconds_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.25, "0.25 s"), (2.0, "2 s"), (61.34, "61.3 s"), (1060.4, "1060 s"), (123456.0, "123456 s")],
)
def test_durations_are_never_shown_in_powers_of_ten(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_a_container_that_is_not_known_is_not_shown_as_a_number() -> None:
    assert str(ContainerNotFoundError(None, "segment s is not served here")) == "segment s is not served here"
    assert str(ContainerOfflineError(3)) == "container 3: container is offline"


@pytest.mark.parametrize(
    ("key", "shown"), [(b"apple\0\0\0", "'apple'"), (b"\xff\0", repr(b"\xff")), (b"a\nb", repr(b"a\nb")), (b"\0", "''")]
)
def test_keys_are_shown_without_their_padding(key: bytes, shown: str) -> None:
    error = TableKeyMissingError("s/t", key=key)
    assert str(error) == f"s/t: key {shown} does not exist"
    assert error.key == key
