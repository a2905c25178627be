"""`plan`: which segment store runs each container of a cluster, and what has to move for that. Pure.

Rules, in this order:

1. A container stays with its store while that store is live.
2. Containers whose store is lost or impaired, and new ones, go at once to the store with the fewest containers per
   weight; among equals to the zone with the fewest, then to the least load.
3. Containers of draining stores go there too, but by hand-over, a few at a time: they are served until then.
4. While two stores differ by more than one container per weight, one container moves from the fullest to the emptiest.
5. If no other move is needed: one container moves from a store that has been hot for long, or is exchanged.
6. If most of the cluster has left within a moment, nothing moves for a while: probably the network or the coordination
   service fails. Those stores still serve, and the remaining ones could not bear the load.

An assignment is a target, not a proof of ownership: a wrong one costs a move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.model.errors import InvalidArgumentError
from penstock.model.move_settings import MoveSettings

#: Owner of a container that was never assigned.
UNASSIGNED = ""
#: Two figures of containers per weight differ if by more than this.
_EPSILON = 1e-9
#: A move for load must lower the greater of two loads by this share at least.
_LOAD_GAIN_MIN = 0.1


@dataclass(frozen=True, slots=True)
class LiveStore:
    """A segment store that is live.

    Attributes:
        is_impaired: its log has failed for some time, so it cannot serve.
        is_suspect: its log has failed for less than that, or it is absent for a moment: it keeps its containers, and
            gets no others.
    """

    weight: int = 1
    zone: str = ""
    is_impaired: bool = False
    is_suspect: bool = False

    def __post_init__(self) -> None:
        """Check the values. Raises `InvalidArgumentError`."""
        if self.weight < 1:
            raise InvalidArgumentError(f"the weight of a store is at least 1, not {self.weight}")


@dataclass(frozen=True, slots=True)
class Loads:
    """What the leader knows about load. Missing entries count as 0, except `rested_s`: rested for long.

    Attributes:
        busy: for each store, the share of its time in which it works, 0 to 1.
        hot_for_s: for each store, for how long it has been hot by `hot_busy_percent` and `hot_ratio_percent`.
        containers: for each container, its part of its store's `busy`.
        rested_s: for each container, the time since its last move.
        since_load_move_s: time since the last move for load.
    """

    busy: Mapping[str, float] = field(default_factory=dict)
    hot_for_s: Mapping[str, float] = field(default_factory=dict)
    containers: Mapping[int, float] = field(default_factory=dict)
    rested_s: Mapping[int, float] = field(default_factory=dict)
    since_load_move_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Departures:
    """Stores that left within one session timeout of each other. `since_s`: time since the last of them."""

    weight: int
    since_s: float


class MoveReason(StrEnum):
    """Why a container moves."""

    NEW = "new"
    LOST = "lost"
    IMPAIRED = "impaired"
    DRAIN = "drain"
    EVEN = "even"
    LOAD = "load"


@dataclass(frozen=True, slots=True)
class Move:
    """A change of one container's owner. `source`: the previous owner, `UNASSIGNED` if there was none."""

    container_id: int
    source: str
    target: str
    reason: MoveReason


def plan(
    previous: Sequence[str],
    stores: Mapping[str, LiveStore],
    loads: Loads,
    drains: Collection[str],
    settings: MoveSettings,
    *,
    moving: Mapping[int, str] | None = None,
    departures: Departures | None = None,
) -> tuple[tuple[str, ...], tuple[Move, ...]]:
    """Return the owner of each container, and the moves from `previous` to it. See the module.

    `previous`: the name of the owner of each container, by id. `stores`: the live ones, by name. `drains`: names of
    stores to empty. `moving`: containers whose hand-over is not complete, with the stores that still hold them; they
    count towards the limits.
    The result depends on the arguments alone, so a leader that repeats a plan gets the same one.
    """
    owners = list(previous)
    if departures is not None and departures.since_s < settings.mass_wait_s:
        known = departures.weight + sum(store.weight for store in stores.values())
        if 100 * departures.weight > settings.mass_percent * known:
            return tuple(owners), ()
    draft = _Draft(owners, stores, loads, frozenset(drains))
    if not draft.targets:
        return tuple(owners), ()
    urgent = draft.place_lost()
    drained = draft.place_drained()
    evened = draft.even_out()
    limits = _Limits(settings, moving or {})
    moves = list(urgent)
    # A move that only evens out waits for the drains: with them it may turn out to be needless.
    admitted = [move for move in drained if limits.admit(move)]
    moves += admitted
    if len(admitted) == len(drained):
        moves += [move for move in evened if limits.admit(move)]
    if not moves and not drained and not evened and not moving:
        moves += draft.level_load(settings)
    for move in moves:
        owners[move.container_id] = move.target
    return tuple(owners), tuple(moves)


class _Limits:
    """Which hand-overs may begin now."""

    def __init__(self, settings: MoveSettings, moving: Mapping[int, str]) -> None:
        self._left = settings.at_once - len(moving)
        self._per_store = settings.per_store
        self._from_store: Counter[str] = Counter(moving.values())
        self._moving = frozenset(moving)

    def admit(self, move: Move) -> bool:
        if self._left < 1 or move.container_id in self._moving or self._from_store[move.source] >= self._per_store:
            return False
        self._left -= 1
        self._from_store[move.source] += 1
        return True


