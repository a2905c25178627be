"""Stream cuts as text."""

from __future__ import annotations

import base64
import gzip
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import InvalidArgumentError
from penstock.model.stream_cuts import StreamCut, is_cut_text

GOOD = '{"positions":{"0":10,"4294967297":-1},"scope":"retail","stream":"orders","v":1}'


def test_text_is_exact_and_sorted_by_segment_number() -> None:
    """Equal cuts give equal text, whatever the order of their positions was."""
    cut = StreamCut("retail", "orders", {4294967297: -1, 0: 10})
    assert cut.to_text() == GOOD
    assert StreamCut.from_text(GOOD) == cut
    assert list(StreamCut("a", "b", {10: 0, 9: 0}).positions) == [9, 10]


@given(st.dictionaries(st.integers(0, 2**63 - 1), st.integers(-1, 2**63 - 1), max_size=20))
def test_any_cut_survives_text_and_pickle(positions: dict[int, int]) -> None:
    """Encode and decode; hash and equality go together."""
    cut = StreamCut("scope", "_stream.1-x", positions)
    copies = [StreamCut.from_text(cut.to_text()), pickle.loads(pickle.dumps(cut))]
    if all(segment & 0xFFFFFFFF < 1 << 31 for segment in positions):  # Others cannot be, and Pravega's form has none.
        copies.append(StreamCut.from_text(cut.to_pravega_text()))
    for copy in copies:
        assert copy == cut
        assert hash(copy) == hash(cut)


def test_positions_cannot_be_changed() -> None:
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
def test_other_text_is_refused(text: str) -> None:
    """Wrong JSON, wrong version, wrong type or value at every field."""
    with pytest.raises(InvalidArgumentError):
        StreamCut.from_text(text)


#: What ``StreamCut.asText`` of Pravega's Java client 0.13.0 returned for these positions of shop/orders.
JAVA = [
    ({0: 0}, "H4sIAAAAAAAA/zOwKs7IL9DPL0pJLSq2MgBBAC4izSYTAAAA"),
    ({0: 10, 1: 20}, "H4sIAAAAAAAA/zOwKs7IL9DPL0pJLSq2MtAxBGIDK0MDHSMDAOSDbyUbAAAA"),
    (
        {4294967297: 5, 12884901895: 1 << 62, 2: -1},
        "H4sIAAAAAAAA/zOwKs7IL9DPL0pJLSq2MtQx1zECksY6BlamOiZmhoZmFmYGhhYmRubGFuaWBiY6uoYACU+H8DIAAAA=",
    ),
    ({}, "H4sIAAAAAAAA/zOwKs7IL9DPL0pJLSq2srICANxB6RQQAAAA"),
]


def packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def unpacked(text: str) -> bytes:
    return gzip.decompress(base64.b64decode(text))


@pytest.mark.parametrize(("positions", "text"), JAVA)
def test_the_text_of_pravegas_clients_is_read_and_written(positions: dict[int, int], text: str) -> None:
    """What Java has written is read; what is written says the same, with the segments in order, and the same header."""
    cut = StreamCut("shop", "orders", positions)
    assert StreamCut.from_text(text) == cut
    assert StreamCut.from_text(f" {text}\n") == cut
    ours = cut.to_pravega_text()
    assert base64.b64decode(ours)[:10] == base64.b64decode(text)[:10]
    if list(positions) == sorted(positions):
        assert unpacked(ours) == unpacked(text)
    assert is_cut_text(text)
    assert is_cut_text(cut.to_text())
    assert not any(map(is_cut_text, ("earliest", "2026-11-22T10:30Z", "noted:5", "UNBOUNDED", "")))


@pytest.mark.parametrize(
    "text",
    [
        JAVA[1][1][:-4],
        JAVA[1][1][:20] + "A" + JAVA[1][1][21:],
        JAVA[1][1] + "AAAA",
        JAVA[1][1].replace("w", "!"),
        packed(""),
        packed("1:shop/orders:0:0:0"),
        packed("0:shop/orders:0:0"),
        packed("0:shop/orders:0:0:0:0"),
        packed("0:shop:0:0:0"),
        packed("0:shop/or/ders:0:0:0"),
        packed("0:shop/orders:0,1:0:0"),
        packed("0:shop/orders:0:0:-2"),
        packed("0:shop/orders:-1:0:0"),
        packed("0:shop/orders:0:2147483648:0"),
        packed("0:shop/orders:2147483648:0:0"),
        packed("0:shop/orders:0:0:9223372036854775808"),
        packed("0:shop/orders:0:0:1_0"),
        packed("0:shop/orders:0:0: 1"),
        packed("0:shop/orders:0,:0,:0,"),
        packed("0:shop/orders:0:0:" + "9" * 5000),
        packed("0:shop/orders:" + ("0" * 1000 + ",") * 20_000),
        base64.b64encode(gzip.compress(b"0:shop/orders:0:0:\xff", mtime=0)).decode(),
    ],
)
def test_damaged_texts_of_pravegas_clients_are_refused(text: str) -> None:
    """Cut off, changed, with something behind, of another format, with what no segment has, or far too long."""
    assert is_cut_text(text)
    with pytest.raises(InvalidArgumentError):
        StreamCut.from_text(text)
