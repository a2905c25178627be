"""Planted bugs in how a group follows its set of streams. See ``docs/reader-groups.md``, "What a group reads"."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

import msgspec

from penstock.client.controller.reader_group_calls import RegisteredGroup
from penstock.client.groups import reader_group_state as rgs
from penstock.client.groups.group_state import GroupState
from penstock.client.groups.reader_group_streams import GroupStreams
from penstock.model.errors import NoSuchReaderGroupError
from penstock.model.policies import GroupRetention
from penstock_simulation.mutations.mutation import Mutation, patched
from penstock_simulation.mutations.users import USERS

#: A group whose streams are created and deleted, changed by calls that are cancelled at any await.
GROUP_CHANGES = replace(USERS, name="group changes", workloads=("events", "group changes"))


def _leave_the_record_behind() -> AbstractContextManager[None]:
    async def complete(self: GroupStreams) -> tuple[RegisteredGroup, GroupState]:
        registered = await self._cluster.controller.reader_group(self._record.scope, self._record.name)
        if registered is None:
            raise NoSuchReaderGroupError("no such group")
        return registered, await self._record.state()

    return patched(GroupStreams, "complete", complete)


def _begin_at_the_tail() -> AbstractContextManager[None]:
    original = GroupStreams._found

    async def found(
        self: GroupStreams, left: set[str], registered: RegisteredGroup, state: GroupState
    ) -> RegisteredGroup | None:
        wanted = await original(self, left, registered, state)
        if wanted is None:
            return None
        starts = dict(wanted.starts)
        for stream in starts.keys() - registered.starts.keys():
            starts[stream] = (await self._cluster.tail(stream)).positions
        return replace(wanted, starts=starts)

    return patched(GroupStreams, "_found", found)


def _begin_all_again() -> AbstractContextManager[None]:
    original = rgs.read_streams

    def read_streams(
        state: GroupState, starts: Mapping[str, Mapping[str, int]], ends: Mapping[str, int], generation: int,
        retention: GroupRetention | None = None,
    ) -> GroupState:  # fmt: skip
        # Treat all streams as new to the group.
        return original(msgspec.structs.replace(state, streams=[]), starts, ends, generation, retention)

    return patched(rgs, "read_streams", read_streams)


GROUP_MUTATIONS = (
    Mutation(
        "register a change of streams and leave the record behind", "a change that is cut off is completed",
        GROUP_CHANGES, _leave_the_record_behind,
    ),
    Mutation(
        "begin what a pattern finds at the tail", "streams that are found are read from their beginning",
        GROUP_CHANGES, _begin_at_the_tail,
    ),
    Mutation(
        "begin all streams again when one comes", "streams that stay are read on from their positions",
        GROUP_CHANGES, _begin_all_again,
    ),
)  # fmt: skip
"""Bugs of this kind."""
