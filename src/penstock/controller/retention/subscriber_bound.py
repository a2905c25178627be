"""How far all subscribers of a stream have come: the cut that is nowhere behind what one of them has acknowledged.

A subscriber that has published nothing yet counts from where the stream begins: what it is yet to read stays.
Source: controller internals specification, section 8.7; the exception to it: ``docs/retention.md``.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.subscribers import published_cuts
from penstock.controller.steps import in_turns
from penstock.controller.stream_cuts import Position, lowest, merged_cuts
from penstock.controller.stream_positions import position_of


async def subscriber_bound(tables: StreamTables, head: Mapping[int, int]) -> Position | None:
    """Return the bound; None for a stream without subscribers. `head`: the cut where the stream begins.

    1 read for all subscribers, and what it takes to find two positions.
    """
    return await bound_of(tables, head, await published_cuts(tables))


async def bound_of(
    tables: StreamTables, head: Mapping[int, int], published: Mapping[str, Mapping[int, int]]
) -> Position | None:
    """Return the bound of subscribers that have published these cuts, empty ones nothing; None without any."""
    if not published:
        return None
    merged = await in_turns(merged_cuts(cut or head for cut in published.values()))
    return await position_of(tables, await in_turns(lowest(await position_of(tables, merged))))
