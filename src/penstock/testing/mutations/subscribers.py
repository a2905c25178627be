"""Planted bugs in what groups hold of their streams. See ``docs/reader-groups.md``, "Retention"."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

import msgspec

from penstock.client import reader_group_state as rgs
from penstock.client.group_state import GroupState
from penstock.client.reader_group_keeper import GroupKeeper
from penstock.model.names import segment_name
from penstock.model.stream_cuts import StreamCut
from penstock.testing.mutations.mutation import Mutation, patched, short_profile
from penstock.testing.mutations.users import USERS

#: A stream that forgets all that it may, and two groups that subscribe to it, whose readers die.
SUBSCRIBERS = replace(USERS, name="subscribers", workloads=("events", "subscribers"), has_retention=True)

_SHORT = replace(short_profile("short subscribers", "subscribers"), has_retention=True)


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


def _release_what_is_stored() -> AbstractContextManager[None]:
    def cuts(self: GroupKeeper, state: GroupState) -> dict[str, StreamCut]:
        return {stream: cut for stream, cut in rgs.stream_cuts(state).items() if cut.positions}

    return patched(GroupKeeper, "_cuts", cuts)


def _await_the_dead() -> AbstractContextManager[None]:
    original = rgs.leave

    def leave(state: GroupState, name: str, *arguments: object, **options: object) -> GroupState:
        left = original(state, name, *arguments, **options)  # type: ignore[arg-type]  # what it was called with
        return msgspec.structs.replace(left, checkpoint=state.checkpoint) if state.checkpoint.awaited else left

    return patched(rgs, "leave", leave)


SUBSCRIBER_MUTATIONS = (
    Mutation(
        "publish what was handed out", "nothing goes that a subscriber has not worked off",
        SUBSCRIBERS, _publish_what_was_handed_out,
    ),
    Mutation(
        "release what is stored, checkpoint or not", "a group releases nothing behind its last checkpoint",
        _SHORT, _release_what_is_stored,
    ),
    Mutation(
        "a checkpoint awaits readers that have died", "a group takes checkpoints whoever dies",
        _SHORT, _await_the_dead,
    ),
)  # fmt: skip
"""Bugs of this kind."""
