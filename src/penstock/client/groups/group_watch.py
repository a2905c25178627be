"""`GroupWatch`: one reader's schedule of polls and heartbeats, and its detection of dead readers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from itertools import islice

from penstock.client.groups.group_liveness import Liveness
from penstock.client.groups.group_pace import heartbeat_interval_s, next_tick_s, poll_interval_s
from penstock.client.groups.group_state import GroupState
from penstock.client.groups.reader_group_record import GroupRecord
from penstock.client.settings import ClientSettings
from penstock.model.errors import PenstockError

_log = logging.getLogger(__name__)

#: This many readers, the first by name, watch all others; all watch these.
WATCHER_COUNT = 3
#: A poll by another reader of the same client at most this share of the interval ago counts as one's own.
_SHARED_SHARE = 0.5
#: A heartbeat that failed is repeated after this share of its interval.
_RETRY_SHARE = 0.25

#: A reader's sign of life, when it changes: its incarnation, its count in the record, its own entry.
Sign = tuple[str, int, bytes]


def watched_by(name: str, readers: Mapping[str, object]) -> Collection[str]:
    """Return the readers that reader `name` of `readers`, which are in order, watches."""
    first = list(islice(readers, WATCHER_COUNT))
    return readers if name in first else first


class GroupWatch:
    """See the module. It receives each state of the record that the reader follows."""

    def __init__(self, record: GroupRecord, name: str, incarnation: str, settings: ClientSettings) -> None:
        self._record = record
        self._name = name
        self._incarnation = incarnation
        self._settings = settings
        self._reader_timeout_s = settings.reader_timeout_s
        self._reader_count = 1
        self._is_watcher = True
        self._revision = 0
        self._unchanged_count = 0
        self._polled_s = float("-inf")
        self._shown_s = asyncio.get_running_loop().time()
        self._has_own_entry = False
        self._liveness: Liveness[Sign] = Liveness()

    @property
    def shared_age_s(self) -> float:
        """Maximum age, in seconds, of a read by another reader of this client to count as a poll."""
        return self._interval_s() * _SHARED_SHARE

    def follow(self, state: GroupState) -> None:
        """Update from the record."""
        self._reader_timeout_s = state.reader_timeout_s
        self._reader_count = max(len(state.readers), 1)
        self._is_watcher = self._name in islice(state.readers, WATCHER_COUNT)
        if state.revision != self._revision:
            self._revision = state.revision
            self._unchanged_count = 0

    def is_poll_due(self) -> bool:
        """Return whether a poll of the record is due."""
        return asyncio.get_running_loop().time() >= self.poll_due_s()

    def poll_due_s(self) -> float:
        """Return when the next poll of the record is due, on the loop's clock."""
        return _tick_s(self._polled_s, self._interval_s(), self._record.phase)

    def polled(self) -> None:
        """Note that the record was read now, or the read failed."""
        self._polled_s = asyncio.get_running_loop().time()

    def shown(self) -> None:
        """Note that the record itself now contains a heartbeat of this reader."""
        self._shown_s = asyncio.get_running_loop().time()

    async def poll(self, state: GroupState) -> tuple[GroupState, dict[str, Sign]]:
        """Return the record, and its readers without a sign of life for the group's `reader_timeout_s`.

        `state`: the record as known. The last sign of each of them is as new as the record.
        """
        names = watched_by(self._name, state.readers)
        state, entries = await self._record.poll(names, self.shared_age_s)
        if state.revision == self._revision:
            self._unchanged_count += 1
        signs = {
            name: (state.readers[name].incarnation, state.readers[name].heartbeat, entries[name])
            for name in names
            if name in state.readers
        }
        self._liveness.observe(signs, asyncio.get_running_loop().time(), state.reader_timeout_s)
        return state, self._liveness.silent(state.reader_timeout_s, but=(self._name,))

    async def keep_alive(self, is_working: Callable[[], bool]) -> None:
        """Write heartbeats while the record contains none, whenever `is_working` returns True."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(max(self._heartbeat_due_s() - loop.time(), 0.0))
            if loop.time() < self._heartbeat_due_s():
                continue  # The record has contained one meanwhile.
            begun_s = loop.time()
            if is_working():
                self._has_own_entry = True
                limit_s = heartbeat_interval_s(self._reader_timeout_s)
                try:
                    await self._record.show_alive(self._name, self._incarnation, limit_s)
                except PenstockError as error:
                    _log.warning(
                        "reader %s could not show group %s that it is alive: %s", self._name, self._record.name, error
                    )
                    await asyncio.sleep(limit_s * _RETRY_SHARE)
                    continue
            self._shown_s = begun_s

    async def leave(self) -> None:
        """Delete this reader's own entry, if it may have one."""
        if self._has_own_entry:
            await self._record.forget_heartbeat(self._name)
            self._has_own_entry = False

    def _interval_s(self) -> float:
        return poll_interval_s(
            self._settings, self._reader_timeout_s, self._reader_count, self._unchanged_count,
            is_watcher=self._is_watcher,
        )  # fmt: skip

    def _heartbeat_due_s(self) -> float:
        return _tick_s(self._shown_s, heartbeat_interval_s(self._reader_timeout_s), self._record.phase)


def _tick_s(last_s: float, interval_s: float, phase: float) -> float:
    """Return when something last done at `last_s` is due: half an interval to one and a half later."""
    if last_s == float("-inf"):
        return last_s
    return next_tick_s(last_s + interval_s / 2, interval_s, phase)
