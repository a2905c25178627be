"""What a controller's start waits for, and what it does not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.model.errors import ContainerOfflineError
from penstock.model.policies import Retention, Scaling, StreamConfig
from penstock.testing.memory_segments import MemorySegments

if TYPE_CHECKING:
    from conftest import Cluster


class _TagTablesAway(MemorySegments):
    """A store whose container with the tag tables is offline, when told so."""

    is_away = False

    async def create_table(self, segment: str, *, key_length: int = 0, rollover_bytes: int = 0) -> None:
        if self.is_away and "streamTagsInScope" in segment:
            raise ContainerOfflineError(2, "its log is disabled")
        await super().create_table(segment, key_length=key_length, rollover_bytes=rollover_bytes)


async def test_a_start_does_not_wait_for_tables_that_only_a_scope_needs(cluster: Cluster) -> None:
    """A second start must serve while the container with some tables of the system's scope is away.

    The tables' names carry the scope's random id, so they may be in any container; the start once retried them for
    more than a minute before it served anybody.
    """
    store = cluster.store = _TagTablesAway()
    await (await cluster.start()).stop()
    store.is_away = True
    async with asyncio.timeout(5):
        service = await cluster.start()
        assert await service.scope_exists("_system")
    store.is_away = False
    await service.create_scope("shop")
    await service.create_stream("shop", "orders", StreamConfig(scaling=Scaling.fixed(1)))


async def test_policies_that_are_not_enforced_are_named_in_the_log(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A stored policy that does nothing must not look as if it did; a fixed stream without retention is silent."""
    service = await cluster.start()
    await service.create_scope("shop")
    await service.create_stream("shop", "plain", StreamConfig(scaling=Scaling.fixed(1)))
    assert "not enforced" not in caplog.text
    await service.create_stream("shop", "a", StreamConfig(Scaling.by_event_rate(10), Retention.by_time(days=1)))
    assert "shop/a: its scaling policy is stored, but not enforced by this server" in caplog.text
    assert "shop/a: its retention policy is stored, but not enforced yet" in caplog.text
