"""Two controllers that create and delete one scope at the same moment: all orders of their requests to the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import MetadataConflictError, NoSuchScopeError, OutcomeUnknownError, ScopeExistsError
from penstock.model.policies import Scaling, StreamConfig
from penstock.model.segments import TableUpdate
from penstock_simulation.memory_segments import MemorySegments
from support.failing_segments import WRITES, OneByOne
from support.in_process_cluster import InProcessCluster

SETTINGS = ControllerSettings(
    attempts_max=2, retry_delay_ms_first=1, retry_delay_ms_max=2, peer_poll_ms=1, conflict_delay_ms_first=1
)
CONFIG = StreamConfig(Scaling.fixed(1))


class Interrupted(OneByOne):
    """Passes calls on to a store; before (or, with `is_behind`, after) call number `at` it runs `meanwhile`."""

    def __init__(self, store: MemorySegments) -> None:
        self.store = store
        self.at = self.count = 0
        self.is_behind = False
        self.loses_reply = False

    def arm(self, at: int, meanwhile: Callable[[], Awaitable[Any]]) -> None:
        self.at, self.count, self.meanwhile = at, 0, meanwhile

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        call = getattr(self.store, name)

        async def forward(*arguments: str | list[bytes | TableUpdate], **options: int | bytes) -> Any:
            self.count += 1
            if self.count != self.at:
                return await call(*arguments, **options)
            if self.loses_reply and name in WRITES:
                await call(*arguments, **options)
                raise OutcomeUnknownError("the reply is lost")
            await self.meanwhile()
            return await call(*arguments, **options)

        return forward


async def create(service: ControllerService) -> str:
    try:
        await service.create_scope("raced")
    except ScopeExistsError:
        return "exists"
    except MetadataConflictError:
        return "conflict"
    return "created"


async def delete(service: ControllerService) -> str:
    """Of two deletions at the same moment both may report that they have deleted it."""
    try:
        await service.delete_scope("raced")
    except NoSuchScopeError:
        pass
    return "gone"


def outcomes(is_there: bool, calls: list[Callable[..., Awaitable[str]]]) -> tuple[list[str], bool]:
    """Return what calls in this order answer, and whether the scope is there afterwards."""
    answers = []
    for call in calls:
        if call is create:
            answers.append("exists" if is_there else "created")
            is_there = True
        else:
            answers.append("gone")
            is_there = False
    return answers, is_there


async def check_consistent(cluster: InProcessCluster, service: ControllerService, is_there: bool) -> None:
    """A scope is complete and takes streams, or nothing of it is left."""
    assert await service.scope_exists("raced") is is_there
    tables = [name for name in cluster.store.tables if "/raced/" in name]
    if not is_there:
        assert not tables, f"tables of a scope that does not exist: {tables}"
        await service.create_scope("raced")
    else:
        assert len(tables) == 2, f"tables of another life of the scope: {tables}"
    await service.create_stream("raced", "stream", CONFIG)
    assert (await service.list_streams("raced", "")).names == ("stream",)


@pytest.mark.parametrize("is_there", [False, True], ids=["absent", "present"])
@pytest.mark.parametrize("second", [(create,), (delete,), (create, delete), (delete, create)])
@pytest.mark.parametrize("first", [create, delete])
async def test_creations_and_deletions_of_a_scope_at_two_controllers_are_as_one_after_the_other(
    fresh: Callable[[], InProcessCluster],
    is_there: bool,
    first: Callable[..., Awaitable[str]],
    second: tuple[Callable[..., Awaitable[str]], ...],
) -> None:
    """Between any two requests of one controller the other one makes all of its own."""
    for at in range(1, 40):
        cluster = fresh()
        interrupted = Interrupted(cluster.store)
        service = cluster.build(SETTINGS, segments=interrupted)  # type: ignore[arg-type]
        await service.start()
        other = await cluster.start(SETTINGS)
        await service.idle()
        if is_there:
            await service.create_scope("raced")
        answers: list[Any] = []

        async def meanwhile(other: ControllerService = other, answers: list[Any] = answers) -> None:
            for call in second:
                answers.append(await call(other))

        interrupted.arm(at, meanwhile)
        answer = await first(service)
        was_interrupted = interrupted.count >= at
        if not was_interrupted:
            break
        if answer != "conflict" and "conflict" not in answers:
            is_left = await other.scope_exists("raced")
            possible = []
            for place in range(len(second) + 1):
                calls = [*second[:place], first, *second[place:]]
                found, is_after = outcomes(is_there, calls)
                possible.append(([found[place]], found[:place] + found[place + 1 :], is_after))
            assert ([answer], answers, is_left) in possible, f"interrupted at request {at}"
        await check_consistent(cluster, other, await other.scope_exists("raced"))
    assert at > 1


async def test_a_creation_with_lost_replies_is_completed_by_the_next_one(fresh: Callable[[], InProcessCluster]) -> None:
    """Each write in turn: the creation reports success or an open outcome, and asked again the scope is there."""
    for at in range(1, 40):
        cluster = fresh()
        interrupted = Interrupted(cluster.store)
        service = cluster.build(SETTINGS, segments=interrupted)  # type: ignore[arg-type]
        await service.start()
        interrupted.loses_reply = True

        async def nothing() -> None:
            return

        interrupted.arm(at, nothing)
        try:
            await service.create_scope("raced")
        except OutcomeUnknownError:
            await create(service)
        is_over = interrupted.count < at
        await check_consistent(cluster, service, True)
        if is_over:
            break
    assert at > 3


async def test_many_creations_of_a_scope_at_two_controllers_make_one(cluster: InProcessCluster) -> None:
    """One caller succeeds, the others get that the scope exists."""
    services = [await cluster.start(SETTINGS) for _ in range(2)]
    answers = await asyncio.gather(*(create(service) for service in services * 5))
    assert answers.count("created") == 1
    assert set(answers) == {"created", "exists"}
    await check_consistent(cluster, services[0], True)
