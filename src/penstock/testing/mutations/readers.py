"""Planted bugs in what readers of a group promise. See ``docs/reader-groups.md`` for the rules that they break."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

from penstock.client.reader import Reader
from penstock.client.segment_events import SegmentEvents
from penstock.testing.mutations.mutation import Mutation, patched
from penstock.testing.mutations.users import USERS
from penstock.testing.workloads.users import Fate, UserHabits


def _count_what_failed_as_read() -> AbstractContextManager[None]:
    def position_of(self: Reader, source: SegmentEvents, *, is_leaving: bool) -> int | None:
        # Whether the application got through with it is what is not asked.
        return self.position()[source.segment]

    return patched(Reader, "_position_of", position_of)


def _give_away_what_is_in_hand() -> AbstractContextManager[None]:
    def is_settled(self: Reader, source: SegmentEvents) -> bool:
        return True

    return patched(Reader, "_is_settled", is_settled)


READER_MUTATIONS = (
    Mutation(
        "count what failed as read", "an exception never counts events as read",
        replace(USERS, name="failing users", habits=UserHabits(fates=(Fate.FAILS,))), _count_what_failed_as_read,
    ),
    Mutation(
        "give away what is in hand", "a segment moves when nothing of it is with the application",
        replace(USERS, name="many users", habits=UserHabits(fates=(Fate.LEAVES,), reader_count=4)),
        _give_away_what_is_in_hand,
    ),
)  # fmt: skip
