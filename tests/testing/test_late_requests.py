"""Late requests: what comes twice, what comes late, what never comes, and what goes straight through."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from penstock.model.errors import OutcomeUnknownError, SegmentExistsError
from penstock.model.segments import VERSION_ABSENT, TableRemoval, TableUpdate
from penstock_simulation.memory_segments import MemorySegments
from penstock_simulation.simulated.late_requests import LateRequests, LateRequestSettings

AT_ONCE = 0.0


def make(duplicate_rate: float, stuck_rate: float, seed: int = 1) -> tuple[MemorySegments, LateRequests, Counter[str]]:
    store, counts = MemorySegments(), Counter()
    settings = LateRequestSettings(duplicate_rate, stuck_rate, AT_ONCE)
    return store, LateRequests(store, random.Random(seed), settings, counts), counts


async def test_a_repeatable_request_arrives_again_and_its_second_reply_is_dropped() -> None:
    """A table and an unconditional removal: the second removal deletes what was written between."""
    store, late, counts = make(1.0, 0.0)
    await late.create_table("t")
    await late.table_put("t", [TableUpdate(b"k", b"1", VERSION_ABSENT)])
    await late.table_remove("t", [TableRemoval(b"k")])
    await store.table_put("t", [TableUpdate(b"k", b"2")])
    for _ in range(5):
        await asyncio.sleep(0)
    assert await store.table_get("t", [b"k"]) == [None]
    assert counts == {"late duplicate": 2}
    with pytest.raises(SegmentExistsError):
        await late.create_table("t")


async def test_a_conditional_request_is_stuck_and_never_done_twice() -> None:
    """Its caller gets the error that the reply is lost; the change is applied later, or never, and once at most."""
    outcomes = set()
    for seed in range(20):
        store, late, counts = make(1.0, 1.0, seed)
        await store.create_table("t")
        with pytest.raises(OutcomeUnknownError):
            await late.table_put("t", [TableUpdate(b"k", b"1", VERSION_ABSENT)])
        assert await store.table_get("t", [b"k"]) == [None]
        for _ in range(5):
            await asyncio.sleep(0)
        outcomes.add((await store.table_get("t", [b"k"])) != [None])
        assert counts == {"late request": 1}
    assert outcomes == {True, False}


async def test_reads_and_healed_seams_are_left_alone() -> None:
    """Nothing comes late any more, and reads never did."""
    _, late, counts = make(1.0, 1.0)
    late.is_healed = True
    await late.create_table("t")
    await late.table_put("t", [TableUpdate(b"k", b"1", VERSION_ABSENT)])
    assert (await late.table_get("t", [b"k"]))[0].value == b"1"
    assert not counts
