"""Limits of transient segments in one container, and what happens to those that take no more bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.model.errors import (
    InvalidArgumentError,
    NoSuchSegmentError,
    SegmentStoreBusyError,
    TooManyActiveSegmentsError,
    TooManyTransientSegmentsError,
)
from penstock.segmentstore.container_settings import TransientSettings
from support.containers import Incarnations, append, until

A, B = "s/a/0.#epoch.0", "s/b/0.#epoch.0"


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    """A container's lives; closed in the end."""
    incarnations = Incarnations()
    yield incarnations
    await incarnations.close()


def transient(number: int, parent: str = A) -> str:
    return f"{parent}#transient.{7:032x}.{number:032x}"


async def test_transients_never_take_the_slots_of_other_segments(lives: Incarnations) -> None:
    """Their share is full, they are refused; all other segments are made, found and put away as if there were none."""
    container = await lives.start(active_segments_max=10, transients=TransientSettings(share_percent_max=30))
    for number in range(3):
        await container.create(transient(number, f"s/p{number}/0.#epoch.0"))
    with pytest.raises(TooManyTransientSegmentsError, match=r"has 3 transient .*share_percent_max") as refused:
        await container.create(transient(3))
    assert refused.value.is_retriable
    for number in range(20):
        name = f"s/t{number}/0.#epoch.0"
        await container.create(name)
        await append(container, name, b"x")
        assert container.state.metadata.active_count <= 10
    for number in range(20):
        await container.find(f"s/t{number}/0.#epoch.0")
    assert container.state.metadata.transient_count == 3


async def test_one_parent_does_not_take_the_share_of_others(lives: Incarnations) -> None:
    """A segment's own limit is reached first; a merge or deletion of one lets the next in."""
    container = await lives.start(transients=TransientSettings(parent_max=2))
    await container.create(A)
    for number in range(2):
        await container.create(transient(number))
    with pytest.raises(TooManyTransientSegmentsError, match=rf"segment {A} has 2 .*parent_max"):
        await container.create(transient(2))
    await container.create(transient(2, B))
    await append(container, transient(0), b"event")
    await container.merges.merge(A, transient(0))
    await container.create(transient(3))
    with pytest.raises(TooManyTransientSegmentsError):
        await container.create(transient(4))
    await container.delete(transient(3))
    await container.create(transient(4))


async def test_creations_at_the_same_moment_do_not_pass_the_limit(lives: Incarnations) -> None:
    """Each looks up its name first: what has come meanwhile counts."""
    container = await lives.start(transients=TransientSettings(parent_max=3))
    results = await asyncio.gather(
        *(container.create(transient(number)) for number in range(10)), return_exceptions=True
    )
    assert sum(isinstance(result, TooManyTransientSegmentsError) for result in results) == 7
    assert container.state.metadata.transient_count == 3


async def test_the_count_is_right_after_a_restart(lives: Incarnations) -> None:
    """A start deletes those of the life before, from a checkpoint and from the log after it."""
    container = await lives.start(transients=TransientSettings(parent_max=2))
    await container.create(transient(0))
    container.checkpoints.write()
    await container.pipeline.barrier()
    await container.create(transient(1))
    container = await lives.restart(container)
    assert container.state.metadata.transient_count == 0
    assert container.state.metadata.transients == {}
    for number in range(2):
        await container.create(transient(number))
    with pytest.raises(TooManyTransientSegmentsError):
        await container.create(transient(2))


