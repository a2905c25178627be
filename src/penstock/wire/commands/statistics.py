"""Penstock's own addition to the protocol: statistics of a segment store. See ``docs/statistics.md``.

Pravega has no such commands. Its clients never send the request, so they never receive the reply; its segment stores
close a connection on which they receive an unknown type. The type codes are far from Pravega's, which are small.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from penstock.wire.commands.base import Reply, Request
from penstock.wire.fields import I64, Bytes, Text


@dataclass(frozen=True, slots=True, eq=False)
class GetStatistics(Request):
    """Request statistics of a segment store. `query`: see `penstock.wire.statistics.StatisticsQuery`."""

    #: "PS", then a number.
    TYPE: ClassVar[int] = 0x50530001

    request_id: I64
    token: Text = field(repr=False)
    query: Bytes


@dataclass(frozen=True, slots=True, eq=False)
class StatisticsTold(Reply):
    """Return them. `report`: see `penstock.wire.statistics.StoreReport`."""

    TYPE: ClassVar[int] = 0x50530002

    request_id: I64
    report: Bytes
