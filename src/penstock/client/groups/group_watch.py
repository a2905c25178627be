"""`GroupWatch`: polls and heartbeats of all readers that one client has in a group, and its search for dead readers.

One task polls the record, one writes heartbeats: an idle reader has no timer of its own. After a poll each reader
decides, without a wait, whether there is anything to do for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Protocol

from penstock.client.common.tasks import start_watched
from penstock.client.groups.group_liveness import Liveness
from penstock.client.groups.group_pace import heartbeat_interval_s, next_tick_s, poll_interval_s
from penstock.client.groups.group_state import GroupState
from penstock.client.groups.reader_group_record import GroupRecord
from penstock.client.settings import ClientSettings
from penstock.model.errors import PenstockError

_log = logging.getLogger(__name__)

#: This many readers, the first by name, watch all others; all watch these.
WATCHER_COUNT = 3
#: A read of the record by a reader of the same client at most this share of the interval ago counts as a poll.
_SHARED_SHARE = 0.5
#: A heartbeat that failed is repeated after this share of its interval.
_RETRY_SHARE = 0.25

#: A reader's sign of life, when it changes: its incarnation, its count in the record, its own entry.
Sign = tuple[str, int, bytes]


class WatchingReader(Protocol):
    """A reader of this client. No call waits."""

    @property
    def name(self) -> str:
        """Its name in the group."""

    @property
    def incarnation(self) -> str:
        """Its incarnation."""

    def is_working(self) -> bool:
        """Return whether it is in the group, and has followed the record recently."""

    def polled(self, state: GroupState, dead: Mapping[str, Sign]) -> None:
        """Follow the record, read just now. `dead`: readers without a sign of life for the group's time-out."""

    def poll_failed(self, error: PenstockError) -> None:
        """Note that the record could not be read."""

    def watch_failed(self, error: PenstockError) -> None:
        """End: the group is no longer watched."""


def watched_by(names: Collection[str], readers: Mapping[str, object]) -> Collection[str]:
    """Return the readers of `readers`, which are in order, that a client with readers `names` watches."""
    first = list(islice(readers, WATCHER_COUNT))
    return readers if any(name in names for name in first) else first


