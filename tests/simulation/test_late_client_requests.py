"""Requests of clients that a controller reads when it wakes up, long after the client has asked another controller.

The client has gone on from there: what it asked for first must not come about behind what it asked for later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.client.client import Client
from penstock.client.settings import ClientSettings
from penstock.model.errors import NoSuchScopeError, NoSuchStreamError, ScopeExistsError, StreamExistsError
from penstock.model.policies import Scaling
from penstock.testing.simulation.cluster import ClusterSettings, SimulatedCluster
from penstock.testing.simulation.simulation import Simulation

STREAM = "scope/stream"
SETTINGS = ClusterSettings(
    controller_count=2,
    client=ClientSettings(
        request_timeout_s=5.0, controller_request_timeout_s=1.0, retry_time_max_s=600.0, retry_delay_max_s=0.2
    ),
)
#: Longer than a session lasts: the others take it for dead.
STANDS_STILL_S = 8.0

Call = Callable[[Client], Awaitable[None]]


async def create(client: Client) -> None:
    try:
        await client.create_stream(STREAM, scaling=Scaling.fixed(2))
    except StreamExistsError:
        return


async def seal(client: Client) -> None:
    await client.seal_stream(STREAM)


async def delete(client: Client) -> None:
    try:
        await client.delete_stream(STREAM)
    except NoSuchStreamError:
        return


async def create_scope(client: Client) -> None:
    try:
        await client.create_scope("other")
    except ScopeExistsError:
        return


async def delete_scope(client: Client) -> None:
    try:
        await client.delete_scope("other")
    except NoSuchScopeError:
        return


def update(*tags: str) -> Call:
    async def call(client: Client) -> None:
        await client.update_stream(STREAM, tags=tags)

    return call


async def found(client: Client) -> tuple[object, ...]:
    """Return what there is: the stream's tags, whether it takes events, and the other scope."""
    scopes = [scope async for scope in client.scopes()]
    if not await client.stream_exists(STREAM):
        return None, None, "other" in scopes
    tags = (await client.stream_config(STREAM)).tags
    return tags, bool(await client.segments_of(STREAM)), "other" in scopes


#: What is done before, what is asked of the one that stands still, and what is asked for behind that.
CASES: dict[str, tuple[tuple[Call, ...], Call, tuple[Call, ...]]] = {
    "update": ((create,), update("old"), (update("new"),)),
    "creation": ((), create, (seal, delete)),
    "seal": ((create,), seal, (delete, create)),
    "deletion": ((create, seal), delete, (create, seal)),
    "creation of a scope": ((), create_scope, (delete_scope,)),
    "deletion of a scope": ((create_scope,), delete_scope, (create_scope,)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", [2, 5, 11])
def test_what_was_asked_of_a_controller_that_stood_still_comes_not_about_behind_what_followed(
    name: str, seed: int
) -> None:
    """The first controller gets the request and stands still; the client gives it up there, and goes on at the other.

    Each call is answered with success by the other one. What is there when the first one has woken up is what was
    asked for last. With each of these seeds a scope once came back, or went, behind its client's back.
    """
    before, first, later = CASES[name]
    with Simulation(seed) as simulation:
        cluster = SimulatedCluster(simulation, SETTINGS)
        machine = cluster.add_client("client")

        async def scenario() -> None:
            await cluster.ready()
            client = cluster.client(machine)
            asleep, awake = cluster.controllers

            async def work() -> tuple[object, ...]:
                client._open()
                await client.create_scope("scope")
                for call in before:
                    await call(client)
                asleep.pause()
                simulation.loop.at(simulation.loop.time() + STANDS_STILL_S, asleep.resume)
                await first(client)
                for call in later:
                    await call(client)
                assert asleep.is_paused
                return await found(client)

            expected = await machine.run(work())
            await asyncio.sleep(STANDS_STILL_S + 10.0)
            assert not asleep.is_paused
            assert await machine.run(found(client)) == expected
            assert {host.name for host in (asleep, awake) if cluster.is_ready(host)} == {asleep.name, awake.name}

        simulation.run(scenario)
