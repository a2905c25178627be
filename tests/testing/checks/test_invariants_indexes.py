"""Data outside memory has invariants as well: each deliberate damage is named, in the records and in storage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import msgspec
import pytest

from penstock.model.segments import NO_VALUE, TableUpdate
from penstock.segmentstore.container.btree.footer import Footer
from penstock.segmentstore.container.btree.tree import BTreeIndex
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.metadata import ContainerSegmentRecord, decode_record, encode_record
from penstock.segmentstore.container.segment import Segment
from penstock_simulation.checks.invariants import check_container
from penstock_simulation.checks.invariants_indexes import check_catalog, check_indexes
from support.containers import QUIET, Incarnations, append

ACTIVE, INACTIVE = "s/active/0.#epoch.0", "s/inactive/0.#epoch.0"
IDS = [bytes([number]) * 16 for number in range(12)]


async def running() -> tuple[SegmentContainer, Segment]:
    """A container with a segment whose attributes are in an index, and one that has left memory."""
    lives = Incarnations(QUIET)
    container = await lives.start(attributes_in_memory_max=4)
    segment = await container.create(ACTIVE)
    for number, attribute_id in enumerate(IDS):
        await container.update_attribute(ACTIVE, attribute_id, value=number, expected=NO_VALUE)
    container.attributes.spill_if_due(segment)
    await container.attributes.flush(segment)
    await container.create(INACTIVE)
    await append(container, INACTIVE, b"stored")
    await container.flush()
    assert await container.catalog.deactivate([await container.find(INACTIVE)], 1) == 1
    assert check_container(container) == []
    assert await check_catalog(container) == []
    assert await check_indexes(container) == []
    assert not segment.dirty_attributes
    return container, segment


Break = Callable[[SegmentContainer, Segment], object]


def dropped(container: SegmentContainer, segment: Segment) -> None:
    segment.is_inactive = True


def miscounted(container: SegmentContainer, segment: Segment) -> None:
    container.state.metadata.system_count += 1


def over_the_limit(container: SegmentContainer, segment: Segment) -> None:
    container.settings = container.settings.__class__(active_segments_max=-100)


def dirty_without_value(container: SegmentContainer, segment: Segment) -> None:
    segment.dirty_attributes[b"?" * 16] = None


def dirty_without_index(container: SegmentContainer, segment: Segment) -> None:
    segment.dirty_attributes[IDS[0]] = None
    segment.has_attribute_index = False


def absent_without_index(container: SegmentContainer, segment: Segment) -> None:
    segment.attributes[b"?" * 16] = NO_VALUE
    segment.has_attribute_index = False


def unknown_to_the_writer(container: SegmentContainer, segment: Segment) -> None:
    segment.dirty_attributes[IDS[0]] = None
    container.state.attribute_work.clear()


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (dropped, "was dropped, and is in memory"),
        (miscounted, "system segments are counted"),
        (over_the_limit, "segments are active, -100 are allowed"),
        (dirty_without_value, "but have no value"),
        (dirty_without_index, "wait for an index that it does not have"),
        (absent_without_index, "although there is no index"),
        (unknown_to_the_writer, "the writer does not know of the segment"),
    ],
)
async def test_wrong_books_are_named(break_it: Break, words: str) -> None:
    container, segment = await running()
    break_it(container, segment)
    violations = check_container(container)
    assert any(words in violation for violation in violations), violations


async def put_record(container: SegmentContainer, **changes: object) -> None:
    """Write the record of the inactive segment again, changed."""
    table = container.catalog._table
    (entry,) = await container.tables.get(table, [INACTIVE.encode()])
    assert entry is not None
    stored = msgspec.structs.replace(decode_record(entry.value), **changes)
    record = msgspec.msgpack.encode(ContainerSegmentRecord(1, stored))
    await container.tables.put(table, [TableUpdate(INACTIVE.encode(), record)], -1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"length": 7}, "it has 7 bytes, storage has"),
        ({"name": "s/other/0.#epoch.0"}, "is of s/other/0.#epoch.0"),
        ({"segment_id": 1 << 40}, f"id {1 << 40}"),
        ({"is_deleted": True}, "is never put away"),
        ({"has_attribute_index": True, "attributes": {b"a" * 16: 1}}, "1 attributes never reached the index"),
    ],
)
async def test_wrong_record_is_named(changes: dict[str, object], words: str) -> None:
    container, _ = await running()
    await put_record(container, **changes)
    assert any(words in violation for violation in await check_catalog(container))


async def test_invalid_records_and_reused_ids_are_reported() -> None:
    container, segment = await running()
    await put_record(container, segment_id=segment.id)
    assert "in memory, under another name" in (await check_catalog(container))[0]
    await container.tables.put(container.catalog._table, [TableUpdate(INACTIVE.encode(), b"?")], -1)
    assert "not a segment record" in (await check_catalog(container))[0]


async def test_a_record_unknown_to_its_active_segment_is_reported() -> None:
    """Deleted, such a segment would come back with its record."""
    container, segment = await running()
    update = TableUpdate(ACTIVE.encode(), encode_record(segment))
    await container.tables.put(container.catalog._table, [update], -1)
    assert "deleted, it would come back" in (await check_catalog(container))[0]
    segment.has_record = True
    assert await check_catalog(container) == []


async def test_storage_of_segments_that_are_gone_is_named() -> None:
    container, _ = await running()
    await container.storage._user.open("s/orphan/0.#epoch.0$attributes-ff")
    await container.storage._user.write("s/orphan/0.#epoch.0$attributes-ff", 0, [b"x"])
    await container.storage._user.write("s/gone/0.#epoch.0", 0, [b"x"])
    first, second = sorted(await check_catalog(container))
    assert "s/gone/0.#epoch.0, which is neither active nor inactive" in first
    assert "s/orphan/0.#epoch.0 with that id is gone" in second


async def test_clean_value_that_the_index_does_not_have_is_named() -> None:
    container, segment = await running()
    segment.attributes[IDS[3]] = 99
    assert "is 99, and clean; the index has 3" in (await check_indexes(container))[0]


async def test_unsound_tree_is_named() -> None:
    container, segment = await running()
    index = segment.attribute_index
    assert isinstance(index, BTreeIndex)
    state = index._state
    assert state is not None
    kept = {field.name: getattr(state, field.name) for field in fields(Footer)}
    index._state = Footer(**{**kept, "entry_count": 11})
    assert "it has 12 entries" in (await check_indexes(container))[0]
