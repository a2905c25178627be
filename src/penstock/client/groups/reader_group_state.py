"""The shared state of a reader group, and every step on it. Pure: state in, state out.

A group is one record in a table segment, changed by compare-and-set. Each step is idempotent: repeating it on a state
to which it was already applied changes nothing. So when the reply to an update is lost, the record is read again and
the step repeated.

Invariants, checked by property tests:

- a segment is in one place: unassigned, at one reader, waiting for its predecessors, or ended;
- a segment waits until all predecessors were read to their end, and then starts at 0, so events of one routing key are
  read in order across splits and merges;
- when balancing is complete, the readers' numbers of segments differ by at most one;
- each assignment of a segment to a reader has a unique number (`HeldSegment.turn`), which is never reused: a reader
  that has a segment under another number does not hold it, whatever its local state.

Source: Pravega, reader groups (there kept in a revisioned stream or, by the Rust client, in a table).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

import msgspec

from penstock.client.groups.group_checkpoint import CheckpointState
from penstock.client.groups.group_state import GroupState, HeldSegment, ReaderState, Redelivery, WaitingState
from penstock.model.names import parse_segment_name
from penstock.model.policies import GroupRetention
from penstock.model.stream_cuts import StreamCut

Value = TypeVar("Value")


def _order(segment: str) -> tuple[str, str, int]:
    scope, stream, number = parse_segment_name(segment)
    return scope, stream, int(number)


def _changed(state: GroupState, **changes: object) -> GroupState:
    return msgspec.structs.replace(state, **changes)


def _with_reader(state: GroupState, name: str, reader: ReaderState) -> dict[str, ReaderState]:
    return dict(sorted({**state.readers, name: reader}.items()))


def create(
    positions: Mapping[str, int],
    streams: Sequence[str],
    *,
    group_id: str = "",
    generation: int = 0,
    retention: GroupRetention = GroupRetention.NONE,
    reader_timeout_s: float = 30.0,
    processing_time_max_s: float = 300.0,
    patterns: Collection[str] = (),
    ends: Mapping[str, int] | None = None,
    checkpoint_interval_s: float = 0.0,
) -> GroupState:
    """Return the first state of a group that starts at `positions` (full segment name -> offset).

    `ends`: the group's end, likewise; a stream without one has no end.
    """
    state = GroupState(
        streams=sorted(streams),
        unassigned={},
        group_id=group_id,
        generation=generation,
        holds_data=retention is not GroupRetention.NONE,
        is_manual=retention is GroupRetention.MANUAL,
        reader_timeout_s=reader_timeout_s,
        processing_time_max_s=processing_time_max_s,
        patterns=sorted(patterns),
        ends=dict(sorted((ends or {}).items(), key=lambda item: _order(item[0]))),
        checkpoint=CheckpointState(checkpoint_interval_s),
    )
    return _freed(state, positions)


def reset(state: GroupState, positions: Mapping[str, int], reset_id: str) -> GroupState:
    """Move the group to `positions`, whatever its readers' positions are: all of them lose their segments."""
    if state.reset_id == reset_id:
        return state
    readers = {name: ReaderState(reader.incarnation, reader.heartbeat) for name, reader in state.readers.items()}
    cleared = _changed(
        state, unassigned={}, readers=readers, waiting={}, redeliveries={}, ended={}, reset_id=reset_id,
        checkpoint=state.checkpoint.forgotten(),
    )  # fmt: skip
    return _freed(cleared, positions)


def read_streams(
    state: GroupState,
    starts: Mapping[str, Mapping[str, int]],
    ends: Mapping[str, int],
    generation: int,
    retention: GroupRetention | None = None,
    checkpoint_interval_s: float | None = None,
) -> GroupState:
    """Make the group read the streams in `starts` (``scope/stream`` -> segment -> offset), and no others.

    New streams start there; positions in streams that it already reads do not change; the state of all others is
    dropped. `ends`: of all streams, see `create`. `generation`: of the corresponding configuration in the controller; a
    record with this generation or a later one is not changed. `retention`, `checkpoint_interval_s`: of the same
    configuration; None: unchanged.
    """
    if state.generation >= generation:
        return state

    def is_kept(segment: str) -> bool:
        scope, stream, _ = parse_segment_name(segment)
        return f"{scope}/{stream}" in starts

    def kept(known: Mapping[str, Value]) -> dict[str, Value]:
        return {segment: value for segment, value in known.items() if is_kept(segment)}

    readers = {
        name: msgspec.structs.replace(reader, segments=kept(reader.segments), handed_out=kept(reader.handed_out))
        for name, reader in state.readers.items()
    }
    new = {
        segment: offset
        for stream, positions in starts.items()
        if stream not in state.streams
        for segment, offset in positions.items()
    }
    checkpoint = msgspec.structs.replace(state.checkpoint, positions=kept(state.checkpoint.positions))
    if checkpoint_interval_s is not None:
        checkpoint = msgspec.structs.replace(checkpoint, interval_s=checkpoint_interval_s)
    changed = _changed(
        state,
        streams=sorted(starts),
        unassigned=kept(state.unassigned),
        readers=readers,
        waiting=kept(state.waiting),
        redeliveries=kept(state.redeliveries),
        ended=kept(state.ended),
        ends=dict(sorted(ends.items(), key=lambda item: _order(item[0]))),
        generation=generation,
        checkpoint=checkpoint,
    )
    return _freed(changed if retention is None else hold(changed, retention), new)


