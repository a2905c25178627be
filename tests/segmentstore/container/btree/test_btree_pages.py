"""Pages, footers, and the cutting and sorting around them: pure functions, and golden bytes of the format."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError, InvalidArgumentError
from penstock.segmentstore.container.btree.content import Content, content_of, join, split
from penstock.segmentstore.container.btree.footer import (
    FOOTER_LENGTH,
    Footer,
    decode_footer,
    empty_footer,
    encode_footer,
)
from penstock.segmentstore.container.btree.pages import (
    PAGE_OVERHEAD,
    POINTER_LENGTH,
    Pointer,
    build_page,
    child_index,
    divide,
    entries_between,
    find,
    inner_entry,
    lowest_below,
    move_page,
    pointer_at,
    pointer_of,
    separator,
    verify_page,
)
from penstock.segmentstore.container.btree.sorting import sorted_in_slices

FOOTER = Footer(
    offset=1000,
    value_length=8,
    height=2,
    root=Pointer(900, 100, 50),
    entry_count=7,
    live_bytes=300,
    mark=b"mark",
)


def checked(body: bytes) -> bytes:
    return body + crc32c(body, 0).to_bytes(4, "big")


def leaf(*keys: bytes, offset: int = 0) -> bytes:
    return build_page(0, offset, [len(key) + 1 for key in keys], b"".join(key + b"!" for key in keys))


def inner(*bounds: bytes) -> bytes:
    entries = [inner_entry(bound, Pointer(1000 - index, 50, 77 + index)) for index, bound in enumerate(bounds)]
    return build_page(1, 5, [len(entry) for entry in entries], b"".join(entries))


def test_leaf_has_the_documented_bytes() -> None:
    """Golden: ``docs/formats.md``, "Sorted index"."""
    expected = "010000020000000000000102000000020005" + b"a!bc!".hex()
    assert leaf(b"a", b"bc", offset=0x102) == checked(bytes.fromhex(expected))


def test_inner_page_has_the_documented_bytes() -> None:
    """Golden: ``docs/formats.md``, "Sorted index"."""
    expected = "01010001000000000000000500000015" + b"k".hex() + "00000000000003e800000032000000000000004d"
    assert inner(b"k") == checked(bytes.fromhex(expected))


def test_footer_has_the_documented_bytes() -> None:
    """Golden: ``docs/formats.md``, "Sorted index"."""
    expected = b"PSIX" + bytes.fromhex(
        "01" "02" "0008" "00000000000003e8" "0000000000000384" "00000064" "0000000000000032"
        "0000000000000007" "000000000000012c" "04"
    )  # fmt: skip
    assert encode_footer(FOOTER) == checked((expected + b"mark").ljust(FOOTER_LENGTH - 4, b"\0"))


@given(st.sets(st.binary(min_size=1, max_size=4), max_size=60), st.binary(min_size=1, max_size=4))
def test_search_finds_the_first_key_that_is_not_below(keys: set[bytes], wanted: bytes) -> None:
    ordered = sorted(keys)
    page = leaf(*ordered)
    index, is_found = find(page, wanted, 1)
    assert index == sum(key < wanted for key in ordered)
    assert is_found == (wanted in keys)
    assert entries_between(page, index, len(ordered), 1) == [(key, b"!") for key in ordered[index:]]


@given(st.sets(st.binary(min_size=1, max_size=3), min_size=1, max_size=20), st.sets(st.binary(min_size=1, max_size=3)))
def test_keys_are_divided_among_children_by_lower_bounds(bounds: set[bytes], keys: set[bytes]) -> None:
    """The first child also takes what is below its bound."""
    ordered = sorted(bounds)
    page = inner(*ordered)
    wanted = sorted(keys)
    divided = [(key, index) for index, low, high in divide(page, wanted, 0, len(wanted)) for key in wanted[low:high]]
    assert divided == [(key, max(0, sum(bound <= key for bound in ordered) - 1)) for key in wanted]
    assert divided == [(key, child_index(page, key)) for key in wanted]


def test_pointers_are_read_back() -> None:
    page = inner(b"", b"k" * 8192, b"z")
    assert [pointer_at(page, index) for index in range(3)] == [
        Pointer(1000 - index, 50, 77 + index) for index in range(3)
    ]
    assert lowest_below(page) == 77
    assert pointer_of(inner_entry(b"key", Pointer(1, 2, 3))) == Pointer(1, 2, 3)


def test_moved_page_is_the_page_of_another_offset() -> None:
    assert move_page(leaf(b"a", b"bc", offset=5), 1 << 40) == leaf(b"a", b"bc", offset=1 << 40)


@given(st.binary(max_size=6), st.binary(max_size=6))
def test_separator_is_the_shortest_bound_between(one: bytes, other: bytes) -> None:
    left, right = sorted((one, other))
    if left == right:
        return
    bound = separator(left, right)
    assert left < bound <= right
    assert right.startswith(bound)
    assert not bound or bound[:-1] <= left


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (b"", "too short"),
        (leaf(b"a")[: PAGE_OVERHEAD - 1], "too short"),
        (leaf(b"a") + b"x", "checksum"),
        (leaf(b"a", b"b")[:-1], "checksum"),
        (leaf(b"a", offset=10), "belongs to offset 10"),
        (build_page(1, 9, [2], b"a!"), "level 1 where level 0"),
        (build_page(0, 9, [], b""), "0 entries do not fit"),
        (build_page(0, 9, [2], b"a!more"), "1 entries do not fit"),
    ],
)
def test_bytes_that_are_no_page_are_reported(page: bytes, message: str) -> None:
    with pytest.raises(CorruptionError, match=message) as raised:
        verify_page("segment", 9, page, level=0)
    assert (raised.value.path, raised.value.offset) == ("segment", 9)


@pytest.mark.parametrize("footer", [FOOTER, empty_footer(8, offset=1000, mark=b"m" * 128)])
def test_footer_is_read_back(footer: Footer) -> None:
    found = decode_footer("segment", 1000, encode_footer(footer), start_offset=50, value_length=8)
    assert encode_footer(found) == encode_footer(footer)
    assert (found.end, found.lowest) == (1000 + FOOTER_LENGTH, footer.lowest)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (encode_footer(FOOTER)[:-1], "191 bytes"),
        (bytes(FOOTER_LENGTH), "found 00000000 instead of"),
        (encode_footer(FOOTER)[:-5] + b"x" + encode_footer(FOOTER)[-4:], "checksum"),
        (encode_footer(replace(FOOTER, offset=999)), "belongs to offset 999"),
        (encode_footer(replace(FOOTER, value_length=9)), "values are 9 bytes long, not 8"),
        (encode_footer(replace(FOOTER, height=0)), "7 entries in 0 levels"),
        (encode_footer(replace(FOOTER, entry_count=0)), "0 entries in 2 levels"),
        (encode_footer(replace(FOOTER, root=Pointer(900, 100, 49))), "segment's start 50"),
        (encode_footer(replace(FOOTER, root=Pointer(900, 101, 50))), "root at 900"),
        (encode_footer(replace(FOOTER, root=Pointer(900, 100, 901))), "root at 900"),
        (encode_footer(replace(FOOTER, root=Pointer(900, PAGE_OVERHEAD - 1, 50))), "root at 900"),
        (checked(encode_footer(FOOTER)[:52] + b"\x81" + encode_footer(FOOTER)[53:-4]), "mark of 129"),
    ],
)
def test_bytes_that_are_no_footer_are_reported(data: bytes, message: str) -> None:
    with pytest.raises(CorruptionError, match=message) as raised:
        decode_footer("segment", 1000, data, start_offset=50, value_length=8)
    assert (raised.value.path, raised.value.offset) == ("segment", 1000)


def test_too_long_a_mark_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="mark of 129"):
        encode_footer(empty_footer(8, offset=0, mark=b"m" * 129))


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=200),
    st.sampled_from([1, 2]),
    st.booleans(),
)
@settings(deadline=None)
def test_content_is_divided_into_pages_without_loss(lengths: list[int], entries_min: int, fills: bool) -> None:
    """None too long unless so few entries force it, none with too few entries unless there are no more."""
    keys = [index.to_bytes(4, "big") + bytes(length) for index, length in enumerate(lengths)]
    body = b"".join(key + b"!" for key in keys)
    content = Content(0, b"lower", len(body) + 2 * len(keys), [body], [len(key) + 1 for key in keys])
    pages = list(split(content, 512, 1, entries_min=entries_min, fills=fills))
    assert b"".join(part for _, _, part in pages) == body
    assert [length for _, part, _ in pages for length in part] == content.lengths
    assert pages[0][0] == b"lower"
    number = 0
    for bound, part, entries in pages:
        assert len(entries) == sum(part)
        assert len(part) >= min(entries_min, len(keys))
        if len(part) > entries_min + 1:
            assert PAGE_OVERHEAD + sum(part[:-1]) + 2 * len(part[:-1]) <= 512
        if number:
            assert keys[number - 1] < bound <= keys[number]
        number += len(part)


def test_joined_inner_content_has_the_bound_that_the_parent_says() -> None:
    """The first bound in the right page is from before its left neighbours went; keys between would be lost."""
    joined = join(content_of(inner(b"a", b"c"), 1, b"a"), content_of(inner(b"xyz", b"z"), 1, b"m"))
    ((bound, lengths, body),) = split(joined, 512, POINTER_LENGTH, entries_min=2, fills=False)
    page = build_page(1, 0, lengths, body)
    assert bound == b"a"
    assert [key for key, _ in entries_between(page, 0, 4, POINTER_LENGTH)] == [b"a", b"c", b"m", b"z"]
    assert joined.size == len(body) + 2 * 4


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1000, 5000])
@pytest.mark.parametrize("order", ["ascending", "descending", "random", "runs"])
async def test_many_keys_are_sorted_slice_by_slice(count: int, order: str) -> None:
    keys = [b"%08d" % number for number in range(count)]
    given_keys = keys.copy()
    match order:
        case "descending":
            given_keys.reverse()
        case "random":
            random.Random(4).shuffle(given_keys)
        case "runs":
            given_keys = keys[::3] + keys[1::3] + keys[2::3]
    task = asyncio.ensure_future(sorted_in_slices(given_keys, slice_length=64))
    assert await task == keys
