"""Penstock's own addition to the protocol: what a segment store is doing. See ``docs/statistics.md``.

Pravega has no such commands. Its clients never send the one, hence never get the other; its segment stores close a
connection over which they hear a type that they do not know. The types are far from Pravega's, which are small.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from penstock.wire.commands.base import Reply, Request
from penstock.wire.fields import I64, Bytes, Text


@dataclass(frozen=True, slots=True)
class GetStatistics(Request):
    """Ask a segment store what it is doing. `question`: see `penstock.wire.statistics.Question`."""

    #: "PS", then a number.
    TYPE: ClassVar[int] = 0x50530001

    request_id: I64
    token: Text = field(repr=False)
    question: Bytes


@dataclass(frozen=True, slots=True)
class StatisticsTold(Reply):
    """Tell it. `report`: see `penstock.wire.statistics.StoreReport`."""

    TYPE: ClassVar[int] = 0x50530002

    request_id: I64
    report: Bytes
