"""`SegmentMetadataTable`: the table of records of stored segments, with commits of several segments at once.

Each flush ends with a commit of its segment's records. Commits that arrive while one is running are batched into the
next round: one update of the table and one record of the log for many flushed segments. The update is conditional and
atomic, like a single commit: after a crash all commits of a round are applied or none, and every segment's records are
the same as with separate commits.

| Event | Effect on the commits of the round |
|---|---|
| a condition of one commit fails | nothing is applied; each is retried alone, and that one is rejected |
| the log fails, or its outcome is unknown | the outcome of each is unknown |
| a caller is cancelled | the round continues; the outcome is unknown to that caller |
| the container stops | the outcome of each is unknown |
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from penstock.model.errors import OutcomeUnknownError, TableKeyMissingError, TableKeyVersionError
from penstock.model.segments import TableEntry, TablePage, TableRemoval, TableUpdate
from penstock.segmentstore.container.log.checkpoints import Spawn
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container.tables.tables import Tables

#: Records changed in one round, unless a single commit has more; planning them takes a few milliseconds.
_ROUND_UPDATES_MAX = 256


@dataclass(frozen=True, slots=True, eq=False)
class _Commit:
    """A pending commit; `done` gets the new versions of its records."""

    updates: Sequence[TableUpdate]
    removals: Sequence[TableRemoval]
    done: asyncio.Future[Sequence[int]]


class SegmentMetadataTable:
    """`MetadataTable` over a table segment of the same container. Rounds are jobs of the container (`spawn`).

    Attributes:
        commit_count: commits applied so far.
        round_count: updates of the table that applied them.
    """

    def __init__(self, tables: Tables, segment: Segment, spawn: Spawn) -> None:
        self.commit_count: int = 0
        self.round_count: int = 0
        self._tables = tables
        self._segment = segment
        self._waiting: deque[_Commit] = deque()
        self._spawn = spawn
        self._is_spawned = False

    async def get(self, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        """See `MetadataTable.get`."""
        return await self._tables.get(self._segment, keys)

    async def commit(self, updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> Sequence[int]:
        """See `MetadataTable.commit`. Batched with other pending commits."""
        commit = _Commit(updates, removals, asyncio.get_running_loop().create_future())
        self._waiting.append(commit)
        if not self._is_spawned:
            self._is_spawned = True
            self._spawn(self._do_rounds())
        return await asyncio.shield(commit.done)

    async def page(self, *, limit: int, token: bytes = b"", first: bytes = b"", last: bytes | None = None) -> TablePage:
        """See `MetadataTable.page`."""
        return await self._tables.entries(self._segment, limit=limit, token=token, first=first, last=last)

    async def _do_rounds(self) -> None:
        try:
            while self._waiting:
                await self._do_round(self._take_round())
        finally:
            self._is_spawned = False
            while self._waiting:
                self._give_up(self._waiting.popleft())

    def _take_round(self) -> list[_Commit]:
        """Take the commits of the next round: the oldest ones, with no record twice."""
        taken: list[_Commit] = []
        keys: set[bytes] = set()
        count = 0
        while self._waiting:
            commit = self._waiting[0]
            own = {bytes(update.key) for update in commit.updates}
            own.update(bytes(removal.key) for removal in commit.removals)
            if taken and (count + len(commit.updates) > _ROUND_UPDATES_MAX or not keys.isdisjoint(own)):
                break
            taken.append(self._waiting.popleft())
            keys |= own
            count += len(commit.updates)
        return taken

    async def _do_round(self, commits: list[_Commit]) -> None:
        try:
            await self._apply(commits)
        except (TableKeyVersionError, TableKeyMissingError) as error:
            if len(commits) == 1:
                _refuse(commits[0], error)
                return
            for commit in commits:
                await self._do_round([commit])
        except asyncio.CancelledError:
            for commit in commits:
                self._give_up(commit)
            raise
        except Exception as error:  # noqa: BLE001 - passed to every waiting caller
            for commit in commits:
                _refuse(commit, error)

    def _give_up(self, commit: _Commit) -> None:
        _refuse(commit, OutcomeUnknownError(f"{self._segment.name}: the container stops during a commit"))

    async def _apply(self, commits: list[_Commit]) -> None:
        updates = [update for commit in commits for update in commit.updates]
        removals = [TableRemoval(removal.key) for commit in commits for removal in commit.removals]
        versions = iter(await self._tables.put(self._segment, updates, -1) if updates else ())
        self.round_count += 1
        self.commit_count += len(commits)
        found = [(commit, list(islice(versions, len(commit.updates)))) for commit in commits]
        for commit, own in found:
            if not commit.removals:
                _end(commit, own)
        if removals:
            await self._tables.remove(self._segment, removals, -1)
            for commit, own in found:
                _end(commit, own)


def _end(commit: _Commit, versions: Sequence[int]) -> None:
    if not commit.done.done():
        commit.done.set_result(versions)


def _refuse(commit: _Commit, error: Exception) -> None:
    if not commit.done.done():
        commit.done.set_exception(error)
        commit.done.exception()  # Its caller may have been cancelled.
