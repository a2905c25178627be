"""`share_out`: every container has one owner, its home if that is there, and nothing moves without need."""

from __future__ import annotations

import itertools

import pytest

from penstock.model.assignments import ContainerAssignment, share_out
from penstock.model.errors import InvalidArgumentError


def test_with_all_stores_there_every_container_is_at_home() -> None:
    """Container i at store i mod n."""
    assignment = share_out(7, 3, range(3))
    assert assignment == ContainerAssignment((0, 1, 2, 0, 1, 2, 0))
    assert assignment.containers_of(0) == (0, 3, 6)
    assert assignment.containers_of(2) == (2, 5)
    assert assignment.containers_of(9) == ()
    assert [assignment.owner_of(container_id) for container_id in range(7)] == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize(("container_count", "store_count"), [(1, 1), (4, 3), (12, 4), (64, 5)])
def test_only_the_containers_of_absent_stores_move_and_they_are_spread_evenly(
    container_count: int, store_count: int
) -> None:
    """Every set of available stores: the others get nothing, guests are dealt out evenly for each absent store."""
    for count in range(1, store_count + 1):
        for available in itertools.combinations(range(store_count), count):
            owners = share_out(container_count, store_count, available).owners
            assert len(owners) == container_count
            assert set(owners) <= set(available)
            guests = dict.fromkeys(available, 0)
            for container_id, owner in enumerate(owners):
                if container_id % store_count in available:
                    assert owner == container_id % store_count
                else:
                    guests[owner] += 1
            assert max(guests.values()) - min(guests.values()) <= store_count - count


def test_without_members_every_container_is_at_home() -> None:
    """So that the first to come back has its own at once."""
    assert share_out(4, 2, ()) == share_out(4, 2, (0, 1))


@pytest.mark.parametrize(("store_count", "available"), [(0, ()), (2, (2,)), (2, (-1, 0))])
def test_stores_that_do_not_exist_are_refused(store_count: int, available: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError):
        share_out(4, store_count, available)


def moved(before: ContainerAssignment, after: ContainerAssignment) -> dict[int, tuple[int, int]]:
    """Return old and new owner of each container that moves."""
    pairs = enumerate(zip(before.owners, after.owners, strict=True))
    return {container_id: (old, new) for container_id, (old, new) in pairs if old != new}


@pytest.mark.parametrize(("container_count", "store_count"), [(12, 6), (6, 6), (4, 6)])
def test_number_of_moves_when_stores_join_and_leave(container_count: int, store_count: int) -> None:
    """S-239: no store, one, all, more stores than containers; one comes, one goes, all are exchanged, nothing "
    "changes."""

    def shared(*available: int) -> ContainerAssignment:
        return share_out(container_count, store_count, available)

    everybody = shared(*range(store_count))
    sizes = [len(everybody.containers_of(store)) for store in range(store_count)]
    assert sum(sizes) == container_count
    assert max(sizes) - min(sizes) <= 1
    assert shared() == everybody
    assert shared(4).containers_of(4) == tuple(range(container_count))

    without_one = shared(0, 1, 2, 4, 5)
    assert without_one == shared(5, 4, 2, 1, 0)
    # Only what was at the one that goes moves, and comes back with it.
    leaving = moved(everybody, without_one)
    assert set(leaving) == set(everybody.containers_of(3))
    assert moved(without_one, everybody) == {container_id: (new, 3) for container_id, (_, new) in leaving.items()}

    some, others = shared(0, 2, 4), shared(1, 3, 5)
    assert set(moved(some, others)) == set(range(container_count))
    assert set(others.owners) <= {1, 3, 5}
