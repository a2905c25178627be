"""Ids of writers for single appends: they are used again, and a bounded number of them is kept."""

from __future__ import annotations

from random import Random

from penstock.client.transport.writer_ids import WRITER_IDS_MAX, WriterIds


def test_the_id_that_was_given_back_last_is_used_first() -> None:
    ids = WriterIds(Random(1))
    first, second = ids.take(), ids.take()
    assert first != second
    ids.give_back(second)
    ids.give_back(first)
    assert [ids.take(), ids.take()] == [first, second]


def test_so_many_idle_ids_are_kept_and_no_more() -> None:
    ids = WriterIds(Random(1))
    used = [ids.take() for _ in range(WRITER_IDS_MAX + 10)]
    for each in used:
        ids.give_back(each)
    again = {ids.take() for _ in range(WRITER_IDS_MAX)}
    assert again == set(used[:WRITER_IDS_MAX])
    assert ids.take() not in used
