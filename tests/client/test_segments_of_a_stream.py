"""What batch programs ask of a stream's segments: how long they are, and what follows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.model.errors import NoSuchSegmentError
from penstock.model.names import segment_name

if TYPE_CHECKING:
    from client.conftest import Cluster

STREAM = "retail/orders"


async def test_segments_are_described_with_their_successors(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream(STREAM)
        async with client.event_writer(STREAM) as writer:
            await writer.write(b"12345678", routing_key="k")
        first = segment_name("retail", "orders", 0)
        info = await client.segment_info(first)
        assert (info.start_offset, info.length, info.is_sealed) == (0, 16, False)
        assert await client.successors(STREAM, 0) == {}
        left, right = await cluster.controller.scale(STREAM, [0], [(0.0, 0.5), (0.5, 1.0)])
        assert (await client.segment_info(first)).is_sealed
        assert await client.successors(STREAM, 0) == {left: (0,), right: (0,)}
        (merged,) = await cluster.controller.scale(STREAM, [left, right], [(0.0, 1.0)])
        assert await client.successors(STREAM, left) == {merged: (left, right)}
        with pytest.raises(NoSuchSegmentError):
            await client.segment_info(segment_name("retail", "orders", 99))
