"""`LoadMoves` reports moves for load that come too soon, too many at once, or leave containers uneven."""

from __future__ import annotations

from penstock.model.assignment_plan import Move, MoveReason
from penstock.model.move_settings import MoveSettings
from penstock_simulation.checks.load_moves import LoadMoves

SETTINGS = MoveSettings(load_interval_s=10.0, rest_s=60.0)


def load(container_id: int, source: str = "a", target: str = "b") -> Move:
    return Move(container_id, source, target, MoveReason.LOAD)


def found(moves: LoadMoves, at_s: float, owners: str, *made: Move) -> list[str]:
    return list(moves.written(list(owners), made, SETTINGS, at_s, at_s))


def test_an_exchange_of_rested_containers_is_no_violation() -> None:
    assert found(LoadMoves(), 0.0, "ba", load(0), load(1, "b", "a")) == []


def test_a_container_that_moves_again_before_its_rest_is_reported() -> None:
    moves = LoadMoves()
    assert found(moves, 0.0, "bba", load(0)) == []
    assert "container 0 moves for load 30.00 s after" in found(moves, 30.0, "aba", load(0, "b", "a"))[0]


def test_a_move_for_another_reason_starts_the_rest_of_its_container() -> None:
    moves = LoadMoves()
    assert found(moves, 0.0, "bba", Move(0, "c", "b", MoveReason.LOST)) == []
    assert "after another move of it" in found(moves, 59.0, "aba", load(0, "b", "a"))[0]
    assert found(moves, 119.0, "bba", load(0)) == []


def test_moves_for_load_in_short_succession_are_reported() -> None:
    moves = LoadMoves()
    assert found(moves, 0.0, "bba", load(0)) == []
    assert "5.00 s after the last one" in found(moves, 5.0, "bbb", load(2))[0]


def test_a_move_for_load_that_leaves_containers_uneven_is_reported() -> None:
    assert "uneven" in found(LoadMoves(), 0.0, "bbba", load(0))[0]
    assert found(LoadMoves(), 0.0, "bba", load(0)) == []


def test_moves_for_load_beside_others_are_reported() -> None:
    assert "some of them for load" in found(LoadMoves(), 0.0, "bb", load(0), Move(1, "a", "b", MoveReason.EVEN))[0]
