"""The pure steps of a reader group, alone and as random histories against the invariants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.groups import reader_group_state as rgs
from penstock.client.groups.group_state import GroupState, HeldSegment
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import segment_name


def name(number: int, epoch: int = 0) -> str:
    return segment_name("retail", "orders", (epoch << 32) | number)


def held(offset: int = 0, number: int = 0) -> HeldSegment:
    return HeldSegment(offset, number)


def at(state: GroupState, reader: str, positions: dict[str, int]) -> dict[str, HeldSegment]:
    """Return positions in the turns that the reader has."""
    return {key: held(offset, state.readers[reader].segments[key].turn) for key, offset in positions.items()}


def offsets(state: GroupState, reader: str) -> dict[str, int]:
    return {key: value.offset for key, value in state.readers[reader].segments.items()}


def finish(state: GroupState, reader: str, segment: str, end: int, successors: dict[str, list[str]]) -> GroupState:
    known = state.readers[reader].segments.get(segment) if reader in state.readers else None
    return rgs.finish(state, reader, segment, held(end, known.turn if known else 0), successors)


def group(segment_count: int = 4, readers: Sequence[str] = ()) -> GroupState:
    state = rgs.create({name(number): 0 for number in range(segment_count)}, ["retail/orders"])
    for reader in readers:
        state = rgs.join(state, reader, f"{reader}-1")
    return state


def test_record_survives_storing() -> None:
    state = rgs.acquire(group(3, ["a"]), "a", 100)
    assert GroupState.decode(state.encode()) == state


def test_record_of_another_version_or_form_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="version 1"):
        GroupState.decode(b'{"streams":[],"unassigned":{},"version":1}')
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        GroupState.decode(b"not json")
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        GroupState.decode(b'{"streams":[],"version":3}')


def test_first_reader_takes_everything_and_shares_with_the_second() -> None:
    state = rgs.acquire(group(5, ["a"]), "a", 100)
    assert len(state.readers["a"].segments) == 5
    state = rgs.join(state, "b", "b-1")
    given_up = rgs.surplus(state, "a")
    assert len(given_up) == 2
    state = rgs.release(state, "a", at(state, "a", dict.fromkeys(given_up, 7)))
    state = rgs.acquire(state, "b", 100)
    assert offsets(state, "b") == dict.fromkeys(given_up, 7)
    assert rgs.surplus(state, "a") == []


def test_reader_without_a_share_gets_one_from_a_full_one() -> None:
    # 4 segments over 2 readers, then a third: no reader is above the ceiling of 2, yet one must release a segment.
    state = group(4, ["a", "b"])
    state = rgs.acquire(rgs.acquire(state, "a", 100), "b", 100)
    state = rgs.join(state, "c", "c-1")
    given_up = rgs.surplus(state, "a")
    assert len(given_up) == 1
    state = rgs.release(state, "a", at(state, "a", dict.fromkeys(given_up, 0)))
    assert rgs.surplus(state, "b") == []


def test_acquire_respects_the_limit_of_one_reader() -> None:
    assert len(rgs.acquire(group(5, ["a"]), "a", 2).readers["a"].segments) == 2


def test_successor_waits_for_all_predecessors() -> None:
    state = rgs.acquire(group(2, ["a"]), "a", 100)
    successor = {name(2, 1): [name(0), name(1)]}
    state = finish(state, "a", name(0), 10, successor)
    assert state.unassigned == {}
    assert rgs.positions_of(state) == {name(0): 10, name(1): 0}
    assert rgs.stream_cuts(state)["retail/orders"].positions == {0: 10, 1: 0}
    state = finish(state, "a", name(1), 20, successor)
    assert state.unassigned == {name(2, 1): 0}
    assert state.waiting == {}


def test_finishing_a_segment_twice_has_no_effect() -> None:
    state = rgs.acquire(group(1, ["a"]), "a", 100)
    once = finish(state, "a", name(0), 10, {name(1, 1): [name(0)], name(2, 1): [name(0)]})
    assert finish(once, "a", name(0), 10, {name(1, 1): [name(0)], name(2, 1): [name(0)]}) == once
    assert set(once.unassigned) == {name(1, 1), name(2, 1)}


def test_group_is_finished_after_the_last_segment_of_a_sealed_stream() -> None:
    state = rgs.acquire(group(1, ["a"]), "a", 100)
    assert not state.is_finished
    assert finish(state, "a", name(0), 10, {}).is_finished


def test_new_incarnation_continues_where_the_last_one_stored() -> None:
    state = rgs.acquire(group(2, ["a"]), "a", 100)
    state = rgs.beat(state, "a", {**at(state, "a", {name(0): 50}), name(9): held(1)})
    state = rgs.join(state, "a", "a-2")
    assert offsets(state, "a") == {name(0): 50, name(1): 0}
    assert not rgs.is_member(state, "a", "a-1")
    assert rgs.is_member(state, "a", "a-2")
    assert rgs.join(state, "a", "a-2") == state


def test_leaving_frees_segments_at_the_positions_given() -> None:
    state = rgs.acquire(group(2, ["a"]), "a", 100)
    left = rgs.leave(state, "a", at(state, "a", {name(0): 50}))
    assert left.unassigned == {name(0): 50, name(1): 0}
    assert rgs.leave(left, "a") == left


@pytest.mark.parametrize("step", [rgs.acquire, rgs.beat, rgs.release])
def test_steps_of_an_unknown_reader_have_no_effect(step: Callable[..., Any]) -> None:
    state = group(2)
    assert step(state, "ghost", 1 if step is rgs.acquire else {name(0): held(1)}) == state
    assert rgs.surplus(state, "ghost") == []
    assert finish(state, "ghost", name(0), 1, {}) == state


READERS = ["a", "b", "c", "d"]


def places(state: GroupState) -> list[str]:
    """Return where each segment is: every appearance, so that a double shows."""
    found = list(state.unassigned)
    for reader in state.readers.values():
        found += reader.segments
    return found


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_history_loses_or_doubles_a_segment(data: st.DataObject) -> None:
    # Random joins, leaves, beats, balancing and scales; a model knows which segments must be readable or waiting.
    count = data.draw(st.integers(1, 6))
    state = group(count)
    live = {name(number) for number in range(count)}  # Neither finished nor waiting.
    waiting: dict[str, set[str]] = {}
    next_number = count
    for _ in range(data.draw(st.integers(1, 40))):
        reader = data.draw(st.sampled_from(READERS))
        action = data.draw(st.sampled_from(["join", "leave", "beat", "acquire", "balance", "finish", "merge"]))
        mine = list(state.readers[reader].segments) if reader in state.readers else []
        before = state
        match action:
            case "join":
                state = rgs.join(state, reader, reader + str(data.draw(st.integers(0, 2))))
            case "leave":
                state = rgs.leave(state, reader)
            case "beat":
                positions = {segment: data.draw(st.integers(0, 9)) for segment in mine}
                state = rgs.beat(state, reader, at(state, reader, positions) if mine else {})
            case "acquire":
                state = rgs.acquire(state, reader, data.draw(st.integers(1, 8)))
            case "balance":
                state = rgs.release(state, reader, at(state, reader, dict.fromkeys(rgs.surplus(state, reader), 1)))
            case "finish" | "merge" if mine:
                segment = data.draw(st.sampled_from(mine))
                pending = [key for key, unread in waiting.items() if segment in unread]
                if pending:
                    successors = {key: sorted(waiting[key] | {segment}) for key in pending}
                elif action == "merge" and len(live) > 1:
                    other = data.draw(st.sampled_from(sorted(live - {segment})))
                    if any(other in unread for unread in waiting.values()):
                        continue
                    successors = {name(next_number, 1): [segment, other]}
                    waiting[name(next_number, 1)] = {segment, other}
                    next_number += 1
                else:
                    successors = {name(next_number + index, 1): [segment] for index in range(2)}
                    for key in successors:
                        waiting[key] = {segment}
                    next_number += 2
                state = finish(state, reader, segment, 100, successors)
                assert finish(state, reader, segment, 100, successors) == state
                live.discard(segment)
                for key in successors:
                    waiting[key].discard(segment)
                    if not waiting[key]:
                        del waiting[key]
                        live.add(key)
        assert sorted(places(state)) == sorted(live), (action, before)
        turns = [value.turn for member in state.readers.values() for value in member.segments.values()]
        assert len(set(turns)) == len(turns)
        assert all(turn < state.next_turn for turn in turns)
        assert set(state.waiting) == {key for key in waiting if len(waiting[key]) < 2}
        assert GroupState.decode(state.encode()) == state


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 12), st.lists(st.sampled_from(READERS), min_size=1, max_size=4, unique=True))
def test_balancing_ends_fair(segment_count: int, readers: list[str]) -> None:
    # Readers join one after another, each balancing in turn until nothing changes: at most one apart.
    state = group(segment_count)
    for reader in readers:
        state = rgs.join(state, reader, reader)
        for _ in range(20):
            before = state
            for member in list(state.readers):
                state = rgs.release(state, member, at(state, member, dict.fromkeys(rgs.surplus(state, member), 0)))
                state = rgs.acquire(state, member, 100)
            if state == before:
                break
        else:
            pytest.fail("balancing does not come to rest")
        counts = [len(member.segments) for member in state.readers.values()]
        assert max(counts) - min(counts) <= 1
        assert sum(counts) == segment_count


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_balancing_moves_the_minimum_of_segments(data: st.DataObject) -> None:
    """Readers join and leave a group at rest. Each gives up what it saw that it has too many of, perhaps long ago.

    What moves from one reader to another is what the others have too many of by the fairest count, and not one more;
    what a reader that left had is handed out once.
    """
    state = group(data.draw(st.integers(0, 12)), data.draw(st.lists(st.sampled_from(READERS), min_size=1, unique=True)))
    for _ in range(data.draw(st.integers(1, 4))):
        state, _ = rested(data, state)
        before = {reader: set(member.segments) for reader, member in state.readers.items()}
        joining = [reader for reader in READERS if reader not in before]
        if joining and (len(before) == 1 or data.draw(st.booleans())):
            state = rgs.join(state, joining[0], "again")
        elif len(before) > 1:
            state = rgs.leave(state, data.draw(st.sampled_from(sorted(before))))
        stayed = {reader: held for reader, held in before.items() if reader in state.readers}
        state, given_up = rested(data, state)
        floor, extra = divmod(state.segment_count, len(state.readers))
        # As many as may keep one more than the others do.
        most = sorted((len(held) for held in stayed.values()), reverse=True)
        fewest = sum(max(held - floor - (index < extra), 0) for index, held in enumerate(most))
        assert given_up == fewest
        lost = sum(len(held - set(state.readers[reader].segments)) for reader, held in stayed.items())
        assert lost == fewest
        counts = [len(member.segments) for member in state.readers.values()]
        assert max(counts) - min(counts) <= 1
        assert not state.unassigned


def rested(data: st.DataObject, state: GroupState) -> tuple[GroupState, int]:
    """Let readers poll, and act on what they saw, in any order, until nothing changes; count what they gave up."""
    given_up = 0
    seen = {}
    for _ in range(100):
        for member in data.draw(st.permutations(sorted(state.readers))):
            if member not in seen or data.draw(st.booleans()):
                seen[member] = rgs.surplus(state, member)
            before = len(state.readers[member].segments)
            state = rgs.give_up(state, member, at_held(state, member, seen.pop(member)))
            given_up += before - len(state.readers[member].segments)
            state = rgs.acquire(state, member, 100)
            # Seen now, acted upon with the next turn: others come between.
            seen[member] = rgs.surplus(state, member)
        if not state.unassigned and not any(rgs.surplus(state, member) for member in state.readers):
            return state, given_up
    return pytest.fail("balancing does not come to rest")


def at_held(state: GroupState, reader: str, segments: list[str]) -> dict[str, HeldSegment]:
    mine = state.readers[reader].segments
    return {segment: mine[segment] for segment in segments if segment in mine}


def of(stream: str, number: int = 0) -> str:
    return segment_name("retail", stream, number)


def test_streams_change_once_per_generation_and_never_back() -> None:
    state = rgs.create({of("a"): 5, of("b"): 0}, ["retail/a", "retail/b"])
    state = rgs.acquire(rgs.join(state, "r", "r-1"), "r", 100)
    first = rgs.read_streams(state, {"retail/a": {of("a"): 0}, "retail/c": {of("c"): 7}}, {}, 1)
    assert first.streams == ["retail/a", "retail/c"]
    assert offsets(first, "r") == {of("a"): 5}
    assert first.unassigned == {of("c"): 7}
    second = rgs.read_streams(first, {"retail/a": {of("a"): 0}, "retail/b": {of("b"): 3}}, {}, 2)
    assert second.unassigned == {of("b"): 3}, "a stream that was away is not where it was"
    # Late, or again.
    assert rgs.read_streams(second, {"retail/c": {of("c"): 7}}, {}, 1) == second
    assert rgs.read_streams(second, {"retail/c": {of("c"): 7}}, {}, 2) == second


def test_a_segment_in_which_the_group_ends_has_no_successors() -> None:
    state = rgs.create({name(0): 0, name(1): 9}, ["retail/orders"], ends={name(0): 50, name(1): 9})
    assert state.unassigned == {name(0): 0}
    assert state.ended == {name(1): 9}
    state = rgs.acquire(rgs.join(state, "a", "a-1"), "a", 100)
    assert not state.is_finished
    done = finish(state, "a", name(0), 50, {name(2, 1): [name(0), name(1)]})
    assert done.is_finished
    assert rgs.stream_cuts(done)["retail/orders"].positions == {0: 50, 1: 9}
    assert finish(done, "a", name(0), 50, {}) == done
    again = rgs.reset(done, {name(0): 10, name(1): 20}, "once")
    assert (again.unassigned, again.ended) == ({name(0): 10}, {name(1): 20})


def test_a_group_finishes_although_a_successor_was_never_assigned() -> None:
    state = rgs.create({name(0): 0, name(1): 0}, ["retail/orders"], ends={name(1): 50})
    state = rgs.acquire(rgs.join(state, "a", "a-1"), "a", 100)
    state = finish(state, "a", name(0), 10, {name(2, 1): [name(0), name(1)]})
    assert not state.is_finished
    assert finish(state, "a", name(1), 50, {}).is_finished


def test_a_group_with_patterns_is_never_finished() -> None:
    state = rgs.create({name(0): 0}, ["retail/orders"], patterns=["retail/*"])
    state = rgs.acquire(rgs.join(state, "a", "a-1"), "a", 100)
    done = finish(state, "a", name(0), 10, {})
    assert not done.is_finished
    assert rgs.find_streams(done, []).is_finished


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_history_of_streams_assigns_each_segment_once(data: st.DataObject) -> None:
    """Streams come and go while readers do: each that is read is at one place, with its end, and no other is."""
    streams = ["a", "b", "c", "d"]
    limits = {of(stream): 100 for stream in data.draw(st.sets(st.sampled_from(streams)))}
    state = rgs.create({of("a"): 0}, ["retail/a"], ends={of("a"): 100} if of("a") in limits else {})
    read = {"a"}
    for _ in range(data.draw(st.integers(1, 40))):
        reader = data.draw(st.sampled_from(READERS))
        mine = list(state.readers[reader].segments) if reader in state.readers else []
        match data.draw(st.sampled_from(["join", "leave", "acquire", "release", "end", "streams", "late", "reset"])):
            case "join":
                state = rgs.join(state, reader, reader + str(data.draw(st.integers(0, 2))))
            case "leave":
                state = rgs.leave(state, reader)
            case "acquire":
                state = rgs.acquire(state, reader, data.draw(st.integers(1, 8)))
            case "release":
                moved = {segment: data.draw(st.sampled_from([0, 50, 100])) for segment in mine}
                state = rgs.release(state, reader, at(state, reader, moved) if mine else {})
            case "end":
                for segment in limits.keys() & mine:
                    state = finish(state, reader, segment, 100, {of("never"): [segment]})
            case "streams":
                read = data.draw(st.sets(st.sampled_from(streams), min_size=1))
                starts = {f"retail/{stream}": {of(stream): 0} for stream in read}
                ends = {segment: end for segment, end in limits.items() if segment in {of(stream) for stream in read}}
                state = rgs.read_streams(state, starts, ends, state.generation + 1)
                assert rgs.read_streams(state, starts, ends, state.generation) == state
            case "late":
                assert rgs.read_streams(state, {"retail/a": {of("a"): 0}}, {}, state.generation) == state
            case "reset":
                state = rgs.reset(state, {of(stream): 0 for stream in read}, str(data.draw(st.integers())))
        assert sorted([*places(state), *state.ended]) == sorted(of(stream) for stream in read)
        assert all(offset >= limits[segment] for segment, offset in state.ended.items())
        assert set(rgs.stream_cuts(state)) == {f"retail/{stream}" for stream in read}
        assert GroupState.decode(state.encode()) == state


def test_segments_are_exchanged_once_and_one_for_one() -> None:
    positions = {segment_name("s", "a", number): 10 * number for number in range(6)}
    names = list(positions)
    state = rgs.acquire(rgs.join(rgs.create(positions, ["s/a"]), "r", "i"), "r", 3)
    held = state.readers["r"].segments
    given = {segment: HeldSegment(1000 + index, held[segment].turn) for index, segment in enumerate(names[:3])}
    changed = rgs.exchange(state, "r", given, [names[5], "s/a/99.#epoch.0", names[3]])
    assert set(changed.readers["r"].segments) == {names[2], names[5], names[3]}
    assert changed.unassigned == {names[0]: 1000, names[1]: 1001, names[4]: 40}
    assert changed.readers["r"].segments[names[5]] == HeldSegment(50, state.next_turn)
    # Again, as after a lost reply, with a turn of before, or without anything to take: nothing.
    assert rgs.exchange(changed, "r", {names[0]: given[names[0]]}, [names[4]]) is changed
    assert rgs.exchange(changed, "r", given, []) is changed
    stale = {names[2]: HeldSegment(5, held[names[2]].turn + 100)}
    assert rgs.exchange(changed, "r", stale, [names[4]]) is changed
    assert rgs.exchange(changed, "missing", given, [names[4]]) is changed
