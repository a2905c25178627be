"""Races of conditional creations: what every object store must pass that is to hold long-term storage."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.model.errors import ObjectExistsError
from penstock.runtime.objects import ObjectStore


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
