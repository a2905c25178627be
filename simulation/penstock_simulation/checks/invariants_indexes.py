"""Live assertions about what is not in memory: records of inactive segments, attribute and table indexes.

`check_attributes` and `check_activity` are synchronous and see one moment. The others read, so they are for quiet
moments; what changes meanwhile is left out. All return violations in words. Part of `invariants`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from penstock.model.errors import CorruptionError
from penstock.model.segments import NO_VALUE
from penstock.segmentstore.container.btree.pages import POINTER_LENGTH, Pointer, count_of, key_at, pointer_at
from penstock.segmentstore.container.btree.tree import BTreeIndex
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.metadata import SegmentSnapshot, decode_record
from penstock.segmentstore.container.segment import Segment, SegmentFlags

#: Creations under way at once may each find room for one more.
_OVER_LIMIT_MAX = 16
_PAGE_LENGTH = 1000
_KINDS = ("$attributes-", "$table-")


def check_activity(container: SegmentContainer) -> Iterator[str]:
    """Say where the books of active segments are wrong."""
    metadata = container.state.metadata
    for segment in metadata.by_id.values():
        if segment.is_inactive:
            yield f"{segment.name} (id {segment.id}) was dropped, and is in memory"
    system_count = sum(segment.is_system for segment in metadata.by_name.values())
    if system_count != metadata.system_count:
        yield f"{metadata.system_count} system segments are counted, there are {system_count}"
    limit = container.settings.active_segments_max
    transients = [segment for segment in metadata.by_name.values() if segment.is_transient]
    known = {segment.name for siblings in metadata.transients.values() for segment in siblings.values()}
    if known != {segment.name for segment in transients} or metadata.transient_count != len(transients):
        yield f"{metadata.transient_count} transient segments are counted, {len(known)} listed, {len(transients)} exist"
    if len(transients) > (most := container.settings.transients.count_max(limit)):
        yield f"{len(transients)} transient segments exist, {most} are allowed"
    if metadata.active_count > limit + _OVER_LIMIT_MAX:
        yield f"{metadata.active_count} segments are active, {limit} are allowed"


def check_attributes(container: SegmentContainer, segment: Segment) -> Iterator[str]:
    """Say where the books of a segment's attributes are wrong."""
    dirty, attributes = segment.dirty_attributes, segment.attributes
    if not segment.has_attribute_index:
        if dirty:
            yield f"{len(dirty)} attributes wait for an index that it does not have"
        if NO_VALUE in attributes.values():
            yield "an attribute is kept as absent although there is no index that may have it"
        return
    unknown = [attribute_id.hex() for attribute_id in dirty if attribute_id not in attributes]
    if unknown:
        yield f"attributes {unknown} wait for the index, but have no value"
    is_alive = not (segment.is_deleted or segment.is_merged)
    if dirty and is_alive and segment.id not in container.state.attribute_work:
        yield f"{len(dirty)} attributes wait for the index, but the writer does not know of the segment"


async def check_catalog(container: SegmentContainer) -> list[str]:
    """Return what is wrong with the records of inactive segments, and with what storage has of segments that are gone.

    Every record is of a segment that is active, and would be removed with it, or inactive, and complete in storage.
    Storage holds nothing, indexes included, of a segment that is neither there nor being freed.
    """
    metadata = container.state.metadata
    violations: list[str] = []
    inactive: dict[str, SegmentSnapshot] = {}
    counts = (container.catalog.activated_count, container.catalog.deactivated_count, metadata.next_segment_id)
    try:
        async for name, record in catalog_records(container):
            try:
                stored = decode_record(record)
            except ValueError as error:
                violations.append(f"record of {name}: {error}")
                continue
            active = metadata.by_name.get(name)
            if stored.name != name or stored.segment_id >= metadata.next_segment_id:
                violations.append(f"record of {name} is of {stored.name}, id {stored.segment_id}")
            elif active is not None and not active.has_record:
                violations.append(
                    f"{name} (id {active.id}) has a record, of id {stored.segment_id}, that it does not know of: "
                    "deleted, it would come back"
                )
            elif active is None:
                inactive[name] = stored
        for name, stored in inactive.items():
            violations += [f"inactive {name}: {problem}" for problem in await _check_inactive(container, stored)]
        orphans = await _orphans(container, inactive)
    except CorruptionError as error:
        return [f"container {container.id}: {error!r}"]
    now = (container.catalog.activated_count, container.catalog.deactivated_count, metadata.next_segment_id)
    if now != counts:
        return []
    return [f"container {container.id}: {violation}" for violation in [*violations, *orphans]]


async def catalog_records(container: SegmentContainer) -> AsyncIterator[tuple[str, bytes]]:
    """Yield the segments that have a record in the catalog, by name."""
    token = b""
    while (page := await container.tables.entries(container.catalog._table, limit=_PAGE_LENGTH, token=token)).entries:
        for entry in page.entries:
            yield entry.key.decode(), entry.value
        token = page.token


