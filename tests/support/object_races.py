"""Races of conditional creations and replacements: what every object store must pass that holds long-term storage."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.model.errors import ObjectChangedError, ObjectExistsError
from penstock.runtime.objects import ObjectStore, ObjectVersion


async def lost_races(clients: Sequence[ObjectStore], *, round_count: int, writer_count: int) -> list[str]:
    """Let writers race for one key in each round; return what was wrong in which, in words. Nothing: all is well.

    One writer wins each round, and what is stored then is the winner's.
    """
    wrong: list[str] = []

    async def write(client: ObjectStore, key: str, number: int) -> bool:
        try:
            await client.put_new(key, b"writer %03d." % number * 50, f"tag{number}")
        except ObjectExistsError:
            return False
        return True

    for round_number in range(round_count):
        key = f"races/{round_number}"
        won = await asyncio.gather(
            *(write(clients[number % len(clients)], key, number) for number in range(writer_count))
        )
        winners = [number for number, is_winner in enumerate(won) if is_winner]
        stored = await clients[0].get(key)
        if len(winners) != 1:
            wrong.append(f"round {round_number}: {winners} all won")
        elif stored != b"writer %03d." % winners[0] * 50 or (await clients[0].head(key)).tag != f"tag{winners[0]}":
            wrong.append(f"round {round_number}: {winners[0]} won, and {stored[:10]!r} is stored")
    return wrong


async def lost_replacements(clients: Sequence[ObjectStore], *, round_count: int, writer_count: int) -> list[str]:
    """Let writers race to replace one version of an object in each round; return what was wrong, as `lost_races`."""
    wrong: list[str] = []
    key = "races/replaced"
    await clients[0].put_new(key, b"before all rounds", "tag")
    version = (await clients[0].get_versioned(key)).version

    async def write(client: ObjectStore, content: bytes, replaced: ObjectVersion) -> ObjectVersion | None:
        try:
            return await client.put_if(key, content, replaced)
        except ObjectChangedError:
            return None

    for round_number in range(round_count):
        contents = [b"round %03d, writer %03d." % (round_number, number) * 50 for number in range(writer_count)]
        won = await asyncio.gather(
            *(write(clients[number % len(clients)], content, version) for number, content in enumerate(contents))
        )
        winners = [number for number, answered in enumerate(won) if answered is not None]
        stored = await clients[0].get_versioned(key)
        if len(winners) != 1:
            wrong.append(f"round {round_number}: {winners} all won")
        elif stored.content != contents[winners[0]]:
            wrong.append(f"round {round_number}: {winners[0]} won, and {stored.content[:24]!r} is stored")
        elif (answered := won[winners[0]]) is None or not answered.is_same(stored.version):
            wrong.append(f"round {round_number}: the winner got {answered}, and {stored.version} is stored")
        version = stored.version
    return wrong
