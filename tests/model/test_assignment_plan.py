"""`plan`: its properties over drawn clusters, its moves against brute force, and each of its rules by an example."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.assignment_plan import UNASSIGNED, Departures, LiveStore, Loads, Move, MoveReason, plan
from penstock.model.errors import InvalidArgumentError
from penstock.model.move_settings import MoveSettings

#: No limit of hand-overs.
ALL = MoveSettings(at_once=10_000, per_store=10_000)
NO_LOADS = Loads()


def live(count: int, **kinds: LiveStore) -> dict[str, LiveStore]:
    """Return stores a, b, ...; some of another kind."""
    return {chr(ord("a") + number): LiveStore() for number in range(count)} | kinds


def counts(owners: Sequence[str]) -> dict[str, int]:
    """Return the number of containers of each store."""
    return dict(Counter(owners))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[str], dict[str, LiveStore], Loads, list[str]]:
    """Draw owners, live stores, loads and drains; some owners are not live, some containers have none."""
    names = [f"s{number}" for number in range(draw(st.integers(1, 6)))]
    stores = {}
    for name in names:
        weight, zone, kind = draw(st.integers(1, 3)), draw(st.sampled_from("xyz")), draw(st.integers(0, 9))
        stores[name] = LiveStore(weight, zone, is_impaired=kind == 0, is_suspect=kind == 1)
    owners = draw(st.lists(st.sampled_from([*names, *names, "gone", UNASSIGNED]), max_size=24))
    drains = draw(st.lists(st.sampled_from([*names, "gone"]), max_size=3))
    loads = Loads(
        busy={name: draw(st.floats(0, 1)) for name in names},
        hot_for_s={name: draw(st.sampled_from([0.0, 1000.0])) for name in names},
        containers={number: draw(st.floats(0, 0.3)) for number in range(len(owners))},
        rested_s={number: draw(st.sampled_from([0.0, 5000.0])) for number in range(len(owners))},
    )
    return owners, stores, loads, drains


def targets_of(stores: Mapping[str, LiveStore], drains: Sequence[str]) -> set[str]:
    """Return the stores that may get containers."""
    names = {name for name in stores if name not in drains}
    return {name for name in names if not (stores[name].is_impaired or stores[name].is_suspect)} or names


@given(clusters())
def test_invariants_of_every_plan(cluster: tuple[list[str], dict[str, LiveStore], Loads, list[str]]) -> None:
    """All containers are at stores that may have them, evenly; the moves lead from the one to the other; repeatable."""
    owners, stores, loads, drains = cluster
    after, moves = plan(owners, stores, loads, drains, ALL)
    assert (after, moves) == plan(owners, stores, loads, drains, ALL)
    assert len(after) == len(owners)
    moved = [move.container_id for move in moves]
    assert len(set(moved)) == len(moved)
    for move in moves:
        assert (owners[move.container_id], after[move.container_id]) == (move.source, move.target)
        assert move.source != move.target
    stays = [number for number in range(len(owners)) if number not in moved]
    assert all(owners[number] == after[number] for number in stays)
    targets = targets_of(stores, drains)
    if not targets:
        assert after == tuple(owners)
        return
    assert {move.target for move in moves} <= targets
    kept = {name for name, store in stores.items() if store.is_suspect and name not in drains}
    assert set(after) <= targets | kept
    assert all(after[number] == owner for number, owner in enumerate(owners) if owner in kept - targets)
    fill = [counts(after).get(name, 0) / stores[name].weight for name in targets]
    assert max(fill) - min(fill) <= 1 + 1e-9
    # A plan that is carried out is final, but for load.
    _, again = plan(after, stores, NO_LOADS, drains, ALL)
    assert again == ()


@given(clusters(), st.integers(1, 3), st.integers(1, 2))
def test_limits_only_spread_the_moves_over_time(
    cluster: tuple[list[str], dict[str, LiveStore], Loads, list[str]], at_once: int, per_store: int
) -> None:
    """Hand-overs are limited, what no store serves is not; in the end as many have moved as without limits."""
    owners, stores, loads, drains = cluster
    loads = Loads(busy=loads.busy, containers=loads.containers)
    unlimited = plan(owners, stores, loads, drains, ALL)[1]
    settings = MoveSettings(at_once=at_once, per_store=per_store)
    now, total = tuple(owners), 0
    for _ in range(2 * len(owners) + 2):
        now, moves = plan(now, stores, loads, drains, settings)
        handed_over = [move for move in moves if move.reason in (MoveReason.DRAIN, MoveReason.EVEN)]
        assert len(handed_over) <= at_once
        assert max(Counter(move.source for move in handed_over).values(), default=0) <= per_store
        total += len(moves)
        if not moves:
            break
    assert plan(now, stores, loads, drains, ALL)[1] == ()
    assert total == len(unlimited)


def fewest_moves(held: Sequence[int], weights: Sequence[int], orphans: int) -> int:
    """Return the fewest moves to any balanced distribution, by trying all of them."""
    whole = sum(held) + orphans
    found: list[int] = []
    for some in itertools.product(range(whole + 1), repeat=len(held) - 1):
        wanted = (*some, whole - sum(some))
        fill = [count / weight for count, weight in zip(wanted, weights, strict=True)]
        if wanted[-1] >= 0 and max(fill) - min(fill) <= 1 + 1e-9:
            found.append(orphans + sum(max(0, a - b) for a, b in zip(held, wanted, strict=True)))
    return min(found)


def test_moves_are_as_few_as_possible() -> None:
    """Against brute force over all balanced distributions, with stores of one and of several weights."""
    rng = random.Random(7)
    for _ in range(600):
        count = rng.randint(2, 4)
        weights = [1] * count if rng.random() < 0.5 else [rng.randint(1, 3) for _ in range(count)]
        held = [rng.randint(0, 5) for _ in range(count)]
        orphans = rng.randint(0, 4)
        stores = {f"s{number}": LiveStore(weight) for number, weight in enumerate(weights)}
        owners = [f"s{number}" for number, each in enumerate(held) for _ in range(each)] + ["gone"] * orphans
        loads = Loads(containers={number: rng.random() for number in range(len(owners))})
        _, moves = plan(owners, stores, loads, (), ALL)
        assert len(moves) == fewest_moves(held, weights, orphans), (weights, held, orphans)


def test_a_store_that_is_lost_gives_its_containers_to_the_others() -> None:
    """And no other container moves."""
    after, moves = plan("aabbcc", live(2), NO_LOADS, (), ALL)
    assert after[:4] == tuple("aabb")
    assert counts(after) == {"a": 3, "b": 3}
    assert {move.reason for move in moves} == {MoveReason.LOST}


def test_the_heaviest_orphans_are_spread_first() -> None:
    """Two heavy ones do not go to one store."""
    loads = Loads(containers={0: 0.1, 1: 0.9, 2: 0.1, 3: 0.9})
    after, _ = plan(["gone"] * 4, live(2), loads, (), ALL)
    assert after[1] != after[3]
    assert after[0] != after[2]


def test_zones_share_the_containers() -> None:
    """Among stores of equal count, the zone with the fewest containers is taken."""
    stores = {"a": LiveStore(zone="x"), "b": LiveStore(zone="x"), "c": LiveStore(zone="y")}
    after, _ = plan([UNASSIGNED] * 2, stores, NO_LOADS, (), ALL)
    assert set(after) == {"a", "c"}


def test_draining_stores_get_nothing_and_are_emptied_by_hand_over() -> None:
    """One at a time from each, two in all, hand-overs in progress included; never to another draining store."""
    stores = live(4)
    after, moves = plan("aaabbb", stores, NO_LOADS, "ab", MoveSettings())
    assert [(move.source, move.reason) for move in moves] == [("a", MoveReason.DRAIN), ("b", MoveReason.DRAIN)]
    assert {move.target for move in moves} == {"c", "d"}
    assert plan(after, stores, NO_LOADS, "ab", MoveSettings(), moving={0: "a", 3: "b"})[1] == ()
    (move,) = plan(after, stores, NO_LOADS, "ab", MoveSettings(), moving={0: "a"})[1]
    assert move.source == "b"
    assert plan("aabb", live(2), NO_LOADS, "ab", ALL) == (tuple("aabb"), ())


def test_an_impaired_store_loses_its_containers_only_if_others_are_well() -> None:
    """If all are impaired, their common log is the reason, and moves would help nothing."""
    impaired = LiveStore(is_impaired=True)
    after, moves = plan("aabb", live(2, a=impaired), NO_LOADS, (), ALL)
    assert set(after) == {"b"}
    assert {move.reason for move in moves} == {MoveReason.IMPAIRED}
    assert plan("aabb", live(2, a=impaired, b=impaired), NO_LOADS, (), ALL)[1] == ()


def test_a_suspect_store_keeps_its_containers_and_gets_none() -> None:
    """The log of all stores fails for one after the other: the first one's containers do not move to the next one."""
    impaired, suspect = LiveStore(is_impaired=True), LiveStore(is_suspect=True)
    assert plan("aabb", live(2, a=impaired, b=suspect), NO_LOADS, (), ALL)[1] == ()
    after, _ = plan("aabbc", live(3, a=impaired, b=suspect), NO_LOADS, (), ALL)
    assert after == tuple("ccbbc")
    assert plan("aaaab", live(2, b=suspect), NO_LOADS, (), ALL)[1] == ()
    assert plan("aabb", live(2, b=suspect), NO_LOADS, "b", ALL)[0] == tuple("aaaa")


