"""Planted bugs in how subscribed groups retain their streams. See ``docs/reader-groups.md``, "Retention"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import msgspec

from penstock.client.groups import reader_group_state as rgs
from penstock.client.groups.group_state import GroupState
from penstock.client.groups.reader_group_leader import GroupLeader
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.subscribers import published_cuts
from penstock.controller.retention import plan, retention
from penstock.controller.retention.decision import RetentionRow, SizeSituation
from penstock.controller.retention.plan import Situation
from penstock.controller.retention.subscriber_bound import bound_of
from penstock.controller.stream_cuts import Position
from penstock.model.names import segment_name
from penstock.model.stream_cuts import StreamCut
from penstock.segmentstore.tier2.garbage import GarbageQueue
from penstock.segmentstore.tier2.metadata import MetadataTransaction
from penstock_simulation.mutations.mutation import Mutation, patched, short_profile
from penstock_simulation.mutations.users import USERS

#: A stream that is truncated as far as allowed, and two subscribed groups whose readers crash.
SUBSCRIBERS = replace(USERS, name="subscribers", workloads=("events", "subscribers"), has_retention=True)

#: Policies with a minimum and a maximum, and a subscriber that is silent for long. No clock jumps: the age of data
#: comes from the clock, and a wrong clock truncates too much or too little.
LIMITED_SUBSCRIBERS = replace(
    USERS, name="limited subscribers", workloads=("events", "limited subscribers"), has_retention=True,
    plan=replace(USERS.plan, kinds=tuple(kind for kind in USERS.plan.kinds if kind != "ClockJump")),
)  # fmt: skip
_SHORT = replace(short_profile("short subscribers", "subscribers"), has_retention=True)
_SHORT_LIMITED = replace(short_profile("short limited subscribers", "limited subscribers"), has_retention=True)


def _publish_what_was_handed_out() -> AbstractContextManager[None]:
    original = GroupLeader._cuts

    def cuts(self: GroupLeader, state: GroupState) -> dict[str, StreamCut]:
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

    return patched(GroupLeader, "_cuts", cuts)


def _release_what_is_stored() -> AbstractContextManager[None]:
    def cuts(self: GroupLeader, state: GroupState) -> dict[str, StreamCut]:
        return {stream: cut for stream, cut in rgs.stream_cuts(state).items() if cut.positions}

    return patched(GroupLeader, "_cuts", cuts)


def _await_the_dead() -> AbstractContextManager[None]:
    original = rgs.leave

    def leave(state: GroupState, name: str, *arguments: object, **options: object) -> GroupState:
        left = original(state, name, *arguments, **options)  # type: ignore[arg-type]  # the arguments of the call
        return msgspec.structs.replace(left, checkpoint=state.checkpoint) if state.checkpoint.awaited else left

    return patched(rgs, "leave", leave)


def _take_the_minimum_for_the_maximum() -> AbstractContextManager[None]:
    return patched(Situation, "max_limit", property(lambda self: self.policy.min_limit))


def _forget_the_maximum() -> AbstractContextManager[None]:
    return patched(Situation, "max_limit", None)


def _pass_over_who_is_silent() -> AbstractContextManager[None]:
    async def bound(tables: StreamTables, head: Mapping[int, int]) -> Position | None:
        published = await published_cuts(tables)
        return await bound_of(tables, head, {who: cut for who, cut in published.items() if cut})

    return patched(retention, "subscriber_bound", bound)


def _delete_beyond_the_minimum() -> AbstractContextManager[None]:
    def choose(situation: SizeSituation) -> RetentionRow:
        return RetentionRow.SIZE_BETWEEN

    return patched(plan, "choose_by_size", choose)


def _leave_chunks_behind() -> AbstractContextManager[None]:
    def stage(self: GarbageQueue, transaction: MetadataTransaction, names: Sequence[str]) -> None:
        pass

    return patched(GarbageQueue, "stage", stage)


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
        "a checkpoint awaits readers that have died", "a group takes checkpoints although readers die",
        _SHORT, _await_the_dead,
    ),
    Mutation(
        "take the minimum for the maximum", "what is unread goes only once the maximum says so",
        _SHORT_LIMITED, _take_the_minimum_for_the_maximum,
    ),
    Mutation(
        "forget the maximum", "a subscriber that is silent is overtaken by the maximum",
        _SHORT_LIMITED, _forget_the_maximum,
    ),
    Mutation(
        "pass over who has published nothing", "a subscriber that has published nothing holds the head",
        _SHORT_LIMITED, _pass_over_who_is_silent,
    ),
    Mutation(
        "truncate where subscribers are, whatever the minimum", "the minimum is kept",
        _SHORT_LIMITED, _delete_beyond_the_minimum,
    ),
    Mutation(
        "leave the chunks of what is truncated", "after truncation the chunks go too",
        _SHORT_LIMITED, _leave_chunks_behind,
    ),
)  # fmt: skip
"""Bugs of this kind."""
