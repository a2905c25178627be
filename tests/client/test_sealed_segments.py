"""A writer's appender to a segment that was sealed: what it leaves."""

from __future__ import annotations

import asyncio
import random
from threading import Lock
from typing import NoReturn, cast

from penstock.client.common.waits import Waits
from penstock.client.settings import ClientSettings
from penstock.client.transport.connection_pool import ConnectionPool
from penstock.client.writing.ack import AckState
from penstock.client.writing.append_window import AppendWindow, WindowLimits
from penstock.client.writing.block_sender import BlockSender
from penstock.model.errors import SegmentSealedError

SEGMENT = "scope/stream/0.#epoch.0"
LIMITS = WindowLimits(
    block_bytes_max=1000, pipelined_block_bytes_min=100, in_flight_block_count_max=3, in_flight_bytes_max=5000
)


class SealedPool:
    """Connections to a store that has sealed the segment."""

    def __init__(self) -> None:
        self.waits = Waits(ClientSettings())

    async def connection(self, segment: str, purpose: object) -> NoReturn:
        """Refuse."""
        raise SegmentSealedError(segment)


async def test_events_that_come_after_a_segment_was_sealed_leave_no_wait() -> None:
    """They are for its successors: a wait of the old segment would be reported for as long as the client lives."""
    pool = SealedPool()
    sealed = asyncio.Event()
    sender = BlockSender(
        SEGMENT, AppendWindow(LIMITS, AckState), cast(ConnectionPool, pool), ClientSettings(), random.Random(1), Lock(),
        on_settled=lambda blocks, error: None, on_sealed=lambda sender, error: sealed.set(),
    )  # fmt: skip
    sender.window.add(b"before", "key", 14)
    sender.pump()
    assert len(pool.waits._waits) == 1
    await sealed.wait()
    assert not pool.waits._waits
    # Until the successors are known, the writer still gives events of the segment's keys to this appender.
    sender.window.add(b"after", "key", 13)
    sender.pump()
    assert not pool.waits._waits
    await sender.close()
    pool.waits.close()
