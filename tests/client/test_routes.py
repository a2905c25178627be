"""`Routes` alone: against a dictionary that remembers everything."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.writing.routes import Routes
from penstock.model.errors import InvalidArgumentError

HOMES = ("a", "b", "c")


class Finder:
    """Says where keys live, and counts how often it was asked."""

    def __init__(self) -> None:
        self.shift = 0
        self.asked: list[str] = []

    def __call__(self, key: str) -> str:
        if not isinstance(key, str):
            raise InvalidArgumentError(f"{key!r}")
        self.asked.append(key)
        return HOMES[(int(key) + self.shift) % len(HOMES)]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_events_are_spread_by_their_keys_and_the_keys_are_found_again(data: st.DataObject) -> None:
    """Also after caches and homes have changed: keys are those at the time of the call."""
    find = Finder()
    routes = Routes(find, data.draw(st.integers(1, 6)), data.draw(st.sampled_from((60, 150, 1 << 20))))
    late = []
    for _ in range(data.draw(st.integers(1, 8))):
        step = data.draw(st.sampled_from(("spread", "spread", "one", "change")))
        if step == "change":
            find.shift += 1
            routes.forget()
        elif step == "one":
            key = str(data.draw(st.integers(0, 9)))
            assert routes.of(key) == HOMES[(int(key) + find.shift) % 3]
        else:
            keys = tuple(str(number) for number in data.draw(st.lists(st.integers(0, 9), max_size=20)))
            events = [f"{index} {key}".encode() for index, key in enumerate(keys)]
            found = {home: (list(its), find_keys) for home, its, find_keys in routes.spread(events, keys)}
            for home in HOMES:
                mine = [number for number, key in enumerate(keys) if HOMES[(int(key) + find.shift) % 3] == home]
                its, find_keys = found.get(home, ([], list))
                assert its == [events[number] for number in mine]
                late.append((find_keys, [keys[number] for number in mine]))
    for find_keys, wanted in late:
        assert list(find_keys()) == wanted


def test_a_known_key_is_not_searched_again() -> None:
    find = Finder()
    routes = Routes(find, 10, 1 << 20)
    for _ in range(3):
        assert [list(its) for _, its, _ in routes.spread([b"x", b"y", b"z"], ("1", "2", "1"))] == [[b"x", b"z"], [b"y"]]
        assert routes.of("1") == "b"
    assert find.asked == ["1", "2"]


@pytest.mark.parametrize("bad", [7, ["1"]])
def test_an_invalid_key_writes_nothing_and_leaves_nothing(bad: int | list[str]) -> None:
    """Neither among known keys, where it is met in the middle, nor among new ones."""
    routes = Routes(Finder(), 10, 1 << 20)
    for _ in range(2):
        with pytest.raises((InvalidArgumentError, TypeError)):
            list(routes.spread([b"x", b"y"], ("1", bad)))  # type: ignore[arg-type]
        assert [list(its) for _, its, _ in routes.spread([b"z"], ("1",))] == [[b"z"]]


def test_an_early_stop_leaves_nothing_behind() -> None:
    routes = Routes(Finder(), 10, 1 << 20)
    spreading = routes.spread([b"x", b"y"], ("1", "2"))
    next(spreading)
    spreading.close()  # type: ignore[attr-defined]
    assert [list(its) for _, its, _ in routes.spread([b"z"], ("2",))] == [[b"z"]]


@pytest.mark.parametrize("is_single", [True, False])
def test_long_keys_are_remembered_within_a_bound_of_bytes(is_single: bool) -> None:
    """60 000 keys of 8 KiB took half a gigabyte with nothing unacknowledged."""
    bytes_max = 256 * 1024
    routes = Routes(lambda key: HOMES[len(key) % 3], 65536, bytes_max)
    for number in range(0, 600, 10):
        keys = tuple(f"{each}".rjust(8192, "k") for each in range(number, number + 10))
        if is_single:
            for key in keys:
                routes.of(key)
        else:
            for _ in routes.spread([b"x"] * len(keys), keys):
                pass
        held = set(routes.known) | set(routes._inbox_of)
        assert sum(map(sys.getsizeof, held)) <= bytes_max