async def _check_inactive(container: SegmentContainer, stored: SegmentSnapshot) -> list[str]:
    if stored.segment_id in container.state.metadata.by_id:
        return [f"its id {stored.segment_id} is in memory, under another name"]
    if stored.is_deleted or stored.is_merged or stored.flags & SegmentFlags.SYSTEM:
        return [f"such a segment is never put away: {stored}"]
    if stored.has_attribute_index and stored.attributes:
        return [f"{len(stored.attributes)} attributes never reached the index"]
    if stored.length <= stored.start_offset:
        return []
    info = await container.storage._user.info(stored.name)
    if info is None or info.length != stored.length:
        return [f"it has {stored.length} bytes, storage has {info}"]
    return []


async def _orphans(container: SegmentContainer, inactive: dict[str, SegmentSnapshot]) -> list[str]:
    state = container.state
    ids = {stored.segment_id for stored in inactive.values()}
    found: list[str] = []
    names = [stored.name async for stored in container.storage._user.list_segments()]
    for name in names:
        for kind in _KINDS:
            owner, is_index, number = name.rpartition(kind)
            if is_index:
                is_owned = int(number, 16) in ids or int(number, 16) in state.metadata.by_id
                # It may have been freed since they were listed.
                if not is_owned and await container.storage._user.info(name) is not None:
                    found.append(f"storage has {name}, but {owner} with that id is gone")
                break
        else:
            is_leaving = any(segment.name == name for segment in state.metadata.by_id.values())
            # It may have been freed since they were listed.
            is_stored = name not in inactive and not is_leaving and await container.storage._user.info(name) is not None
            if is_stored:
                found.append(f"storage has {name}, which is neither active nor inactive")
    return found


async def check_indexes(container: SegmentContainer) -> list[str]:
    """Return where attribute indexes differ from clean values in memory, and indexes that are no sound B+trees."""
    violations: list[str] = []
    for segment in container.segments():
        where = f"container {container.id}: {segment.name}"
        try:
            with segment.in_use():
                if segment.has_attribute_index:
                    violations += [f"{where}: {problem}" for problem in await _check_values(container, segment)]
                index = segment.table.index if segment.table is not None else None
                if isinstance(index, BTreeIndex):
                    violations += [f"{where}: table index: {problem}" for problem in await check_tree(index)]
        except CorruptionError as error:
            violations.append(f"{where}: {error!r}")
    return violations


async def _check_values(container: SegmentContainer, segment: Segment) -> list[str]:
    index = await container.attributes._index(segment)
    assert isinstance(index, BTreeIndex)
    generation = index.generation
    clean = {
        attribute_id: value
        for attribute_id, value in segment.attributes.items()
        if attribute_id not in segment.dirty_attributes
    }
    found = dict(zip(clean, await index.get(list(clean)), strict=True))
    problems = await check_tree(index)
    if segment.attribute_index is not index or index.generation != generation:
        return []
    for attribute_id, value in clean.items():
        packed = found[attribute_id]
        stored = NO_VALUE if packed is None else int.from_bytes(packed, "big", signed=True)
        if stored != value:
            problems.append(f"attribute {attribute_id.hex()} is {value}, and clean; the index has {stored}")
    return problems


async def check_tree(index: BTreeIndex) -> list[str]:
    """Return what is wrong with order, bounds, counts, live bytes or lowest offsets of a whole tree."""
    state = index._state
    if state is None:
        return []
    problems: list[str] = []
    live_bytes = entry_count = 0

    async def walk(pointer: Pointer, level: int, lower: bytes, upper: bytes | None) -> int:
        nonlocal live_bytes, entry_count
        (page,) = await index._reader.load([pointer], level, keeps=False)
        live_bytes += len(page)
        count = count_of(page)
        keys = [key_at(page, number, POINTER_LENGTH if level else index.value_length) for number in range(count)]
        if keys != sorted(set(keys)):
            problems.append(f"keys of the page at {pointer.offset} are not in order")
        if level == 0:
            entry_count += count
            if keys[0] < lower or (upper is not None and keys[-1] >= upper):
                problems.append(f"keys of the leaf at {pointer.offset} are not within [{lower!r}, {upper!r})")
            return pointer.offset
        bounds = [lower, *keys[1:], upper]
        lowest = min(
            [
                await walk(pointer_at(page, number), level - 1, bounds[number] or b"", bounds[number + 1])
                for number in range(count)
            ]
        )
        if lowest != pointer.lowest:
            problems.append(f"page at {pointer.offset}: the lowest below is at {lowest}, it says {pointer.lowest}")
        return lowest

    if state.height:
        await walk(state.root, state.height - 1, b"", None)
    if index._state is not state:
        return []  # Updated meanwhile: pages may have been given back.
    if (live_bytes, entry_count) != (state.live_bytes, state.entry_count):
        problems.append(
            f"it has {entry_count} entries in {live_bytes} bytes, its footer says {state.entry_count} in "
            f"{state.live_bytes}"
        )
    return problems
