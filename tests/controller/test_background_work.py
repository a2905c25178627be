"""Parts of the controller's background work by themselves."""

from __future__ import annotations

import asyncio

import pytest

from penstock.controller.background_work import all_ended
from penstock.controller.transactions.creations import Creations
from penstock.model.errors import ContainerOfflineError, CorruptionError


async def _fails(error: Exception) -> None:
    raise error


async def test_what_is_damaged_does_not_hide_what_a_repetition_mends() -> None:
    """A batch is forgotten after damage; an item that only met an outage would be lost with it."""
    with pytest.raises(ContainerOfflineError):
        await all_ended([_fails(CorruptionError("a record", 0, "damaged")), _fails(ContainerOfflineError(1, "away"))])


async def test_waiting_for_creations_ends_though_others_begin() -> None:
    """A seal holds its stream's lock meanwhile; creations that overlap without end must not starve it."""
    creations = Creations()
    first, second = creations.one("s/t"), creations.one("s/t")
    first.__enter__()
    waiting = asyncio.create_task(creations.ended("s/t"))
    await asyncio.sleep(0)
    second.__enter__()
    first.__exit__(None, None, None)
    async with asyncio.timeout(5.0):
        await waiting
    second.__exit__(None, None, None)
    await creations.ended("s/t")