class _Draft:
    """The assignment in the making. `targets`: names of stores that may get containers, ascending."""

    def __init__(
        self, owners: Sequence[str], stores: Mapping[str, LiveStore], loads: Loads, drains: frozenset[str]
    ) -> None:
        self._previous = owners
        self._stores = stores
        self._loads = loads
        names = sorted(name for name in stores if name not in drains)
        healthy = [name for name in names if not (stores[name].is_impaired or stores[name].is_suspect)]
        self.targets: list[str] = healthy or names
        self._weights = [stores[name].weight for name in self.targets]
        self._zones = [stores[name].zone for name in self.targets]
        self._busy = [loads.busy.get(name, 0.0) for name in self.targets]
        index = {name: number for number, name in enumerate(self.targets)}
        #: Containers of each target, by its number.
        self._held: list[list[int]] = [[] for _ in self.targets]
        self._lost: list[tuple[int, MoveReason]] = []
        self._drained: list[int] = []
        has_elsewhere = bool(healthy)
        for container_id, owner in enumerate(owners):
            if owner in index:
                self._held[index[owner]].append(container_id)
            elif owner not in stores:
                self._lost.append((container_id, MoveReason.LOST if owner != UNASSIGNED else MoveReason.NEW))
            elif stores[owner].is_impaired and has_elsewhere:
                self._lost.append((container_id, MoveReason.IMPAIRED))
            elif stores[owner].is_suspect and owner not in drains:
                continue  # It stays there.
            else:
                self._drained.append(container_id)
        self._fill = [len(held) / weight for held, weight in zip(self._held, self._weights, strict=True)]
        self._in_zone: Counter[str] = Counter()
        for zone, held in zip(self._zones, self._held, strict=True):
            self._in_zone[zone] += len(held)

    def _load(self, container_id: int) -> float:
        return self._loads.containers.get(container_id, 0.0)

    def place_lost(self) -> list[Move]:
        """Give containers without a store that serves them to stores, heaviest first."""
        self._lost.sort(key=lambda each: (-self._load(each[0]), each[0]))
        return [self._placed(container_id, reason) for container_id, reason in self._lost]

    def place_drained(self) -> list[Move]:
        """Give the containers of draining stores to others, heaviest first."""
        self._drained.sort(key=lambda each: (-self._load(each), each))
        return [self._placed(container_id, MoveReason.DRAIN) for container_id in self._drained]

    def _placed(self, container_id: int, reason: MoveReason) -> Move:
        least = min(self._fill)
        equals = [number for number, fill in enumerate(self._fill) if fill == least]
        number = equals[0]
        if len(equals) > 1:
            in_zone, zones, busy = self._in_zone, self._zones, self._busy
            number = min(equals, key=lambda each: (in_zone[zones[each]], busy[each]))
        self._add(number, container_id)
        return Move(container_id, self._previous[container_id], self.targets[number], reason)

    def _add(self, number: int, container_id: int) -> None:
        self._held[number].append(container_id)
        self._changed(number, 1, self._load(container_id))

    def _remove(self, number: int, container_id: int) -> None:
        self._held[number].remove(container_id)
        self._changed(number, -1, -self._load(container_id))

    def _changed(self, number: int, count: int, load: float) -> None:
        self._fill[number] = len(self._held[number]) / self._weights[number]
        self._in_zone[self._zones[number]] += count
        self._busy[number] += load

    def even_out(self) -> list[Move]:
        """Move containers from the fullest store to the emptiest, those with the least load."""
        moves: list[Move] = []
        while max(self._fill) - min(self._fill) > 1 + _EPSILON:
            fullest = self._fill.index(max(self._fill))
            emptiest = self._fill.index(min(self._fill))
            container_id = min(self._held[fullest], key=lambda each: (self._load(each), each))
            self._remove(fullest, container_id)
            self._add(emptiest, container_id)
            source, target = self.targets[fullest], self.targets[emptiest]
            moves.append(Move(container_id, source, target, MoveReason.EVEN))
        return moves

    def level_load(self, settings: MoveSettings) -> list[Move]:
        """Return the one move, or exchange, that helps the hottest store most; none if it would not help enough."""
        hot_for_s = self._loads.hot_for_s
        hot = [
            number for number, name in enumerate(self.targets)
            if hot_for_s.get(name, 0.0) >= settings.hot_s and 100 * self._busy[number] > settings.hot_busy_percent
        ]  # fmt: skip
        if not hot or self._loads.since_load_move_s < settings.load_interval_s:
            return []
        source = max(hot, key=lambda number: (self._busy[number], -number))
        mean = sum(self._busy) / len(self._busy)
        if 100 * self._busy[source] <= settings.hot_ratio_percent * mean:
            return []
        best = self._busy[source] * (1 - _LOAD_GAIN_MIN) + 2 * _EPSILON
        found: tuple[int, int, int | None] | None = None
        for target in range(len(self.targets)):
            if target == source:
                continue
            can_move = self._stays_even(source, target)
            given_back = [None, *self._rested(target, settings)] if can_move else list(self._rested(target, settings))
            for container_id in self._rested(source, settings):
                for back in given_back:
                    shift = self._load(container_id) - (self._load(back) if back is not None else 0.0)
                    worst = max(self._busy[source] - shift, self._busy[target] + shift)
                    if worst < best - _EPSILON:
                        best, found = worst, (target, container_id, back)
        if found is None:
            return []
        target, container_id, back = found
        moves = [Move(container_id, self.targets[source], self.targets[target], MoveReason.LOAD)]
        if back is not None:
            moves.append(Move(back, self.targets[target], self.targets[source], MoveReason.LOAD))
        return moves

    def _rested(self, number: int, settings: MoveSettings) -> list[int]:
        rested_s = self._loads.rested_s
        return [each for each in self._held[number] if rested_s.get(each, float("inf")) >= settings.rest_s]

    def _stays_even(self, source: int, target: int) -> bool:
        """Return whether no other move would follow from moving one container."""
        fill = list(self._fill)
        fill[source] -= 1 / self._weights[source]
        fill[target] += 1 / self._weights[target]
        return max(fill) - min(fill) <= 1 + _EPSILON
