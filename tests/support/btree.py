"""B+tree indexes over memory, and a check of everything that must hold in one."""

from __future__ import annotations

from penstock.segmentstore.container.btree.pages import (
    POINTER_LENGTH,
    Pointer,
    count_of,
    key_at,
    pointer_at,
)
from penstock.segmentstore.container.btree.tree import BTreeIndex
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container_settings import IndexSettings
from penstock.segmentstore.settings import CacheSettings
from penstock_simulation.memory_index import MemoryIndexStorage

#: Pages of a few keys, moved and given back at once: the tree is high and its bytes don't last.
TINY = IndexSettings(page_bytes=256, compact_slack_bytes=0, truncate_bytes_min=0, slice_pages=3)
#: A cache that never has room.
NO_CACHE = CacheSettings(bytes_max=0)


def new_index(
    storage: MemoryIndexStorage,
    *,
    settings: IndexSettings = TINY,
    cache: Cache | None = None,
    value_length: int = 8,
) -> BTreeIndex:
    """Return an index over `storage`, not open yet."""
    return BTreeIndex(
        storage,
        name=storage.name,
        value_length=value_length,
        cache=cache or Cache(CacheSettings()),
        settings=settings,
    )


async def check_tree(index: BTreeIndex) -> None:
    """Check order, bounds, levels, counts, live bytes and lowest offsets of the whole tree."""
    state = index._state
    assert state is not None
    live_bytes = entry_count = 0

    async def walk(pointer: Pointer, level: int, lower: bytes, upper: bytes | None) -> int:
        nonlocal live_bytes, entry_count
        (page,) = await index._reader.load([pointer], level, keeps=False)
        live_bytes += len(page)
        count = count_of(page)
        keys = [key_at(page, number, POINTER_LENGTH if level else index.value_length) for number in range(count)]
        assert keys == sorted(set(keys))
        if level == 0:
            entry_count += count
            assert lower <= keys[0]
            assert upper is None or keys[-1] < upper
            assert pointer.lowest == pointer.offset
            return pointer.offset
        bounds = [lower, *keys[1:], upper]
        assert count == 1 or keys[1] > lower
        lowest = min(
            [
                await walk(pointer_at(page, number), level - 1, bounds[number] or b"", bounds[number + 1])
                for number in range(count)
            ]
        )
        assert lowest == pointer.lowest
        return lowest

    if state.height:
        await walk(state.root, state.height - 1, b"", None)
    assert live_bytes == state.live_bytes
    assert entry_count == state.entry_count == index.entry_count
