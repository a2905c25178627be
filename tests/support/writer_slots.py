"""`slots_of`: room for some writers of one connection."""

from __future__ import annotations

from penstock.segmentstore.writer_budget import WRITER_BYTES, WriterBudget, WriterSlots


def slots_of(count: int) -> WriterSlots:
    """Return room for `count` writers, in a budget that has room for many more."""
    return WriterSlots(WriterBudget(1000 * WRITER_BYTES, count * WRITER_BYTES))
