"""Where a stream is to begin: what its policy and its subscribers allow. Pure.

The minimum is always kept. Between minimum and maximum the subscribers decide: what one of them has not acknowledged
stays. Past the maximum data go, read or not. Cuts that were recorded in the past stand for ages and sizes.

Source: controller internals specification, sections 8.3 to 8.5; PDP-47.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.controller.stream_cuts import CutOrder


class Choice(Enum):
    """A place to begin at.

    Attributes:
        NOTHING: none: the stream begins where it does.
        MIN_CUT: the newest recorded cut behind which the minimum is kept.
        BOUND: where the subscribers are that have come least far, key by key.
        BEFORE_BOUND: the newest recorded cut that none of the subscribers has yet to come to.
        MAX_CUT: the oldest recorded cut behind which there is no more than the maximum, or `MIN_CUT` without one.
        MAX_BOUND: the newest recorded cut that is as old as the maximum, or older.
    """

    NOTHING = "nothing"
    MIN_CUT = "minimum"
    BOUND = "subscribers"
    BEFORE_BOUND = "before subscribers"
    MAX_CUT = "maximum"
    MAX_BOUND = "age of the maximum"


class Row(Enum):
    """A row of the tables in ``docs/retention.md``: what is the case. `choice` is what follows.

    Names are in the controller's protocol: never rename.
    """

    #: No cut is recorded, nor is there anything to record.
    NO_CUTS = 1, Choice.NOTHING
    SIZE_NO_SUBSCRIBERS = 2, Choice.MIN_CUT
    #: Between the bound and the newest cut there is less than the minimum; no cut keeps that.
    SIZE_BELOW_MIN_WITHOUT_CUT = 3, Choice.NOTHING
    #: The same; the bound is behind the cut that does.
    SIZE_BELOW_MIN = 4, Choice.MIN_CUT
    #: The same; the bound is not behind that cut on all keys.
    SIZE_BELOW_MIN_OVERLAPPING = 5, Choice.BEFORE_BOUND
    SIZE_BETWEEN = 6, Choice.BOUND
    SIZE_PAST_MAX = 7, Choice.MAX_CUT
    #: The maximum, or more; its cut would keep as much as the bound, or more.
    SIZE_PAST_MAX_WITHOUT_GAIN = 8, Choice.BOUND
    TIME_NO_SUBSCRIBERS = 9, Choice.MIN_CUT
    #: No cut has the minimum's age.
    TIME_WITHOUT_CUT = 10, Choice.NOTHING
    #: The bound is behind the newest cut of the minimum's age.
    TIME_ABOVE_MIN = 11, Choice.MIN_CUT
    TIME_MIN_OVERLAPPING = 12, Choice.BEFORE_BOUND
    TIME_BETWEEN = 13, Choice.BOUND
    #: The bound is before the newest cut of the maximum's age.
    TIME_PAST_MAX = 14, Choice.MAX_CUT
    TIME_MAX_OVERLAPPING = 15, Choice.MAX_BOUND

    @property
    def choice(self) -> Choice:
        """Where a stream is to begin of which this is the case."""
        _, choice = self.value
        return choice


@dataclass(frozen=True, slots=True)
class SizeSituation:
    """What a choice by size needs of a stream that has subscribers.

    `retained_bytes`: between the subscribers' bound and the newest recorded cut. `min_cut_order`: how the minimum's cut
    lies to the bound; None without such a cut. `max_cut_retained_bytes`: as the first, for the maximum's cut.
    `max_bytes` None: there is no maximum.
    """

    min_bytes: int
    max_bytes: int | None
    retained_bytes: int
    min_cut_order: CutOrder | None
    max_cut_retained_bytes: int


def choose_by_size(situation: SizeSituation) -> Row:
    """Return what is the case of a stream with subscribers that keeps so many bytes."""
    retained = situation.retained_bytes
    if retained < situation.min_bytes:
        if situation.min_cut_order is None:
            return Row.SIZE_BELOW_MIN_WITHOUT_CUT
        is_before = situation.min_cut_order is CutOrder.BEFORE
        return Row.SIZE_BELOW_MIN if is_before else Row.SIZE_BELOW_MIN_OVERLAPPING
    if situation.max_bytes is None or retained < situation.max_bytes:
        return Row.SIZE_BETWEEN
    has_gain = situation.max_cut_retained_bytes < retained
    return Row.SIZE_PAST_MAX if has_gain else Row.SIZE_PAST_MAX_WITHOUT_GAIN


def choose_by_time(min_cut_order: CutOrder | None, max_bound_order: CutOrder | None) -> Row:
    """Return what is the case of a stream with subscribers that keeps what is not so old.

    `min_cut_order`: how the minimum's cut lies to the bound of the subscribers; None without such a cut.
    `max_bound_order`: how that bound lies to the newest cut that is as old as the maximum; None without one.
    """
    match min_cut_order:
        case None:
            return Row.TIME_WITHOUT_CUT
        case CutOrder.BEFORE:
            return Row.TIME_ABOVE_MIN
        case CutOrder.OVERLAPPING:
            return Row.TIME_MIN_OVERLAPPING
    match max_bound_order:
        case CutOrder.BEFORE:
            return Row.TIME_PAST_MAX
        case CutOrder.OVERLAPPING:
            return Row.TIME_MAX_OVERLAPPING
    return Row.TIME_BETWEEN
