"""The shared state of a reader group, and every step it can take. Pure: state in, state out.

A group is one record in a table segment, changed by compare-and-set. Each step is idempotent: taking it again
on a state in which it was taken already changes nothing. So when the reply to an update is lost, the record is
read again and the step repeated.

Invariants, held by property tests:

- a segment is at one place: unassigned, at one reader, waiting for its predecessors, or ended;
- a segment waits until all predecessors were read to their end, and then starts at 0, so events of one routing
  key are read in order across splits and merges;
- when nothing is left to balance, readers hold equal numbers of segments, give or take one;
- each time a segment is given to a reader it gets a number of its own (`HeldSegment.turn`), which never comes again: a
  reader that knows a segment under another number does not hold it, whatever it believes.

Source: Pravega, reader groups (there kept in a revisioned stream or, by the Rust client, in a table).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

import msgspec

from penstock.client.group_checkpoint import CheckpointState
from penstock.client.group_state import GroupState, HeldSegment, ReaderState, Redelivery, WaitingState
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

    `ends`: where it ends, likewise; nothing of a stream without one is the end.
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
    """Let the group go on at `positions`, whatever its readers are at: all of them lose what they hold."""
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
    """Let the group read the streams in `starts` (``scope/stream`` -> segment -> offset), and no others.

    Those that are new to it are begun there; in the others it goes on where it is; what it knows of the rest is
    forgotten. `ends`: of all of them, see `create`. `generation`: of the controller's configuration that says so; a
    record that has seen it, or a later one, stays as it is. `retention`, `checkpoint_interval_s`: of the same; None: as
    it was.
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
    """Let the group hold this of its streams."""
    return _changed(
        state, holds_data=retention is not GroupRetention.NONE, is_manual=retention is GroupRetention.MANUAL
    )


def find_streams(state: GroupState, patterns: Collection[str]) -> GroupState:
    """Let the group look for streams that match `patterns`, and for no others."""
    return _changed(state, patterns=sorted(patterns))


def join(state: GroupState, name: str, incarnation: str) -> GroupState:
    """Add a reader, or let a new incarnation of one go on from the positions that the last one stored."""
    reader = state.readers.get(name)
    if reader is None:
        return _changed(state, readers=_with_reader(state, name, ReaderState(incarnation)))
    if reader.incarnation == incarnation:
        return state
    # The last one ended without a word: what it had been given may come again.
    redeliveries = _redelivered(state, reader, reader.handed_out)
    renewed = ReaderState(incarnation, reader.heartbeat + 1, reader.segments)
    return _changed(state, readers=_with_reader(state, name, renewed), redeliveries=redeliveries)


def is_member(state: GroupState, name: str, incarnation: str) -> bool:
    """Say whether this incarnation of the reader is in the group."""
    reader = state.readers.get(name)
    return reader is not None and reader.incarnation == incarnation


def leave(
    state: GroupState,
    name: str,
    positions: Mapping[str, HeldSegment] | None = None,
    *,
    handed_out: Mapping[str, int] | None = None,
) -> GroupState:
    """Remove a reader; its segments become free at `positions`, or where it last stored.

    `handed_out` None: it left in good order. Else it failed, and these events (segment -> offset) count as redelivered
    when they come again.
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
    # The last one: all that was read is stored.
    last = left.checkpoint.forgotten().begin(left.checkpoint.number + 1, ())
    return _changed(left, checkpoint=last.taken(positions_of(left)))


def beat(
    state: GroupState, name: str, positions: Mapping[str, HeldSegment], handed_out: Mapping[str, int] | None = None
) -> GroupState:
    """Store a reader's positions and show that it is alive. What it does not hold in that turn is ignored."""
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
    """Ask all readers to store their positions for checkpoint `number`, unless one is open or that was begun before."""
    return _changed(state, checkpoint=state.checkpoint.begin(number, state.readers))