def hold(state: GroupState, retention: GroupRetention) -> GroupState:
    """Set the group's retention."""
    return _changed(
        state, holds_data=retention is not GroupRetention.NONE, is_manual=retention is GroupRetention.MANUAL
    )


def find_streams(state: GroupState, patterns: Collection[str]) -> GroupState:
    """Set the patterns of streams that the group follows."""
    return _changed(state, patterns=sorted(patterns))


def join(state: GroupState, name: str, incarnation: str) -> GroupState:
    """Add a reader, or let a new incarnation of one resume from the positions that the last one stored."""
    reader = state.readers.get(name)
    if reader is None:
        return _changed(state, readers=_with_reader(state, name, ReaderState(incarnation)))
    if reader.incarnation == incarnation:
        return state
    # The last one ended without leaving: events returned by it may be delivered again.
    redeliveries = _redelivered(state, reader, reader.handed_out)
    renewed = ReaderState(incarnation, reader.heartbeat + 1, reader.segments)
    return _changed(state, readers=_with_reader(state, name, renewed), redeliveries=redeliveries)


def is_member(state: GroupState, name: str, incarnation: str) -> bool:
    """Return whether this incarnation of the reader is in the group."""
    reader = state.readers.get(name)
    return reader is not None and reader.incarnation == incarnation


def leave(
    state: GroupState,
    name: str,
    positions: Mapping[str, HeldSegment] | None = None,
    *,
    handed_out: Mapping[str, int] | None = None,
) -> GroupState:
    """Remove a reader; its segments become free at `positions`, or at its stored positions.

    `handed_out` None: it left cleanly. Otherwise it failed, and these events (segment -> offset) count as redelivered
    when they are delivered again.
    """
    reader = state.readers.get(name)
    if reader is None:
        return state
    moved = _moved(reader, positions or {})
    redeliveries = state.redeliveries
    if handed_out is not None:
        redeliveries = _redelivered(state, moved, {**reader.handed_out, **handed_out})
    freed = {segment: held.offset for segment, held in moved.segments.items()}
    readers = {other: value for other, value in state.readers.items() if other != name}
    left = _freed(_changed(state, readers=readers, redeliveries=_pruned(redeliveries, freed)), freed)
    if readers or handed_out is not None or not state.checkpoint.interval_s:
        return _without_awaited(left, name)
    # The last reader: all that was read is stored.
    last = left.checkpoint.forgotten().begin(left.checkpoint.number + 1, ())
    return _changed(left, checkpoint=last.taken(positions_of(left)))


def beat(
    state: GroupState, name: str, positions: Mapping[str, HeldSegment], handed_out: Mapping[str, int] | None = None
) -> GroupState:
    """Store a reader's positions and its heartbeat. Segments that it does not hold in that turn are ignored."""
    reader = state.readers.get(name)
    if reader is None:
        return state
    moved = _moved(reader, positions)
    told = {segment: offset for segment, offset in (handed_out or {}).items() if segment in moved.segments}
    renewed = ReaderState(moved.incarnation, moved.heartbeat + 1, moved.segments, told)
    reached = {segment: held.offset for segment, held in moved.segments.items()}
    stored = _changed(
        state, readers=_with_reader(state, name, renewed), redeliveries=_pruned(state.redeliveries, reached)
    )
    return _without_awaited(stored, name)


def begin_checkpoint(state: GroupState, number: int) -> GroupState:
    """Request checkpoint `number` from all readers, unless one is open or that one was started before."""
    return _changed(state, checkpoint=state.checkpoint.begin(number, state.readers))


