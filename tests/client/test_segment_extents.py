"""Bulk reads of segment extents repeat requests that fail, within the call's time."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from penstock.client.settings import ClientSettings
from penstock.client.transport.cluster import Cluster
from penstock.client.transport.segment_extents import segment_infos
from penstock.model.errors import ConnectionLostError, NoSuchSegmentError, PenstockError
from penstock.model.segments import SegmentInfo


class _Segments:
    """Loses every bulk request of `lost`; a request for a single segment gets its info."""

    def __init__(self, lost: set[str], missing: set[str]) -> None:
        self.lost = lost
        self.missing = missing
        self.repeated: list[str] = []

    async def segment_infos(self, segments: Sequence[str]) -> Sequence[SegmentInfo | PenstockError]:
        return [
            ConnectionLostError("lost")
            if name in self.lost
            else NoSuchSegmentError(name)
            if name in self.missing
            else self._info(name)
            for name in segments
        ]

    async def segment_info(self, segment: str) -> SegmentInfo:
        self.repeated.append(segment)
        if segment in self.missing:
            raise NoSuchSegmentError(segment)
        return self._info(segment)

    @staticmethod
    def _info(name: str) -> SegmentInfo:
        return SegmentInfo(name, 0, len(name), False, 0)


async def test_failed_requests_are_repeated_and_answers_are_not() -> None:
    segments = _Segments(lost={"b", "dd"}, missing={"ccc", "dd"})
    cluster = cast(Cluster, cast(Any, SimpleNamespace(segments=segments, settings=ClientSettings())))
    infos = await segment_infos(cluster, ["a", "b", "ccc", "dd"])
    assert [type(info) for info in infos] == [SegmentInfo, SegmentInfo, NoSuchSegmentError, NoSuchSegmentError]
    assert segments.repeated == ["b", "dd"]
