"""Chunks that a storage refuses permanently, in `FaultyChunkStorage`."""

from __future__ import annotations

import random

import pytest

from penstock.model.errors import ChunkError
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock_simulation.chunk_faults import ChunkFault, ChunkFaults, FaultyChunkStorage


async def test_chunks_of_refused_names_can_be_read_and_not_changed() -> None:
    """Every change fails without effect, each time; other names, and reads, are as before. Healing ends it."""
    storage = FaultyChunkStorage(MemoryChunkStorage(), random.Random(1))
    await storage.create_with_content("s/a/1", b"kept".split())
    storage.faults = ChunkFaults(refused_prefixes=("s/a/",))
    for _ in range(3):
        for change in (
            storage.create("s/a/2"),
            storage.create_with_content("s/a/2", [b"new"]),
            storage.write("s/a/1", 4, [b"more"]),
            storage.delete("s/a/1"),
        ):
            with pytest.raises(ChunkError, match="permanently"):
                await change
    assert storage.fault_counts[ChunkFault.REFUSED] == 12
    assert await storage.read("s/a/1", 0, 10) == b"kept"
    assert [info.name for info in await storage.list()] == ["s/a/1"]
    await storage.create_with_content("s/b/1", [b"other"])
    storage.faults = ChunkFaults()
    await storage.delete("s/a/1")