def acquire(state: GroupState, name: str, count_max: int, shunned: Collection[str] = ()) -> GroupState:
    """Give a reader free segments up to its fair share, and no more than `count_max` in all; none of `shunned`.

    What readers below the even share are short of stays free for them, or the one that gave it up would take it back.
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
        segment: HeldSegment(state.unassigned[segment], state.next_turn + index)
        for index, segment in enumerate(chosen)
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
    """Return the segments a reader should give up because another one has too few; the newest first."""
    reader = state.readers.get(name)
    if reader is None:
        return []
    floor, extra = divmod(state.segment_count, len(state.readers))
    others = [len(other.segments) for key, other in state.readers.items() if key != name]
    ceiling = floor + (1 if extra else 0)
    held = len(reader.segments)
    short = sum(max(floor - other, 0) for other in others)
    coming = len(state.unassigned) + sum(max(other - ceiling, 0) for other in others)
    # One more than the even share may stay, unless others cannot come to theirs in another way.
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
    """As `release`, but of no more segments than the reader has too many of by now, the newest first.

    What another reader was short of when this one looked may have come from a third one since.
    """
    count = len(surplus(state, name))
    chosen = sorted(positions, key=_order, reverse=True)[:count]
    return release(state, name, {segment: positions[segment] for segment in chosen})


def exchange(
    state: GroupState, name: str, positions: Mapping[str, HeldSegment], wanted: Sequence[str]
) -> GroupState:
    """Release segments in `positions`, as `release` does, and give the reader as many of `wanted` in their place.

    Both in order, as far as there are both: the reader holds as many as before.
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
    """Take out a segment that was read to its end, and bring in its successors (segment -> all its predecessors).

    A successor becomes free once all its predecessors were finished. One in which the group ends has none. Nothing
    happens unless the reader holds `segment` in that turn.
    """
    reader = state.readers.get(name)
    if reader is None or segment not in reader.segments or reader.segments[segment].turn != end.turn:
        return state
    kept = {other: held for other, held in reader.segments.items() if other != segment}
    renewed = msgspec.structs.replace(reader, segments=kept)
    redeliveries = {other: value for other, value in state.redeliveries.items() if other != segment}
    if segment in state.ends:
        ended = {**state.ended, segment: end.offset}
        return _changed(
            state, ended=ended, readers=_with_reader(state, name, renewed), redeliveries=redeliveries
        )
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
    changed = _changed(
        state, waiting=waiting, readers=_with_reader(state, name, renewed), redeliveries=redeliveries
    )
    return _freed(changed, free)


def positions_of(state: GroupState) -> dict[str, int]:
    """Return where the group is: all readable segments, those it ends in, and finished ones with waiting successors."""
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
    """Return the last automatic checkpoint of the group in each stream that it has one of."""
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
    """Await nothing more of a reader; take the checkpoint if that was the last one awaited."""
    if name not in state.checkpoint.awaited:
        return state
    checkpoint = state.checkpoint.without(name)
    if not checkpoint.awaited:
        checkpoint = checkpoint.taken(positions_of(state))
    return _changed(state, checkpoint=checkpoint)


def _freed(state: GroupState, positions: Mapping[str, int]) -> GroupState:
    """Let any reader have these segments, but those that the group has read as far as it is to."""
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
    """Note that this reader failed: the next event of each of its segments was perhaps with the application."""
    redeliveries = dict(state.redeliveries)
    for segment, held in reader.segments.items():
        # One byte further is inside the next event, which is thus counted, and no other.
        until = max(handed_out.get(segment, 0), held.offset + 1)
        known = redeliveries.get(segment)
        if known is not None and known.until > held.offset:
            redeliveries[segment] = Redelivery(max(until, known.until), known.count + 1)
        else:
            redeliveries[segment] = Redelivery(until, 1)
    return redeliveries


def _pruned(redeliveries: dict[str, Redelivery], reached: Mapping[str, int]) -> dict[str, Redelivery]:
    return {
        segment: value for segment, value in redeliveries.items() if reached.get(segment, 0) < value.until
    }