def acquire(state: GroupState, name: str, count_max: int, shunned: Collection[str] = ()) -> GroupState:
    """Give a reader free segments up to its fair share, at most `count_max` in all; none of `shunned`.

    Segments that readers below the even share lack stay free for them; otherwise the reader that released one would
    take it back.
    """
    reader = state.readers.get(name)
    if reader is None or not state.unassigned:
        return state
    floor, extra = divmod(state.segment_count, len(state.readers))
    held = len(reader.segments)
    reserved = sum(max(floor - len(other.segments), 0) for key, other in state.readers.items() if key != name)
    wanted = max(floor - held, 0)
    if extra and max(held, floor) == floor and len(state.unassigned) - wanted > reserved:
        wanted += 1
    wanted = min(wanted, count_max - held)
    if wanted <= 0:
        return state
    chosen = [segment for segment in sorted(state.unassigned, key=_order) if segment not in shunned][:wanted]
    if not chosen:
        return state
    taken = {
        segment: HeldSegment(state.unassigned[segment], state.next_turn + index) for index, segment in enumerate(chosen)
    }
    left = {segment: offset for segment, offset in state.unassigned.items() if segment not in taken}
    renewed = msgspec.structs.replace(reader, segments={**reader.segments, **taken})
    return _changed(
        state,
        unassigned=left,
        readers=_with_reader(state, name, renewed),
        next_turn=state.next_turn + len(taken),
    )


def surplus(state: GroupState, name: str) -> list[str]:
    """Return the segments a reader should release because another one has too few; the newest first."""
    reader = state.readers.get(name)
    if reader is None:
        return []
    floor, extra = divmod(state.segment_count, len(state.readers))
    others = [len(other.segments) for key, other in state.readers.items() if key != name]
    ceiling = floor + (1 if extra else 0)
    held = len(reader.segments)
    short = sum(max(floor - other, 0) for other in others)
    coming = len(state.unassigned) + sum(max(other - ceiling, 0) for other in others)
    # One more than the even share may stay, unless other readers cannot reach theirs in another way.
    count = held - ceiling if held > ceiling else int(held > floor and short > coming)
    return sorted(reader.segments, key=_order, reverse=True)[:count]


def release(state: GroupState, name: str, positions: Mapping[str, HeldSegment]) -> GroupState:
    """Free the segments in `positions` that the reader holds in that turn, at those offsets."""
    reader = state.readers.get(name)
    if reader is None:
        return state
    freed = {
        segment: position.offset
        for segment, position in positions.items()
        if segment in reader.segments and reader.segments[segment].turn == position.turn
    }
    if not freed:
        return state
    kept = {segment: held for segment, held in reader.segments.items() if segment not in freed}
    renewed = msgspec.structs.replace(reader, segments=kept)
    changed = _changed(
        state, readers=_with_reader(state, name, renewed), redeliveries=_pruned(state.redeliveries, freed)
    )
    return _freed(changed, freed)


def give_up(state: GroupState, name: str, positions: Mapping[str, HeldSegment]) -> GroupState:
    """As `release`, but of no more segments than the reader's current surplus, the newest first.

    Another reader may have received its missing segments from a third one since this reader's check.
    """
    count = len(surplus(state, name))
    chosen = sorted(positions, key=_order, reverse=True)[:count]
    return release(state, name, {segment: positions[segment] for segment in chosen})


def exchange(state: GroupState, name: str, positions: Mapping[str, HeldSegment], wanted: Sequence[str]) -> GroupState:
    """Release segments in `positions`, as `release` does, and give the reader as many of `wanted` in their place.

    Both in order, as far as both have elements: the reader's number of segments does not change.
    """
    reader = state.readers.get(name)
    if reader is None:
        return state
    given = [
        segment
        for segment, position in positions.items()
        if segment in reader.segments and reader.segments[segment].turn == position.turn
    ]
    taken = [segment for segment in wanted if segment in state.unassigned][: len(given)]
    if not taken:
        return state
    kept = {segment: offset for segment, offset in state.unassigned.items() if segment not in taken}
    held = {
        segment: HeldSegment(state.unassigned[segment], state.next_turn + index) for index, segment in enumerate(taken)
    }
    renewed = msgspec.structs.replace(reader, segments={**reader.segments, **held})
    changed = _changed(
        state,
        unassigned=kept,
        readers=_with_reader(state, name, renewed),
        next_turn=state.next_turn + len(taken),
    )
    return release(changed, name, {segment: positions[segment] for segment in given[: len(taken)]})


