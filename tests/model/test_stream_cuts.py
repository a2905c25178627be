"""Stream cuts as text."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import InvalidArgumentError
from penstock.model.stream_cuts import StreamCut

GOOD = '{"positions":{"0":10,"4294967297":-1},"scope":"retail","stream":"orders","v":1}'


def test_text_is_exact_and_sorted_by_segment_number():
    """Equal cuts give equal text, whatever the order of their positions was."""
    cut = StreamCut("retail", "orders", {4294967297: -1, 0: 10})
    assert cut.to_text() == GOOD
    assert StreamCut.from_text(GOOD) == cut
    assert list(StreamCut("a", "b", {10: 0, 9: 0}).positions) == [9, 10]


@given(st.dictionaries(st.integers(0, 2**63 - 1), st.integers(-1, 2**63 - 1), max_size=20))
def test_any_cut_survives_text_and_pickle(positions):
    """Encode and decode; hash and equality go together."""
    cut = StreamCut("scope", "_stream.1-x", positions)
    for copy in (StreamCut.from_text(cut.to_text()), pickle.loads(pickle.dumps(cut))):
        assert copy == cut
        assert hash(copy) == hash(cut)


def test_positions_cannot_be_changed():
    """Neither through the cut nor through the mapping it was made of."""
    source = {0: 1}
    cut = StreamCut("a", "b", source)
    source[0] = 2
    assert cut.positions[0] == 1
    with pytest.raises(TypeError):
        cut.positions[0] = 3  # type: ignore[index]  # that is the point


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "1",
        GOOD.replace('"v":1', '"v":2'),
        GOOD.replace('"v":1', '"v":true'),
        GOOD.replace(',"v":1', ""),
        GOOD.replace('"retail"', "1"),
        GOOD.replace('"retail"', '"re/tail"'),
        GOOD.replace('"orders"', '""'),
        GOOD.replace('"0"', '"x"'),
        GOOD.replace('"0"', '"-1"'),
        GOOD.replace('"0"', '"９"'),
        GOOD.replace('"0"', f'"{1 << 63}"'),
        GOOD.replace(":10", ":1.5"),
        GOOD.replace(":10", ":true"),
        GOOD.replace(":10", ":-2"),
        GOOD.replace(":10", f":{1 << 63}"),
        '{"v":1,"scope":"a","stream":"b","positions":[]}',
    ],
)
def test_other_text_is_refused(text):
    """Wrong JSON, wrong version, wrong type or value at every field."""
    with pytest.raises(InvalidArgumentError):
        StreamCut.from_text(text)
