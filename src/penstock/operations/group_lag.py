"""`GroupLags`: how far reader groups are behind, in bytes and in seconds, measured beside a controller.

A round reads the stored positions of each group and the lengths of its segments. The lag in seconds is the time since a
segment first was longer than the group's position in it, so it needs a history of lengths: it begins when this process
does, and reaches back six hours. Groups of other clients keep their positions in forms of their own and are left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from penstock.client.groups import reader_group_state as rgs
from penstock.client.groups.stored_group import read_group
from penstock.client.groups.subscribers import subscriber_kind
from penstock.controller.metadata.catalog import NamePage
from penstock.controller.service import ControllerService
from penstock.model.errors import NoSuchReaderGroupError, NoSuchScopeError, NoSuchSegmentError, PenstockError
from penstock.model.length_history import LengthHistory
from penstock.model.names import reader_group_table
from penstock.model.segments import SegmentInfo, Segments
from penstock.operations.metrics import Metrics
from penstock.runtime.bulk import for_each

_log = logging.getLogger(__name__)

#: Time between two rounds, and between two listings of all groups.
ROUND_S = 10.0
_LISTING_S = 60.0
#: Time for a round. A group that was not measured in it keeps its last numbers, which then become older.
_ROUND_TIMEOUT_S = 60.0
#: Groups measured at the same time, segments of one group, and segments with a history.
_AT_ONCE = 8
_SEGMENTS_OF_GROUP_MAX = 10_000
_HISTORIES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class MeasuredLag:
    """A group at one moment.

    Attributes:
        unread_bytes: in the segments that the group knows.
        waited_s: how long the oldest unread byte has waited, in seconds; 0 if there is none.
        is_capped: `waited_s` is a lower bound: the byte is older than the history.
        reader_count, unassigned_count: readers, and segments that no reader holds.
    """

    unread_bytes: int
    waited_s: float
    is_capped: bool
    reader_count: int
    unassigned_count: int


class GroupLags:
    """See the module. Use `start`, `collect` at each scrape, and `stop`.

    Args:
        service: lists the groups; those in its buckets are measured here.
        segments: reads positions and lengths.
        groups_max: groups that are measured, the first ones found.
    """

    def __init__(self, service: ControllerService, segments: Segments, groups_max: int) -> None:
        self._service = service
        self._segments = segments
        self._groups_max = groups_max
        self._task: asyncio.Task[None] | None = None
        self._listed_s = float("-inf")
        #: Table of each group that is measured, and the number of groups that are not.
        self._tables: dict[str, str] = {}
        self._left_out_count = 0
        self._histories: dict[str, LengthHistory] = {}
        #: Segments of each group when its state was read last.
        self._segments_of: dict[str, frozenset[str]] = {}
        self.lags: dict[str, MeasuredLag] = {}

    def start(self) -> None:
        """Begin to measure."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="lag of reader groups")

    async def stop(self) -> None:
        """Measure no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def collect(self, metrics: Metrics) -> None:
        """Add the numbers of the last round."""
        for name, lag in self.lags.items():
            scope, _, group = name.partition("/")
            for metric, help_text, value in (
                ("reader_group_lag_bytes", "Bytes that a reader group has not read.", lag.unread_bytes),
                ("reader_group_lag_seconds", "How long the oldest unread byte has waited.", lag.waited_s),
                ("reader_group_lag_is_capped", "Whether the lag in seconds is a lower bound.", int(lag.is_capped)),
                ("reader_group_readers", "Readers of a reader group.", lag.reader_count),
                ("reader_group_unassigned_segments", "Segments that no reader holds.", lag.unassigned_count),
                (
                    "reader_group_is_subscriber",
                    "Whether a group is the position of a Spark query or an export, which have no readers.",
                    int(bool(subscriber_kind(name))),
                ),
            ):
                metrics.gauge(metric, help_text, value, scope=scope, group=group)
        metrics.gauge(
            "reader_groups_left_out", "Reader groups without metrics, because there are too many.",
            self._left_out_count,
        )  # fmt: skip

    async def _run(self) -> None:
        """Measure until cancelled. A failed round is logged; its groups keep their last numbers."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            try:
                async with asyncio.timeout(_ROUND_TIMEOUT_S):
                    await self.measure()
            except (PenstockError, TimeoutError) as error:
                _log.info("lag of reader groups not measured, next attempt in %g s: %s", ROUND_S, error)
            except Exception:  # noqa: BLE001  # the log gets the details
                # A defect. Without another round the numbers would never change again.
                _log.exception("lag of reader groups not measured because of an unexpected error")
                self.lags.clear()
            await asyncio.sleep(max(began_s + ROUND_S - loop.time(), 0.1))

    async def measure(self) -> None:
        """Measure all groups once. Raises what listing raises; a group that cannot be read keeps its last numbers."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._listed_s >= _LISTING_S:
            await self._list()
            self._listed_s = now_s
        names = list(self._tables)
        found = await for_each(names, self._state_of, _AT_ONCE)
        wanted = {segment for state in found if isinstance(state, _Read) for segment in state.positions}
        lengths, failures = await self._lengths(wanted)
        now_s = asyncio.get_running_loop().time()
        for name, state in zip(names, found, strict=True):
            if isinstance(state, _Read):
                self._segments_of[name] = frozenset(state.positions)
            elif isinstance(state, NoSuchReaderGroupError | NoSuchSegmentError):
                self._forget(name)
        self._note(now_s, lengths, wanted - lengths.keys() - failures.keys())
        for name, state in zip(names, found, strict=True):
            if isinstance(state, _Read):
                # Without the length of a segment the lag would be too small.
                failure = next((failures[segment] for segment in state.positions if segment in failures), None)
                if failure is None:
                    self.lags[name] = _lag(state, lengths, self._histories, now_s)
                else:
                    _log.info("lag of reader group %s not measured, next attempt in %g s: %s", name, ROUND_S, failure)
            elif name in self._tables:
                _log.info("lag of reader group %s not measured, next attempt in %g s: %s", name, ROUND_S, state)

    def _forget(self, name: str) -> None:
        """Measure a group no more: it is deleted, or in the bucket of another controller."""
        for kept in (self._tables, self.lags, self._segments_of):
            kept.pop(name, None)

    def forget_listing(self) -> None:
        """List the groups in the next round."""
        self._listed_s = float("-inf")

    async def _list(self) -> None:
        """Find the groups in this controller's buckets. Known groups stay measured until they are deleted."""
        service = self._service
        there: dict[str, None] = {}
        for scope in await _all(service.list_scopes):
            if scope.startswith("_"):
                continue

            async def page(token: str, scope: str = scope) -> NamePage:
                return await service.reader_groups.list(scope, token)

            try:
                names = await _all(page)
            except NoSuchScopeError:
                continue  # Deleted since it was listed.
            there.update({f"{scope}/{name}": None for name in names if service.retention_buckets.owned(scope, name)})
        for name in self._tables.keys() - there.keys():
            self._forget(name)
        new = [name for name in there if name not in self._tables]
        room = max(self._groups_max - len(self._tables), 0)
        self._left_out_count = max(len(new) - room, 0)
        for name in new[:room]:
            scope, _, group = name.partition("/")
            try:
                record = await service.reader_groups.get(scope, group)
            except NoSuchReaderGroupError:
                continue  # Deleted since it was listed.
            self._tables[name] = reader_group_table(scope, record.id)

    async def _state_of(self, name: str) -> _Read:
        found = await read_group(self._segments, self._tables[name])
        if found is None:
            raise PenstockError(f"reader group {name}: the record changed while it was read")
        state, _ = found
        positions = rgs.positions_of(state)
        if len(positions) > _SEGMENTS_OF_GROUP_MAX:
            raise PenstockError(f"reader group {name} reads {len(positions)} segments: more than are measured")
        return _Read(positions, state.ends, len(state.readers), len(state.unassigned))

    async def _lengths(self, names: set[str]) -> tuple[dict[str, SegmentInfo], dict[str, PenstockError]]:
        """Return the extents of segments, and why some cannot be read now. Deleted ones are in neither."""
        ordered = sorted(names)
        lengths: dict[str, SegmentInfo] = {}
        failures: dict[str, PenstockError] = {}
        for name, info in zip(ordered, await self._segments.segment_infos(ordered), strict=True):
            if isinstance(info, SegmentInfo):
                lengths[name] = info
            elif not isinstance(info, NoSuchSegmentError):
                failures[name] = info
        return lengths, failures

    def _note(self, now_s: float, lengths: Mapping[str, SegmentInfo], deleted: Collection[str]) -> None:
        """Add to the histories. Those of segments that no group reads, and of deleted ones, end."""
        read = frozenset[str]().union(*self._segments_of.values())
        for segment in [each for each in self._histories if each not in read or each in deleted]:
            del self._histories[segment]
        for segment, info in lengths.items():
            history = self._histories.get(segment)
            if history is None:
                if len(self._histories) >= _HISTORIES_MAX:
                    continue
                history = self._histories[segment] = LengthHistory()
            history.note(now_s, info.length)


@dataclass(frozen=True, slots=True)
class _Read:
    """What a round needs of the record of a group."""

    positions: Mapping[str, int]
    ends: Mapping[str, int]
    reader_count: int
    unassigned_count: int


def _lag(
    read: _Read, lengths: Mapping[str, SegmentInfo], histories: Mapping[str, LengthHistory], now_s: float
) -> MeasuredLag:
    unread = 0
    waited_s, is_capped = 0.0, False
    for segment, position in read.positions.items():
        info = lengths.get(segment)
        if info is None:
            continue
        begin = max(position, info.start_offset)
        left = min(info.length, read.ends.get(segment, info.length)) - begin
        if left <= 0:
            continue
        unread += left
        history = histories.get(segment)
        found_s, is_bound = (0.0, True) if history is None else history.waited_s(now_s, begin)
        if found_s >= waited_s:
            waited_s, is_capped = found_s, is_bound
    return MeasuredLag(unread, waited_s, is_capped, read.reader_count, read.unassigned_count)


async def _all(page: Callable[[str], Awaitable[NamePage]]) -> list[str]:
    """Return the names of all pages."""
    names: list[str] = []
    token = ""
    while (found := await page(token)).names:
        names += found.names
        token = found.token
    return names