def finish(
    state: GroupState, name: str, segment: str, end: HeldSegment, successors: Mapping[str, Sequence[str]]
) -> GroupState:
    """Remove a segment that was read to its end, and add its successors (segment -> all its predecessors).

    A successor becomes free once all its predecessors were finished. A segment in which the group ends has none.
    Nothing happens unless the reader holds `segment` in that turn.
    """
    reader = state.readers.get(name)
    if reader is None or segment not in reader.segments or reader.segments[segment].turn != end.turn:
        return state
    kept = {other: held for other, held in reader.segments.items() if other != segment}
    renewed = msgspec.structs.replace(reader, segments=kept)
    redeliveries = {other: value for other, value in state.redeliveries.items() if other != segment}
    if segment in state.ends:
        ended = {**state.ended, segment: end.offset}
        return _changed(state, ended=ended, readers=_with_reader(state, name, renewed), redeliveries=redeliveries)
    free: dict[str, int] = {}
    waiting = dict(state.waiting)
    for successor, predecessors in successors.items():
        known = waiting.get(successor) or WaitingState(sorted(predecessors), {})
        unread = [other for other in known.unread if other != segment]
        if unread:
            waiting[successor] = WaitingState(unread, {**known.read, segment: end.offset})
        else:
            waiting.pop(successor, None)
            free[successor] = 0
    changed = _changed(state, waiting=waiting, readers=_with_reader(state, name, renewed), redeliveries=redeliveries)
    return _freed(changed, free)


def positions_of(state: GroupState) -> dict[str, int]:
    """Return the group's positions: readable segments, those it ends in, and finished ones with waiting successors."""
    positions = {**state.ended, **state.unassigned}
    for reader in state.readers.values():
        positions.update({segment: held.offset for segment, held in reader.segments.items()})
    for waiting in state.waiting.values():
        positions.update(waiting.read)
    return positions


def stream_cuts(state: GroupState) -> dict[str, StreamCut]:
    """Return the position of the group in each stream, as last stored by the readers."""
    return _cuts_at(state, positions_of(state))


def checkpoint_cuts(state: GroupState) -> dict[str, StreamCut]:
    """Return the last automatic checkpoint of the group in each stream that has one."""
    cuts = _cuts_at(state, state.checkpoint.positions)
    return {stream: cut for stream, cut in cuts.items() if cut.positions}


def _cuts_at(state: GroupState, positions: Mapping[str, int]) -> dict[str, StreamCut]:
    by_stream: dict[str, dict[int, int]] = {stream: {} for stream in state.streams}
    for segment, offset in positions.items():
        scope, stream, number = parse_segment_name(segment)
        by_stream.setdefault(f"{scope}/{stream}", {})[number] = offset
    cuts = {}
    for name, found in by_stream.items():
        scope, _, stream = name.partition("/")
        cuts[name] = StreamCut(scope, stream, found)
    return cuts


def _without_awaited(state: GroupState, name: str) -> GroupState:
    """Stop waiting for a reader; complete the checkpoint if that was the last one awaited."""
    if name not in state.checkpoint.awaited:
        return state
    checkpoint = state.checkpoint.without(name)
    if not checkpoint.awaited:
        checkpoint = checkpoint.taken(positions_of(state))
    return _changed(state, checkpoint=checkpoint)


def _freed(state: GroupState, positions: Mapping[str, int]) -> GroupState:
    """Free these segments for any reader, except those that the group has read up to its end."""
    ended = {
        segment: offset
        for segment, offset in positions.items()
        if segment in state.ends and offset >= state.ends[segment]
    }
    free = {segment: offset for segment, offset in positions.items() if segment not in ended}
    ordered = sorted({**state.unassigned, **free}.items(), key=lambda item: _order(item[0]))
    return _changed(state, unassigned=dict(ordered), ended={**state.ended, **ended})


def _moved(reader: ReaderState, positions: Mapping[str, HeldSegment]) -> ReaderState:
    segments = dict(reader.segments)
    for segment, position in positions.items():
        if segment in segments and segments[segment].turn == position.turn:
            segments[segment] = position
    return msgspec.structs.replace(reader, segments=segments)


def _redelivered(state: GroupState, reader: ReaderState, handed_out: Mapping[str, int]) -> dict[str, Redelivery]:
    """Note that this reader failed: the application may have had the next event of each of its segments."""
    redeliveries = dict(state.redeliveries)
    for segment, held in reader.segments.items():
        # One byte further is inside the next event, so exactly this one is counted.
        until = max(handed_out.get(segment, 0), held.offset + 1)
        known = redeliveries.get(segment)
        if known is not None and known.until > held.offset:
            redeliveries[segment] = Redelivery(max(until, known.until), known.count + 1)
        else:
            redeliveries[segment] = Redelivery(until, 1)
    return redeliveries


def _pruned(redeliveries: dict[str, Redelivery], reached: Mapping[str, int]) -> dict[str, Redelivery]:
    return {segment: value for segment, value in redeliveries.items() if reached.get(segment, 0) < value.until}
