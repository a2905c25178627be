"""`ReaderChange`: what one reader changes in its group's record in one pass. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.client.groups import reader_group_state as rgs
from penstock.client.groups.group_state import GroupState, HeldSegment
from penstock.client.groups.group_watch import Sign
from penstock.client.groups.segment_ends import Ends


@dataclass(frozen=True, slots=True)
class ReaderChange:
    """See the module.

    Attributes:
        reader, incarnation: whose change it is.
        segment_count_max: the reader holds at most this many segments.
        is_joined: the reader was in the group when the change was made up.
        is_beat: the change stores positions, which shows that the reader is alive.
        dead: readers to remove, with their last signs of life: not if they have shown another one since.
        ends: segments that were read to their end.
        leaving: segments to release, with their positions.
        exchanged, wanted: segments to release for others that no reader holds, and those others.
        positions: of the segments that the reader holds, if `is_beat`.
        handed_out: the end of the events that are with the application (segment -> offset).
        checkpoint: the number of a checkpoint to start.
    """

    reader: str
    incarnation: str
    segment_count_max: int
    is_joined: bool
    is_beat: bool
    dead: Mapping[str, Sign] = field(default_factory=dict)
    ends: Ends = field(default_factory=dict)
    leaving: Mapping[str, HeldSegment] = field(default_factory=dict)
    exchanged: Mapping[str, HeldSegment] = field(default_factory=dict)
    wanted: Sequence[str] = ()
    positions: Mapping[str, HeldSegment] = field(default_factory=dict)
    handed_out: Mapping[str, int] = field(default_factory=dict)
    checkpoint: int | None = None

    @property
    def given(self) -> dict[str, HeldSegment]:
        """Where the group resumes in the segments that the reader releases."""
        return {**self.leaving, **self.exchanged, **{segment: end for segment, (end, _) in self.ends.items()}}

    def is_needed_in(self, state: GroupState) -> bool:
        """Return whether it changes a record that has this reader."""
        return bool(self.is_beat or self.dead or self.given) or self.acquire(state) is not state

    def acquire(self, state: GroupState) -> GroupState:
        """Return the record after the reader has taken its share of the segments that no reader holds."""
        return rgs.acquire(state, self.reader, self.segment_count_max)

    def apply(self, state: GroupState) -> GroupState:
        """Return the record after the change. Idempotent but for the count of heartbeats."""
        me = state.readers.get(self.reader)
        if self.is_joined and (me is None or me.incarnation != self.incarnation):
            # Expelled or replaced: the reader drops its segments before it joins again.
            return state
        for name, (incarnation, heartbeat, _) in self.dead.items():
            other = state.readers.get(name)
            if other is not None and (other.incarnation, other.heartbeat) == (incarnation, heartbeat):
                state = rgs.leave(state, name, handed_out={})
        state = rgs.join(state, self.reader, self.incarnation)
        for segment, (end, successors) in self.ends.items():
            state = rgs.finish(state, self.reader, segment, end, successors)
        state = rgs.give_up(state, self.reader, self.leaving)
        state = rgs.exchange(state, self.reader, self.exchanged, self.wanted)
        if self.checkpoint is not None:
            state = rgs.begin_checkpoint(state, self.checkpoint)
        if self.is_beat:
            state = rgs.beat(state, self.reader, self.positions, self.handed_out)
        return self.acquire(state)
