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


def choose_by_size(situation: SizeSituation) -> Choice:
    """Return where a stream with subscribers is to begin that keeps so many bytes."""
    retained = situation.retained_bytes
    if retained < situation.min_bytes:
        if situation.min_cut_order is None:
            return Choice.NOTHING
        return Choice.MIN_CUT if situation.min_cut_order is CutOrder.BEFORE else Choice.BEFORE_BOUND
    if situation.max_bytes is None or retained < situation.max_bytes:
        return Choice.BOUND
    return Choice.MAX_CUT if situation.max_cut_retained_bytes < retained else Choice.BOUND


def choose_by_time(min_cut_order: CutOrder | None, max_bound_order: CutOrder | None) -> Choice:
    """Return where a stream with subscribers is to begin that keeps what is not so old.

    `min_cut_order`: how the minimum's cut lies to the bound of the subscribers; None without such a cut.
    `max_bound_order`: how that bound lies to the newest cut that is as old as the maximum; None without one.
    """
    match min_cut_order:
        case None:
            return Choice.NOTHING
        case CutOrder.BEFORE:
            return Choice.MIN_CUT
        case CutOrder.OVERLAPPING:
            return Choice.BEFORE_BOUND
    match max_bound_order:
        case CutOrder.BEFORE:
            return Choice.MAX_CUT
        case CutOrder.OVERLAPPING:
            return Choice.MAX_BOUND
    return Choice.BOUND
