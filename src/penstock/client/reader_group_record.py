"""`GroupRecord`: the shared state of a reader group, as it is stored. What it means is in `reader_group_state`.

One record in a table segment of its own, changed by compare-and-set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.client.cluster import Cluster
from penstock.client.deadline import within
from penstock.client.group_packing import pack_record, part_count, unpack_record
from penstock.client.group_state import GroupState
from penstock.client.retry import Backoff
from penstock.model.errors import (
    MetadataConflictError,
    NoSuchReaderGroupError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    SegmentExistsError,
    TableKeyMissingError,
    TableKeyVersionError,
)
from penstock.model.names import reader_group_table
from penstock.model.segments import VERSION_ABSENT, VERSION_ANY, TableUpdate

_KEY = b"state"
#: The longest pause after the first lost race; it doubles with each further one.
_UPDATE_PAUSE_MAX_S = 0.02
_UPDATE_PAUSE_S_LIMIT = 1.0


class GroupRecord:
    """The record of the group `name` in `scope`, in the life of that name that has the id `group_id`."""

    def __init__(self, cluster: Cluster, scope: str, name: str, group_id: str) -> None:
        self.scope = scope
        self.name = name
        self.group_id = group_id
        self._table = reader_group_table(scope, group_id)
        self._cluster = cluster

    async def find_or_create(self, make: Callable[[], Awaitable[GroupState]]) -> GroupState:
        """Return the record; one that `make` returns when there is none, which may be called more than once."""
        segments, settings = self._cluster.segments, self._cluster.settings
        backoff = Backoff(settings, self._cluster.rng)
        with within(f"join reader group {self.scope}/{self.name}", settings.retry_time_max_s, "retry_time_max_s"):
            while True:
                try:
                    try:
                        await segments.create_table(self._table)
                    except SegmentExistsError:
                        pass  # The group exists, or another client is creating it right now.
                    (entry,) = await segments.table_get(self._table, [_KEY])
                    if entry is not None:
                        return await self.state()
                    state = await make()
                    await self._put(state, VERSION_ABSENT)
                    return state
                except (OutcomeUnknownError, TableKeyVersionError) as error:
                    # Each step may be taken again: look what is there, and go on from that.
                    await backoff.pause(error)

    async def delete(self) -> None:
        """Delete it, if it is there."""
        try:
            await self._cluster.segments.delete_table(self._table)
        except NoSuchSegmentError:
            return

    async def state(self) -> GroupState:
        """Return the record as it is now. Raises `NoSuchReaderGroupError` when the group was deleted."""
        return (await self._read())[0]

    async def update(self, step: Callable[[GroupState], GroupState]) -> GroupState:
        """Take `step`, which must be idempotent, on the record; return the record after it.

        Raises `MetadataConflictError` after `reader_group_update_count_max` lost races.
        """
        settings = self._cluster.settings
        attempt_count_max = settings.reader_group_update_count_max
        with within(f"update reader group {self.scope}/{self.name}", settings.retry_time_max_s, "retry_time_max_s"):
            pause_s_max = _UPDATE_PAUSE_MAX_S
            for _ in range(attempt_count_max):
                state, version = await self._read()
                changed = step(state)
                if changed == state:
                    return state
                try:
                    await self._put(changed, version)
                    return changed
                except (TableKeyVersionError, TableKeyMissingError, OutcomeUnknownError):
                    # A lost race or a lost reply. Repeating the step does no harm. The more contention, the longer.
                    await asyncio.sleep(pause_s_max * self._cluster.rng.random())
                    pause_s_max = min(pause_s_max * 2, _UPDATE_PAUSE_S_LIMIT)
                except NoSuchSegmentError as error:
                    raise self._gone() from error
        raise MetadataConflictError(
            f"reader group {self.scope}/{self.name}: {attempt_count_max} updates in a row lost against other readers"
        )

    async def _put(self, state: GroupState, version: int) -> None:
        parts = pack_record(state.encode())
        updates = [TableUpdate(_KEY, parts[0], version)]
        # On condition of the first part alone: all are written together, or none.
        updates += [TableUpdate(_part_key(number), part, VERSION_ANY) for number, part in enumerate(parts[1:], 1)]
        await self._cluster.segments.table_put(self._table, updates)

    async def _read(self) -> tuple[GroupState, int]:
        for _ in range(self._cluster.settings.reader_group_update_count_max):
            found = await self._read_once()
            if found is not None:
                return found
        raise MetadataConflictError(f"reader group {self.scope}/{self.name}: the record changes faster than it is read")

    async def _read_once(self) -> tuple[GroupState, int] | None:
        """Return the record and its version; None if it changed while its parts were read."""
        segments = self._cluster.segments
        try:
            (entry,) = await segments.table_get(self._table, [_KEY])
            if entry is None:
                raise NoSuchReaderGroupError(f"reader group {self.scope}/{self.name} has no state")
            parts = [entry.value]
            for number in range(1, part_count(entry.value)):
                (part,) = await segments.table_get(self._table, [_part_key(number)])
                if part is None:
                    return None
                parts.append(part.value)
            if len(parts) > 1:
                (again,) = await segments.table_get(self._table, [_KEY])
                if again is None or again.version != entry.version:
                    return None
        except NoSuchSegmentError as error:
            raise self._gone() from error
        return GroupState.decode(unpack_record(parts)), entry.version

    def _gone(self) -> NoSuchReaderGroupError:
        return NoSuchReaderGroupError(f"reader group {self.scope}/{self.name} does not exist any more")


def _part_key(number: int) -> bytes:
    return b"%s/%d" % (_KEY, number)