def test_after_a_mass_departure_nothing_moves_for_a_while() -> None:
    """More than half of the weight within one session timeout; a lesser departure is acted on at once."""
    owners = "aabbccdd"
    gone = Departures(weight=3, since_s=29.0)
    assert plan(owners, live(1), NO_LOADS, (), ALL, departures=gone) == (tuple(owners), ())
    assert plan(owners, live(1), NO_LOADS, (), ALL, departures=Departures(3, 31.0))[1]
    assert plan(owners, live(2), NO_LOADS, (), ALL, departures=Departures(2, 1.0))[1]


def hot_loads(**changes: object) -> Loads:
    """Store a is hot by containers 0 and 1; b has two light ones."""
    values = {
        "busy": {"a": 0.9, "b": 0.2}, "hot_for_s": {"a": 600.0},
        "containers": {0: 0.6, 1: 0.4, 2: 0.1, 3: 0.1}, "rested_s": {}, "since_load_move_s": 1e9,
    } | changes  # fmt: skip
    return Loads(**values)  # type: ignore[arg-type]


def test_a_hot_store_exchanges_a_container() -> None:
    """The one exchange that lowers the greater load most; counts stay even."""
    after, moves = plan("aabb", live(2), hot_loads(), (), ALL)
    assert [(move.container_id, move.target) for move in moves] == [(1, "b"), (2, "a")]
    assert {move.reason for move in moves} == {MoveReason.LOAD}
    assert counts(after) == {"a": 2, "b": 2}


