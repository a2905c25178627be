"""`Tail`: keys in order, whatever came and went."""

from __future__ import annotations

import asyncio
import random

import pytest

from penstock.segmentstore.container.tables.entries import pack_slot
from penstock.segmentstore.container.tables.tail import Tail


@pytest.mark.parametrize("seed", range(5))
def test_keys_between_bounds_equal_a_sorted_list(seed: int) -> None:
    """Keys are added, dropped and added again between look-ups."""
    rng = random.Random(seed)
    tail = Tail()
    for turn in range(600):
        key = b"%03d" % rng.randrange(80)
        if key not in tail.slots:
            tail.add(key, rng.choice([None, pack_slot(turn, turn, 20)]))
        elif rng.random() < 0.5:
            tail.drop(key)
        if turn == 400:
            tail.drop_removed()
            assert None not in tail.slots.values()
        if rng.random() < 0.5:
            after, first = rng.choice([b"", b"%03d" % rng.randrange(80)]), b"%03d" % rng.randrange(80)
            last = rng.choice([None, b"%03d" % rng.randrange(80)])
            limit = rng.randrange(1, 20)
            wanted = sorted(key for key in tail.slots if key > after and key >= first and (last is None or key <= last))
            assert tail.keys_between(after=after, first=first, last=last, limit=limit) == wanted[:limit]


@pytest.mark.parametrize("is_hasty", [False, True])
async def test_very_many_keys_are_sorted_while_others_continue(is_hasty: bool) -> None:
    """What is added and dropped meanwhile counts, also when one who comes in between does not wait."""
    tail = Tail()
    for number in random.Random(1).sample(range(100_000), 30_000):
        tail.add(b"%06d" % (2 * number), None)
    sorting = [asyncio.ensure_future(tail.sort()) for _ in range(2)]
    turns = 0
    while not all(task.done() for task in sorting):
        await asyncio.sleep(0)
        tail.add(b"%06d" % (2 * turns + 1), None)
        if turns == 2:
            for key in list(tail.slots)[:100]:
                tail.slots[key] = b"slot"
                tail.drop(key)
            if is_hasty:
                assert tail.keys_between(after=b"", first=b"", last=None, limit=3) == sorted(tail.slots)[:3]
        turns += 1
    assert turns >= 4
    assert tail.keys_between(after=b"", first=b"", last=None, limit=1 << 20) == sorted(tail.slots)


def test_counts_follow_each_change() -> None:
    tail = Tail()
    old, new = pack_slot(1, 1, 30), pack_slot(2, 2, 50)
    for before, after in ((None, new), (old, new), (old, None), (None, None)):
        tail.count(before, after)
    assert (tail.count_delta, tail.live_bytes_delta) == (0, 50 + 20 - 30)
    tail.add(b"k", new)
    tail.unresolved[b"k"] = None
    tail.resolve(b"k", old)
    assert (tail.count_delta, tail.live_bytes_delta) == (0, 40 + 20)
    assert not tail.unresolved
