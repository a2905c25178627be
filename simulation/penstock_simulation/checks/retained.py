"""`RetainedModel`: what a stream of one segment may have forgotten, by its policy and its subscribers. Pure.

It gets what is visible from outside: how long the stream was and when, which cuts the controller had noted down,
and what subscribers have said, as soon as they say it. Where what was seen leaves room for doubt, it doubts the
accusation: each rule holds for every choice that the tables of ``docs/retention.md`` allow.

1. The minimum is there, whatever was acknowledged: so many bytes, or all that is younger.
2. What a subscriber has not acknowledged goes only once the maximum says so: the cut noted last before it lies so many
   bytes behind the end, or is so old.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.model.policies import Retention, RetentionKind

_ROUNDING_S = 0.002


@dataclass(slots=True)
class RetainedModel:
    """See the module. Places are offsets in the one segment, times are seconds of one clock.

    Attributes:
        policy: with a minimum, and a maximum if it has one.
        made_s: when the stream was made, or before.
        said: subscriber -> the farthest that it can have acknowledged.
        head: where it was seen to begin last.
    """

    policy: Retention
    made_s: float
    said: dict[str, int] = field(default_factory=dict)
    head: int = 0
    _lengths: dict[int, float] = field(default_factory=dict)
    _cuts: dict[int, float] = field(default_factory=dict)

    def see_length(self, asked_s: float, length: int) -> None:
        """Note that the stream was so long after `asked_s`: what lies behind that was written later."""
        self._lengths[length] = max(asked_s, self._lengths.get(length, asked_s))

    def see_cut(self, noted_s: float, place: int) -> None:
        """Note a cut that the controller had on record, and when it noted it down, or before."""
        self._cuts[place] = min(noted_s, self._cuts.get(place, noted_s))

    def acknowledge(self, subscriber: str, place: int) -> None:
        """Note that a subscriber is about to acknowledge what lies before a place."""
        self.said[subscriber] = max(place, self.said.get(subscriber, 0))

    def judge(self, head: int, head_s: float, length: int) -> list[str]:
        """Return what is wrong with a stream that began at `head` before `head_s`, and was so long later."""
        found: list[str] = []
        if head < self.head:
            return [f"begins at {head}, and began at {self.head} before"]
        is_new, self.head = head > self.head, head
        if not is_new:
            return []
        is_by_time = self.policy.kind is RetentionKind.BY_TIME
        least, most = self.policy.min_limit, self.policy.max_limit
        if is_by_time:
            age_s = head_s - self._written_after(head - 1)
            if age_s < least / 1000 - _ROUNDING_S:
                found.append(f"begins at {head}: what was before is {age_s:.3f} s old at most, and {least} ms are kept")
        elif length - head < least:
            found.append(f"begins at {head} and has {length - head} bytes, {least} must be kept")
        unread = min(self.said.values(), default=head)
        if head > unread:
            place = max((place for place in self._cuts if place < head), default=0)
            noted_s = self._cuts.get(place, self.made_s)
            is_past = head_s - noted_s > most / 1000 - _ROUNDING_S if is_by_time else length - place >= most
            if not most or not is_past:
                found.append(
                    f"begins at {head} at {head_s:.3f} s, {length} bytes long, and a subscriber has read to "
                    f"{unread}; the cut before is at {place}, of {noted_s:.3f} s: the maximum of {most} does not say so"
                )
        return found

    def _written_after(self, place: int) -> float:
        return max((asked_s for length, asked_s in self._lengths.items() if length <= place), default=self.made_s)


def chunks_too_many(starts: Mapping[str, int], head: int) -> list[str]:
    """Return the chunks that have nothing behind `head` any more. `starts`: of all chunks of a segment, by name.

    A chunk goes up to where the next one starts. What was merged into another chunk is there until it is deleted.
    """
    needed = max((start for start in starts.values() if start <= head), default=0)
    return sorted(name for name, start in starts.items() if start < needed)
