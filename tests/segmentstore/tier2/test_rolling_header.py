"""The header of RollingStorage: bytes that follow from what the older store writes, what it reads, and damage.

The older store writes ``<key>=<value>&`` in UTF-8: ``maxsize=<bytes>&`` when it makes a header, then an entry for each
chunk, and ``concat=<chunks>@<offset>&`` before a source's header (Pravega 0.8, ``HandleSerializer`` and
``RollingStorage``, of which PDP-19 shows an early draft with other signs).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import CorruptionError, InvalidArgumentError
from penstock.segmentstore.tier2.rolling_header import (
    RollingChunk,
    RollingHeader,
    decode_header,
    encode_header,
    header_name,
    is_rolling_chunk,
    rolling_chunk_name,
    segment_of_header,
)

NAME = "abc$header"
#: The example of PDP-19: segment "abc", chunks of at most 100 bytes, 249 bytes in all.
PDP_EXAMPLE = b"maxsize=100&0=abc$offset.0&100=abc$offset.100&200=abc$offset.200&"


def chunks_of(data: bytes) -> list[tuple[int, str]]:
    header = decode_header(NAME, data)
    assert header is not None
    return [(chunk.start, chunk.name) for chunk in header.chunks]


def test_the_example_of_pdp_19_has_these_bytes() -> None:
    """SS-240. Names, signs and order are those of `HandleSerializer`, the numbers those of the document."""
    header = RollingHeader(100, tuple(RollingChunk(at, rolling_chunk_name("abc", at)) for at in (0, 100, 200)))
    assert encode_header(header) == PDP_EXAMPLE
    assert decode_header(NAME, PDP_EXAMPLE) == header
    assert header_name("abc") == NAME
    assert segment_of_header(NAME) == "abc"


def test_a_new_segment_has_a_header_without_chunks_and_an_empty_one_is_none() -> None:
    assert decode_header(NAME, b"maxsize=9223372036854775807&") == RollingHeader(2**63 - 1, ())
    assert decode_header(NAME, b"") is None


names = st.text(st.characters(blacklist_characters="&", blacklist_categories=["Cs"]), min_size=1, max_size=20)
headers = st.builds(
    lambda length, chunks: RollingHeader(
        length, tuple(RollingChunk(start, name) for start, name in sorted(chunks.items()))
    ),
    st.integers(1, 2**63 - 1),
    st.dictionaries(st.integers(0, 2**63 - 1), names, max_size=8),
)


@given(headers)
def test_what_is_written_is_read(header: RollingHeader) -> None:
    assert decode_header(NAME, encode_header(header)) == header


@given(headers, st.data())
def test_a_header_that_was_cut_off_is_damage_or_an_earlier_one(header: RollingHeader, data: st.DataObject) -> None:
    """At the end of an entry it is what it was before that entry was appended. No other cut is taken for anything."""
    stored = encode_header(header)
    end = data.draw(st.integers(1, len(stored) - 1))
    if stored[end - 1 : end] == b"&":
        found = decode_header(NAME, stored[:end])
        assert found is not None
        assert found == RollingHeader(header.chunk_length_max, header.chunks[: len(found.chunks)])
    else:
        with pytest.raises(CorruptionError, match="truncated while"):
            decode_header(NAME, stored[:end])


def test_a_merge_counts_from_its_offset_and_brings_its_own_first_entry() -> None:
    data = PDP_EXAMPLE + b"concat=2@249&maxsize=50&0=tx$offset.0&50=tx$offset.50&319=abc$offset.319&"
    assert chunks_of(data)[3:] == [(249, "tx$offset.0"), (299, "tx$offset.50"), (319, "abc$offset.319")]


def test_a_merge_that_came_to_nothing_is_void() -> None:
    """The announcement was written, the source's header not: what follows is the segment's own, or it is repeated."""
    assert chunks_of(PDP_EXAMPLE + b"concat=2@249&249=abc$offset.249&")[3:] == [(249, "abc$offset.249")]
    assert len(chunks_of(PDP_EXAMPLE + b"concat=2@249&")) == 3
    twice = PDP_EXAMPLE + b"concat=1@249&concat=1@249&maxsize=9&0=tx$offset.0&"
    assert chunks_of(twice)[3:] == [(249, "tx$offset.0")]


def test_of_two_chunks_at_one_offset_the_first_is_empty() -> None:
    """An empty chunk was sealed, and a merge came at its offset. The older store writes that, and cannot read it."""
    data = b"maxsize=9&0=a&5=empty&concat=1@5&maxsize=9&0=tx&"
    assert chunks_of(data) == [(0, "a"), (5, "empty"), (5, "tx")]


@pytest.mark.parametrize(
    ("data", "offset", "problem"),
    [
        (b"maxsize=100&0=abc$off", 12, "truncated while"),
        (b"0=a&", 0, "does not begin with maxsize"),
        (b"maxsize=100", 0, "truncated while"),
        (b"maxsize=0&", 0, "0 bytes"),
        (b"maxsize=x&", 0, "not a number"),
        (b"maxsize=9&-1=a&", 10, "not a number"),
        (b"maxsize=9&+1=a&", 10, "not a number"),
        (b"maxsize=9&01=a&", 10, "not a number"),
        (b"maxsize=9&\xd9\xa1=a&", 10, "not a number"),
        (b"maxsize=9&9223372036854775808=a&", 10, "not a number"),
        (b"maxsize=9&0=&", 10, "not an entry"),
        (b"maxsize=9&=a&", 10, "not an entry"),
        (b"maxsize=9&0&", 10, "not an entry"),
        (b"maxsize=9&&0=a&", 10, "not an entry"),
        (b"maxsize=9&5=a&4=b&", 14, "before the one that it follows"),
        (b"maxsize=9&0=a&concat=1&", 14, "not a number of chunks and an offset"),
        (b"maxsize=9&0=a&concat=1@-5&", 14, "not a number of chunks and an offset"),
        (b"maxsize=9&0=a&concat=2@9&maxsize=9&0=b&", 39, "truncated while"),
        (b"maxsize=9&0=a&concat=2@9&maxsize=9&0=b&concat=1@5&maxsize=9&0=c&", 39, "within another"),
        (b"maxsize=9&0=a&concat=1@9223372036854775807&0=b&1=c&", 47, "before the one that it follows"),
        (b"maxsize=9&0=a&concat=2@9223372036854775807&0=b&1=c&", 47, "beyond any segment"),
        (b"maxsize=9&0=\xff&", 12, "not UTF-8"),
    ],
)
def test_damage_is_reported_with_its_place(data: bytes, offset: int, problem: str) -> None:
    """SS-240: nothing is guessed."""
    with pytest.raises(CorruptionError, match=problem) as caught:
        decode_header(NAME, data)
    assert (caught.value.path, caught.value.offset) == (NAME, offset)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_header_or_damage(data: bytes) -> None:
    try:
        header = decode_header(NAME, b"maxsize=7&" + data)
    except CorruptionError:
        return
    assert header is not None
    starts = [chunk.start for chunk in header.chunks]
    assert starts == sorted(starts)


def test_what_the_older_store_could_not_read_is_not_written() -> None:
    for header in (
        RollingHeader(9, (RollingChunk(0, "a&b"),)),
        RollingHeader(9, (RollingChunk(0, ""),)),
        RollingHeader(9, (RollingChunk(5, "a"), RollingChunk(5, "b"))),
        RollingHeader(0, ()),
    ):
        with pytest.raises(InvalidArgumentError):
            encode_header(header)


def test_names_of_the_older_store_are_distinguished_from_others() -> None:
    assert is_rolling_chunk("s/t/0.#epoch.0$offset.0")
    for name in ("s/t/0.#epoch.0$offset.", "$offset.5", "s/t/0$offset.-1", "s/t/0.#epoch.0.E-3-O-0.6f2b", NAME):
        assert not is_rolling_chunk(name), name
    assert segment_of_header("s/t/0") is None
    assert segment_of_header("$header") is None
