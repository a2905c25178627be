"""Planted bugs in what groups hold of their streams. See ``docs/reader-groups.md``, "Retention"."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

from penstock.client.reader_group_keeper import GroupKeeper
from penstock.client.reader_group_state import GroupState
from penstock.model.names import segment_name
from penstock.model.stream_cuts import StreamCut
from penstock.testing.mutations.mutation import Mutation, patched
from penstock.testing.mutations.users import USERS

#: A stream that forgets all that it may, and two groups that subscribe to it, whose readers die.
SUBSCRIBERS = replace(USERS, name="subscribers", workloads=("events", "subscribers"), has_retention=True)


def _publish_what_was_handed_out() -> AbstractContextManager[None]:
    original = GroupKeeper._cuts

    def cuts(self: GroupKeeper, state: GroupState) -> dict[str, StreamCut]:
        ahead = {segment: offset for reader in state.readers.values() for segment, offset in reader.handed_out.items()}
        return {
            stream: replace(
                cut,
                positions={
                    number: max(offset, ahead.get(segment_name(cut.scope, cut.stream, number), 0))
                    for number, offset in cut.positions.items()
                },
            )
            for stream, cut in original(self, state).items()
        }

    return patched(GroupKeeper, "_cuts", cuts)


SUBSCRIBER_MUTATIONS = (
    Mutation(
        "publish what was handed out", "nothing goes that a subscriber has not worked off",
        SUBSCRIBERS, _publish_what_was_handed_out,
    ),
)  # fmt: skip
"""Bugs of this kind."""
