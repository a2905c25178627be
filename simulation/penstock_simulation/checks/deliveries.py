"""Checks of what the users of a reader group were given: again only after a loss, and never once it was stored.

That everything is worked off, in order, is checked by `events`. Linear in the history.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from penstock_simulation.checks.history_events import EventDelivered, History, PositionsStored, ReaderLost


@dataclass(slots=True)
class _Life:
    """One life of a reader: what it delivered, when what of it was stored, and when it was lost."""

    delivered: list[bytes] = field(default_factory=list)
    #: Record index of a stored position, and how many events were stored by then.
    stored: list[tuple[int, int]] = field(default_factory=list)
    lost_at: int | None = None
    lost_how: str = ""


def check_deliveries(history: History) -> list[str]:
    """Return what is wrong with deliveries.

    1. An event comes once, and again for each reader that was lost after it had delivered the event.
    2. An event is not given to another reader after its reader got the reply that it is stored. (A reader that hung,
       and was taken for dead, may still hand out what it has in hand.)
    3. One life of a reader does not deliver an event twice.
    """
    lives: dict[tuple[str, str], _Life] = defaultdict(_Life)
    #: Group and event -> (record index, life, number of the delivery in that life), in order.
    deliveries: dict[tuple[str, bytes], list[tuple[int, str, int]]] = defaultdict(list)
    for observed in history.observations():
        match observed.observation:
            case EventDelivered(group=group, life=name, event=event):
                life = lives[group, name]
                deliveries[group, event].append((observed.index, name, len(life.delivered)))
                life.delivered.append(event)
            case PositionsStored(group=group, life=name, count=count):
                lives[group, name].stored.append((observed.index, count))
            case ReaderLost(group=group, life=name, how=how):
                life = lives[group, name]
                if life.lost_at is None:
                    life.lost_at, life.lost_how = observed.index, how
    violations: list[str] = []
    for (group, event), found in deliveries.items():
        if len(found) > 1:
            violations += _judge(group, event, found, lives)
    return violations


def _judge(
    group: str, event: bytes, found: list[tuple[int, str, int]], lives: dict[tuple[str, str], _Life]
) -> list[str]:
    told = ", ".join(f"{name} (record {index}{_end_of(lives[group, name])})" for index, name, _ in found)
    what = f"group {group}: {event!r} was delivered to {told}"
    names = [name for _, name, _ in found]
    if len(set(names)) < len(names):
        return [f"{what}: twice to one reader"]
    lost_count = sum(lives[group, name].lost_at is not None for name in names)
    if len(found) > 1 + lost_count:
        return [f"{what}: {len(found)} times, but only {lost_count} of them were lost"]
    for at, (_, name, number) in enumerate(found):
        for stored_index, count in lives[group, name].stored:
            if number >= count:
                continue
            for later_index, later, _ in found[at + 1 :]:
                lost_at = lives[group, later].lost_at
                is_zombie = lost_at is not None and lost_at < later_index
                if later_index > stored_index and not is_zombie:
                    return [f"{what}: {name} got the reply at record {stored_index} that it is stored"]
    return []


def _end_of(life: _Life) -> str:
    return "" if life.lost_at is None else f", lost at {life.lost_at}: {life.lost_how}"
