"""Lines of input, however they are cut into what is read."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cli.errors import InvalidLineError
from penstock.cli.line_input import KeyField, batches_of_lines
from penstock.model.errors import InvalidArgumentError


class Pieces(io.BytesIO):
    """An input whose reads come in given pieces."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__()
        self._pieces = [piece for piece in pieces if piece]

    def read1(self, size: int | None = -1, /) -> bytes:
        """Return the next piece."""
        return self._pieces.pop(0) if self._pieces else b""


@settings(deadline=None)
@given(st.lists(st.binary(max_size=9).map(lambda text: text.replace(b"a", b"\n"))))
def test_lines_are_whole_however_they_come(pieces: list[bytes]) -> None:
    """As `split` has them; only an empty rest after the last line feed is no line."""
    text = b"".join(pieces)
    wanted = text.split(b"\n")
    if wanted[-1] == b"":
        wanted.pop()
    assert [line for batch in batches_of_lines(Pieces(pieces), 1000) for line in batch] == wanted


def test_a_too_long_line_is_refused_after_the_earlier_lines_are_written() -> None:
    """It is not kept until memory is full."""
    batches = batches_of_lines(Pieces([b"one\n", b"x" * 60, b"x" * 60, b"x" * 10**6]), 100)
    assert next(batches) == [b"one"]
    with pytest.raises(InvalidArgumentError, match="more than 100 bytes"):
        next(batches)


def test_keys_are_the_text_of_a_field() -> None:
    """Of strings and whole numbers; whatever else is in the object."""
    lines = [b'{"k": "a", "x": [1, {"k": "no"}]}', b' {"x": 1, "k": 7} ', b'{"k": "7"}']
    assert KeyField("k").keys_of(lines, 1) == ["a", "7", "7"]
    assert KeyField("a b").keys_of([b'{"a b": "x"}'], 1) == ["x"]


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"[]",
        b"{}",
        b'{"k": []}',
        b'{"k": null}',
        b'{"k": true}',
        b'{"k": 1.5}',
        b'{"k": 1}{"k": 2}',
        b'{"k": 1',
        b"\xff",
    ],
)
def test_a_bad_line_is_found_by_its_number(bad: bytes) -> None:
    """With the keys of those before it."""
    with pytest.raises(InvalidLineError, match="line 12 of the input") as refused:
        KeyField("k").keys_of([b'{"k": 1}', b'{"k": 2}', bad, b'{"k": 4}'], 10)
    assert refused.value.keys == ["1", "2"]


def test_one_object_on_two_lines_is_two_bad_lines() -> None:
    """Also where the number of objects and of lines would come out even."""
    with pytest.raises(InvalidLineError, match="line 1 of"):
        KeyField("k").keys_of([b'{"k": 1,', b'"x": 2}', b'{"k": 3}'], 1)
