"""Where a stream should begin, by its policy and its subscribers. Pure functions.

The minimum is always kept. Between minimum and maximum the subscribers decide: data that any of them has not
acknowledged stays. Beyond the maximum data is deleted, read or not. Ages and sizes are taken from cuts recorded in the
past.

Source: controller-internals 8.3 to 8.5; PDP-47.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.controller.stream_cuts import CutOrder


class Choice(Enum):
    """A position to begin at.

    Attributes:
        NOTHING: none: the stream's start does not change.
        MIN_CUT: the newest recorded cut with the minimum after it.
        BOUND: the position of the slowest subscribers, key by key.
        BEFORE_BOUND: the newest recorded cut that all subscribers have passed.
        MAX_CUT: the oldest recorded cut with no more than the maximum after it, or `MIN_CUT` without one.
        MAX_BOUND: the newest recorded cut that is as old as the maximum, or older.
    """

    NOTHING = "nothing"
    MIN_CUT = "minimum"
    BOUND = "subscribers"
    BEFORE_BOUND = "before subscribers"
    MAX_CUT = "maximum"
    MAX_BOUND = "age of the maximum"


class RetentionRow(Enum):
    """A row of the tables in ``docs/retention.md``: a condition. `choice` is the resulting position.

    Names are in the controller's protocol: never rename.
    """

    #: No cut is recorded, and there is nothing to record.
    NO_CUTS = 1, Choice.NOTHING
    SIZE_NO_SUBSCRIBERS = 2, Choice.MIN_CUT
    #: There is less than the minimum between the bound and the newest cut, and no cut keeps the minimum.
    SIZE_BELOW_MIN_WITHOUT_CUT = 3, Choice.NOTHING
    #: The same, but a cut keeps the minimum, and the bound is after that cut.
    SIZE_BELOW_MIN = 4, Choice.MIN_CUT
    #: The same, and the bound is not after that cut on all keys.
    SIZE_BELOW_MIN_OVERLAPPING = 5, Choice.BEFORE_BOUND
    SIZE_BETWEEN = 6, Choice.BOUND
    SIZE_PAST_MAX = 7, Choice.MAX_CUT
    #: The maximum, or more; the maximum's cut would keep as much as the bound, or more.
    SIZE_PAST_MAX_WITHOUT_GAIN = 8, Choice.BOUND
    TIME_NO_SUBSCRIBERS = 9, Choice.MIN_CUT
    #: No cut has the minimum's age.
    TIME_WITHOUT_CUT = 10, Choice.NOTHING
    #: The bound is after the newest cut of the minimum's age.
    TIME_ABOVE_MIN = 11, Choice.MIN_CUT
    TIME_MIN_OVERLAPPING = 12, Choice.BEFORE_BOUND
    TIME_BETWEEN = 13, Choice.BOUND
    #: The bound is before the newest cut of the maximum's age.
    TIME_PAST_MAX = 14, Choice.MAX_CUT
    TIME_MAX_OVERLAPPING = 15, Choice.MAX_BOUND

    @property
    def choice(self) -> Choice:
        """The position at which a stream in this row begins."""
        _, choice = self.value
        return choice


@dataclass(frozen=True, slots=True)
class SizeSituation:
    """The input of a choice by size for a stream with subscribers.

    `retained_bytes`: between the subscribers' bound and the newest recorded cut. `min_cut_order`: order of the
    minimum's cut relative to the bound; None without such a cut. `max_cut_retained_bytes`: bytes between the maximum's
    cut and the newest recorded cut. `max_bytes` None: there is no maximum.
    """

    min_bytes: int
    max_bytes: int | None
    retained_bytes: int
    min_cut_order: CutOrder | None
    max_cut_retained_bytes: int


def choose_by_size(situation: SizeSituation) -> RetentionRow:
    """Return the row that applies to a stream with subscribers and a policy by size."""
    retained = situation.retained_bytes
    if retained < situation.min_bytes:
        if situation.min_cut_order is None:
            return RetentionRow.SIZE_BELOW_MIN_WITHOUT_CUT
        is_before = situation.min_cut_order is CutOrder.BEFORE
        return RetentionRow.SIZE_BELOW_MIN if is_before else RetentionRow.SIZE_BELOW_MIN_OVERLAPPING
    if situation.max_bytes is None or retained < situation.max_bytes:
        return RetentionRow.SIZE_BETWEEN
    has_gain = situation.max_cut_retained_bytes < retained
    return RetentionRow.SIZE_PAST_MAX if has_gain else RetentionRow.SIZE_PAST_MAX_WITHOUT_GAIN


def choose_by_time(min_cut_order: CutOrder | None, max_bound_order: CutOrder | None) -> RetentionRow:
    """Return the row that applies to a stream with subscribers and a policy by time.

    `min_cut_order`: order of the minimum's cut relative to the subscribers' bound; None without such a cut.
    `max_bound_order`: order of that bound relative to the newest cut that is as old as the maximum; None without one.
    """
    match min_cut_order:
        case None:
            return RetentionRow.TIME_WITHOUT_CUT
        case CutOrder.BEFORE:
            return RetentionRow.TIME_ABOVE_MIN
        case CutOrder.OVERLAPPING:
            return RetentionRow.TIME_MIN_OVERLAPPING
    match max_bound_order:
        case CutOrder.BEFORE:
            return RetentionRow.TIME_PAST_MAX
        case CutOrder.OVERLAPPING:
            return RetentionRow.TIME_MAX_OVERLAPPING
    return RetentionRow.TIME_BETWEEN
