"""The check of a controller's records reports unfinished work, and omits what completes without intervention."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from penstock.controller.locator import SingleStoreLocator
from penstock.controller.metadata.pending_work import DeleteGroup, SealStream, Subject, SubjectKind
from penstock.controller.metadata.records import StreamState
from penstock.controller.metadata.segments_store import SegmentsMetadataStore
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.service import ControllerService
from penstock.model.policies import StreamConfig
from penstock.runtime.disk import LocalDisk
from penstock.runtime.runtime import Runtime, ThreadedWork
from penstock_simulation.checks import controller
from penstock_simulation.memory_segments import MemorySegments


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ControllerService]:
    """A controller with a stream; the check does not wait."""
    monkeypatch.setattr(controller, "_TIMEOUT_S", 0.0)
    store = MemorySegments()
    made = ControllerService(
        metadata=SegmentsMetadataStore(store),
        segments=store,
        locator=SingleStoreLocator("127.0.0.1", 6000),
        runtime=Runtime(disk=LocalDisk(), work=ThreadedWork(1), rng=random.Random(1), wall_clock_ms=lambda: 1),
    )
    await made.start()
    await made.create_scope("scope")
    await made.create_stream("scope", "stream", StreamConfig())
    yield made
    await made.stop()


async def test_an_idle_controller_has_no_leftover_records(service: ControllerService) -> None:
    """Also with the fences of announcements in the same tables."""
    assert await controller.check_controller(service) == []


async def test_an_announcement_without_work_in_progress_is_reported(service: ControllerService) -> None:
    """Of a stream; with the stream's name."""
    await service._context.begin(Subject(SubjectKind.STREAM, "scope", "stream"), SealStream(), "id")
    assert await controller.check_controller(service) == ["work on stream scope/stream is announced, and not done"]


async def test_an_announcement_on_a_group_without_work_in_progress_is_reported(service: ControllerService) -> None:
    """Of a group; with the group's name."""
    await service._context.begin(Subject(SubjectKind.GROUP, "scope", "group"), DeleteGroup(), "id")
    assert await controller.check_controller(service) == ["work on reader group scope/group is announced, and not done"]


async def test_a_stream_left_in_a_transient_state_is_reported(service: ControllerService) -> None:
    """Its announcement is gone, and its state remains."""
    tables = await service._catalog.on_stream("scope", "stream", _itself)
    await tables.set_state(StreamState.TRUNCATING)
    (violation,) = await controller.check_controller(service)
    assert "scope/stream is truncating" in violation


async def _itself(tables: StreamTables) -> StreamTables:
    return tables
