"""The position that all subscribers of a stream have reached: the cut that is nowhere after one that was acknowledged.

A subscriber that has published nothing yet counts as being at the stream's start: data that it has not read stays.
Source: controller-internals 8.7; the exception to it: ``docs/retention.md``.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.subscribers import published_cuts
from penstock.controller.steps import in_turns
from penstock.controller.stream_cuts import Position, lowest, merged_cuts
from penstock.controller.stream_positions import position_of


async def subscriber_bound(tables: StreamTables, head: Mapping[int, int]) -> Position | None:
    """Return the bound; None for a stream without subscribers. `head`: the cut at the stream's start.

    1 read for all subscribers, and those needed to find two positions.
    """
    return await bound_of(tables, head, await published_cuts(tables))


async def bound_of(
    tables: StreamTables, head: Mapping[int, int], published: Mapping[str, Mapping[int, int]]
) -> Position | None:
    """Return the bound of subscribers with these published cuts (empty: none published); None without subscribers."""
    if not published:
        return None
    merged = await in_turns(merged_cuts(cut or head for cut in published.values()))
    return await position_of(tables, await in_turns(lowest(await position_of(tables, merged))))