class Clock:
    """The loop's clock, set by hand while the block runs."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._start_s = self._loop.time()

    def __enter__(self) -> Clock:
        return self

    def __exit__(self, *_: object) -> None:
        del self._loop.time

    def set(self, seconds: float) -> None:
        at_s = self._start_s + seconds
        self._loop.time = lambda: at_s  # type: ignore[method-assign]  # The clock is the seam.


async def test_those_that_take_no_more_bytes_are_deleted(lives: Incarnations) -> None:
    """Bytes keep one alive; one without is deleted after `idle_s`, and its slot is free."""
    container = await lives.start(transients=TransientSettings(parent_max=2, idle_s=10.0, sweep_interval_s=60.0))
    alive, left = transient(0), transient(1)
    await container.create(alive)
    await container.create(left)
    with Clock() as clock:
        for second in range(0, 10, 3):
            clock.set(second)
            assert await container.transients.sweep() == 0
            await append(container, alive, b"x")
        clock.set(10)
        assert await container.transients.sweep() == 1
    assert list(container.state.metadata.transients[A].values()) == [container.state.metadata.by_name[alive]]
    assert container.transients.expired_count == 1
    with pytest.raises(NoSuchSegmentError):
        await container.find(left)
    await container.create(transient(2))


async def test_sweeps_come_by_themselves(lives: Incarnations) -> None:
    container = await lives.start(transients=TransientSettings(idle_s=0.01, sweep_interval_s=0.01))
    await container.create(transient(0))
    await until(lambda: not container.state.metadata.transients)


async def test_what_cannot_be_continued_does_not_count_as_idle(lives: Incarnations) -> None:
    """Neither time in which nothing was taken, nor time in which this process stood still; a call in use holds, too."""
    container = await lives.start(transients=TransientSettings(idle_s=10.0, sweep_interval_s=3.0))
    segment = await container.create(transient(0))
    transients = container.transients
    with Clock() as clock:
        clock.set(3.0)
        assert await transients.sweep() == 0
        clock.set(3600.0)  # As two intervals: 6 s.
        assert await transients.sweep() == 0
        transients._takes_bytes = lambda: False
        for second in range(3603, 3700, 3):
            clock.set(second)
            assert await transients.sweep() == 0
        transients._takes_bytes = lambda: True
        clock.set(3702.0)
        with segment.in_use():
            assert await transients.sweep() == 0
        for second in (3705, 3708, 3711):
            clock.set(second)
            assert await transients.sweep() == 0, second
        clock.set(3714.0)
        assert await transients.sweep() == 1
    assert not container.state.metadata.transients


async def test_a_deletion_that_fails_is_tried_again_and_holds_no_other_up(lives: Incarnations) -> None:
    container = await lives.start(transients=TransientSettings(idle_s=1.0, sweep_interval_s=60.0))
    for number in range(3):
        await container.create(transient(number))
    delete, refused = container.transients._delete, transient(1)

    async def refuse(name: str) -> None:
        if name == refused:
            raise SegmentStoreBusyError(name, "as the test says")
        await delete(name)

    with Clock() as clock:
        clock.set(0)
        assert await container.transients.sweep() == 0
        container.transients._delete = refuse
        clock.set(2)
        assert await container.transients.sweep() == 2
        assert [segment.name for segment in container.state.metadata.transients[A].values()] == [refused]
        container.transients._delete = delete
        clock.set(3)
        assert await container.transients.sweep() == 1


async def test_a_full_container_refuses_by_name_and_makes_nothing(lives: Incarnations) -> None:
    """The limit of all segments: the creation is refused as busy, and leaves no segment, record or name."""
    container = await lives.start(active_segments_max=3, active_segments_wait_s=0.05)
    for number in range(3):
        (await container.create(f"s/t{number}/0.#epoch.0")).use_count += 1
    with pytest.raises(TooManyActiveSegmentsError, match="all of them are in use") as refused:
        await container.create(B)
    assert isinstance(refused.value, SegmentStoreBusyError)
    assert not await container.catalog.exists(B)
    with pytest.raises(TooManyActiveSegmentsError):
        await container.create(transient(0))
    container.state.metadata.by_name["s/t0/0.#epoch.0"].use_count -= 1
    await container.create(B)


@pytest.mark.parametrize("change", [{"share_percent_max": 0}, {"share_percent_max": 91}, {"parent_max": 0}])
def test_settings_that_reserve_nothing_or_allow_nothing_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match="transients"):
        TransientSettings(**change)