class GroupWatch:
    """See the module. Its tasks run while it has readers."""

    def __init__(self, record: GroupRecord, settings: ClientSettings, state: GroupState) -> None:
        self._record = record
        self._settings = settings
        self._state = state
        self._unchanged_count = 0
        self._polled_s = float("-inf")
        self._liveness: Liveness[Sign] = Liveness()
        #: For each reader, when a heartbeat of it was written last, on the loop's clock.
        self._shown_s: dict[WatchingReader, float] = {}
        #: Readers that may have an entry of their own in the group's table.
        self._with_entry: set[WatchingReader] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._is_changed = asyncio.Event()

    @property
    def shared_age_s(self) -> float:
        """Maximum age, in seconds, of a read of the record that counts as a poll."""
        return self._interval_s() * _SHARED_SHARE

    def add(self, reader: WatchingReader) -> None:
        """Poll and write heartbeats for a reader, too."""
        self._shown_s[reader] = asyncio.get_running_loop().time()
        if not self._tasks:
            # Separate tasks: a poll may wait for a reply for longer than the others wait for a heartbeat.
            group = self._record.name
            self._tasks = [
                start_watched(self._keep_polling(), f"poll group {group}", self._fail),
                start_watched(self._keep_alive(), f"show that readers of group {group} are alive", self._fail),
            ]

    def discard(self, reader: WatchingReader) -> None:
        """End polls and heartbeats for a reader."""
        self._shown_s.pop(reader, None)
        if self._shown_s:
            return
        for task in self._tasks:
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        self._tasks = []

    async def stop(self, reader: WatchingReader) -> None:
        """Discard a reader, and wait for tasks that have no reader any more."""
        self.discard(reader)
        if self._ending:
            await asyncio.wait(self._ending)

    async def leave(self, reader: WatchingReader) -> None:
        """Delete the entry of a reader that has left, if it may have one."""
        if reader in self._with_entry:
            await self._record.forget_heartbeat(reader.name)
            self._with_entry.discard(reader)

    def follow(self, state: GroupState) -> None:
        """Update from the record."""
        if state.revision < self._state.revision:
            return
        if state.revision != self._state.revision:
            self._unchanged_count = 0
            self._is_changed.set()
        self._state = state

    def shown(self, reader: WatchingReader) -> None:
        """Note that the record itself now contains a heartbeat of a reader."""
        if reader in self._shown_s:
            self._shown_s[reader] = asyncio.get_running_loop().time()

    # -- the tasks ----------------------------------------------------------------------------------------------

    async def _keep_polling(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while (due_s := self._poll_due_s()) > loop.time():
                self._is_changed.clear()
                try:
                    async with asyncio.timeout_at(due_s):
                        # Polls are more frequent after a change.
                        await self._is_changed.wait()
                except TimeoutError:
                    pass
            try:
                await self._poll()
            except PenstockError as error:
                for reader in self._readers():
                    reader.poll_failed(error)
                await asyncio.sleep(self._settings.retry_delay_initial_s)

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        names = watched_by({reader.name for reader in self._shown_s}, self._state.readers)
        revision = self._state.revision
        age_s = self.shared_age_s
        self._polled_s = loop.time()
        state, entries = await self._record.poll(names, age_s)
        if state.revision == revision:
            self._unchanged_count += 1
        self.follow(state)
        signs = {
            name: (state.readers[name].incarnation, state.readers[name].heartbeat, entries[name])
            for name in names
            if name in state.readers
        }
        self._liveness.observe(signs, loop.time(), state.reader_timeout_s)
        dead = self._liveness.silent(state.reader_timeout_s)
        for reader in self._readers():
            reader.polled(state, {name: sign for name, sign in dead.items() if name != reader.name})

    async def _keep_alive(self) -> None:
        """Write heartbeats of working readers while the record contains none."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(max(min(map(self._heartbeat_due_s, self._shown_s)) - loop.time(), 0.0))
            begun_s = loop.time()
            due = [reader for reader in self._shown_s if self._heartbeat_due_s(reader) <= begun_s]
            working = {reader.name: reader.incarnation for reader in due if reader.is_working()}
            if working:
                self._with_entry.update(reader for reader in due if reader.name in working)
                limit_s = heartbeat_interval_s(self._state.reader_timeout_s)
                try:
                    await self._record.show_alive(working, limit_s)
                except PenstockError as error:
                    _log.warning(
                        "%d readers, the first is %s, could not show group %s that they are alive: %s",
                        len(working), next(iter(working)), self._record.name, error,
                    )  # fmt: skip
                    await asyncio.sleep(limit_s * _RETRY_SHARE)
                    continue
            for reader in due:
                if reader in self._shown_s:
                    self._shown_s[reader] = max(self._shown_s[reader], begun_s)

    def _readers(self) -> Iterator[WatchingReader]:
        """Return the readers, without those that end meanwhile."""
        return (reader for reader in list(self._shown_s) if reader in self._shown_s)

    def _fail(self, error: PenstockError) -> None:
        for reader in self._readers():
            reader.watch_failed(error)

    def _interval_s(self) -> float:
        first = set(islice(self._state.readers, WATCHER_COUNT))
        return poll_interval_s(
            self._settings,
            self._state.reader_timeout_s,
            max(len(self._state.readers), 1),
            self._unchanged_count,
            is_watcher=any(reader.name in first for reader in self._shown_s),
        )

    def _poll_due_s(self) -> float:
        return _tick_s(self._polled_s, self._interval_s(), self._record.phase)

    def _heartbeat_due_s(self, reader: WatchingReader) -> float:
        return _tick_s(self._shown_s[reader], heartbeat_interval_s(self._state.reader_timeout_s), self._record.phase)


def _tick_s(last_s: float, interval_s: float, phase: float) -> float:
    """Return when something last done at `last_s` is due: half an interval to one and a half later."""
    if last_s == float("-inf"):
        return last_s
    return next_tick_s(last_s + interval_s / 2, interval_s, phase)