def test_a_hot_store_moves_a_container_where_counts_allow_it() -> None:
    """With three containers to two."""
    loads = Loads(
        busy={"a": 0.9, "b": 0.2}, hot_for_s={"a": 600.0}, containers={0: 0.2, 1: 0.35, 2: 0.35, 3: 0.1, 4: 0.1}
    )
    (move,) = plan("aaabb", live(2), loads, (), ALL)[1]
    assert (move.container_id, move.target) == (1, "b")


@pytest.mark.parametrize(
    "loads",
    [
        hot_loads(hot_for_s={"a": 200.0}),
        hot_loads(busy={"a": 0.4, "b": 0.1}),
        hot_loads(busy={"a": 0.9, "b": 0.8}),
        hot_loads(since_load_move_s=100.0),
        hot_loads(rested_s={0: 60.0, 1: 60.0}),
        hot_loads(containers={0: 0.9, 1: 0.0, 2: 0.0, 3: 0.2}),
    ],
    ids=["not for long", "not busy", "not above the others", "too soon", "not rested", "of no help"],
)
def test_load_moves_nothing_without_need(loads: Loads) -> None:
    """Each condition by itself."""
    assert plan("aabb", live(2), loads, (), ALL)[1] == ()


@given(clusters())
def test_a_move_for_load_lowers_the_greater_of_two_loads(
    cluster: tuple[list[str], dict[str, LiveStore], Loads, list[str]],
) -> None:
    """By a tenth at least; counts stay even, containers that were moved lately rest, one move or exchange at a time."""
    owners, stores, loads, drains = cluster
    settled = plan(owners, stores, NO_LOADS, drains, ALL)[0]
    after, moves = plan(settled, stores, loads, drains, ALL)
    assert {move.reason for move in moves} <= {MoveReason.LOAD}
    if not moves:
        return
    assert len(moves) <= 2
    assert all(loads.rested_s[move.container_id] >= ALL.rest_s for move in moves)
    source, target = moves[0].source, moves[0].target
    assert loads.hot_for_s[source] >= ALL.hot_s
    shift = sum(loads.containers[each.container_id] * (1 if each.source == source else -1) for each in moves)
    greater = max(loads.busy[source], loads.busy[target])
    assert greater == loads.busy[source]
    assert max(loads.busy[source] - shift, loads.busy[target] + shift) <= 0.9 * greater + 1e-6
    assert plan(after, stores, NO_LOADS, drains, ALL)[1] == ()


def test_load_waits_for_everything_else() -> None:
    """A drain is planned, so no container moves for load; likewise while a hand-over is in progress."""
    moves = plan("aabb", live(3), hot_loads(), "b", ALL)[1]
    assert MoveReason.LOAD not in {move.reason for move in moves}
    assert plan("aabb", live(2), hot_loads(), (), ALL, moving={3: "b"})[1] == ()


def test_without_stores_nothing_moves() -> None:
    """What no store can take keeps its name, for when that store is back."""
    assert plan("ab", {}, NO_LOADS, (), ALL) == (("a", "b"), ())


def test_settings_are_checked() -> None:
    """Values that could never work."""
    with pytest.raises(InvalidArgumentError):
        MoveSettings(at_once=0)
    with pytest.raises(InvalidArgumentError):
        MoveSettings(mass_percent=0)
    with pytest.raises(InvalidArgumentError):
        LiveStore(weight=0)
    assert Move(0, "a", "b", MoveReason.NEW).reason == "new"
