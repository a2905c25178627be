"""`Rescues`: machines that are lost at random moments, and stores that are built again from long-term storage alone.

Containers are flushed now and then, and what was acknowledged before the call counts as safe from its answer on. At
other moments a copy of long-term storage is taken, as it is: during an image, of the removal of earlier ones,
of deletions, with two incarnations. A store is recovered from it beside the cluster, which continues and loses nothing.
So whatever the recovered store has must be what the cluster has, too: its containers are as they once were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.administration.errors import NotRecoverableError
from penstock.model.errors import CorruptionError, NoSuchSegmentError, PenstockError
from penstock.model.events import EventAssembler, offsets_of
from penstock.model.names import SYSTEM_SCOPE, is_index_segment
from penstock.model.routing import container_of
from penstock.segmentstore.container.container import ContainerStatus, SegmentContainer
from penstock.segmentstore.store import SegmentStore
from penstock_simulation.checks.byte_reads import check_reads, check_up_to_date
from penstock_simulation.checks.events import check_events
from penstock_simulation.checks.history_events import (
    AppendBytes,
    Completion,
    EventSeen,
    FullRead,
    GetKey,
    GetLength,
    History,
    Invocation,
    KeyValue,
    Outcome,
    PutKey,
    ReadRange,
    Record,
    RemoveKey,
    WriteEvent,
)
from penstock_simulation.checks.invariants_indexes import catalog_records
from penstock_simulation.checks.tables import check_table
from penstock_simulation.simulated.cluster import SimulatedCluster
from penstock_simulation.simulated.errors import HostDownError
from penstock_simulation.simulated.host import Death, Host
from penstock_simulation.simulated.rescuer import Rescuer
from penstock_simulation.workloads.events import key_of
from penstock_simulation.workloads.world import REFUSED_PREFIX, World

#: Of the moments drawn, so many are flushes.
_FLUSH_SHARE = 0.5
_READ_BYTES = 64 * 1024
_LATER = b"<later>"


class Rescues:
    """Flushes and recovers every so often. `found` is called with all that is missing, and that was never written."""

    def __init__(
        self, cluster: SimulatedCluster, world: World, found: Callable[[str], None], *, gap_s: float,
        streams: Callable[[], tuple[list[str], list[str]]],
    ) -> None:  # fmt: skip
        """`streams`: those whose events are in the history, and of them those that are truncated."""
        self._cluster = cluster
        self._world = world
        self._found = found
        self._gap_s = gap_s
        self._streams = streams
        self._rng = cluster.simulation.rng("rescues")
        #: What was in the history before the last flush of a container that was acknowledged.
        self._covered: dict[int, int] = {}
        self._count = 0

    async def run(self) -> None:
        """Continue for as long as workloads write."""
        flushes: set[asyncio.Task[None]] = set()
        while self._world.is_writing:
            await asyncio.sleep(self._rng.expovariate(1.0 / self._gap_s))
            if self._rng.random() < _FLUSH_SHARE:
                flushes |= {asyncio.create_task(self._flush(*each)) for each in self._running()}
            else:
                await self._rescue()
        for flush in flushes:
            flush.cancel()

    async def flush_all(self) -> None:
        """Flush every container; all is quiet, so each is there, and all of it is safe then."""
        self._covered.clear()
        for host, container in self._running():
            await self._flush(host, container)
        if missing := self._cluster.locator.container_count - len(self._covered):
            self._found(f"{missing} containers could not be flushed although nothing fails any more")

    async def lost(self) -> Rescuer | None:
        """Recover a store from what there is now; None if that failed, which was reported."""
        self._count += 1
        rescuer = Rescuer(self._cluster, f"rescuer-{self._count}")
        try:
            report = await rescuer.host.run(rescuer.recover())
        except NotRecoverableError as error:
            if len(self._covered) == self._cluster.locator.container_count:
                self._found(f"{rescuer.host.name}: every container was flushed, nothing can be recovered: {error}")
            return None
        for problem in report.check.problems:
            self._found(f"{rescuer.host.name}: {problem}")
        self._world.counts["stores recovered"] += 1
        return rescuer

    def _running(self) -> list[tuple[Host, SegmentContainer]]:
        return [
            (host, container)
            for host in self._cluster.stores
            if (store := self._cluster.store(host)) is not None
            for container in store.containers
            if container.status is ContainerStatus.RUNNING
        ]

    async def _flush(self, host: Host, container: SegmentContainer) -> None:
        before = len(self._world.history.records)
        try:
            await host.run(container.flush())
        except (HostDownError, PenstockError, OSError, AssertionError):
            return  # Nothing was promised.
        self._covered[container.id] = max(self._covered.get(container.id, 0), before)
        self._world.counts["flushes"] += 1

    async def _rescue(self) -> None:
        records, covered = list(self._world.history.records), dict(self._covered)
        rescuer = await self.lost()
        if rescuer is None:
            return
        name = rescuer.host.name
        safe = [covered.get(container_id, 0) for container_id in range(self._cluster.locator.container_count)]
        judged = _as_of(records, safe)
        try:
            await rescuer.host.run(self._read_back(name, rescuer, judged))
        except (PenstockError, OSError) as error:
            self._found(f"{name}: the recovered store does not work: {error!r}")
        finally:
            rescuer.host.crash(Death.POWER)
        _, truncated = self._streams()
        violations = [
            *check_events(judged, truncated_streams=truncated),
            *check_reads(judged),
            *check_up_to_date(judged),
            *check_table(judged),
        ]
        for violation in violations:
            self._found(f"{name}: {violation}")

    async def _read_back(self, name: str, rescuer: Rescuer, judged: History) -> None:
        """Take all that a recovered store has into the history, and have it continue."""
        async with rescuer.running() as store:
            streams, _ = self._streams()
            reads = {stream: judged.invoke(name, FullRead(stream, f"{name} {stream}")) for stream in streams}
            segments = {name for container in store.containers for name in await _user_segments(container)}
            for segment in sorted(segments, key=_age):
                await self._read_segment(name, store, segment, judged, list(reads))
            for call in reads.values():
                judged.ok(call)
            for segment in _lasting_segments(judged) - segments:
                judged.ok(judged.invoke(name, GetLength(segment)), 0)
            for table, key in _keys(judged):
                await self._read_key(name, store, table, key, judged)
            await self._go_on(name, store)

    async def _read_segment(
        self, name: str, store: SegmentStore, segment: str, judged: History, streams: list[str]
    ) -> None:
        info = await store.segment_info(segment)
        data = bytearray()
        while (offset := info.start_offset + len(data)) < info.length:
            piece = (await store.read(segment, offset, min(_READ_BYTES, info.length - offset))).joined()
            if not piece:
                self._found(f"{name}: {segment}: nothing to read at {offset}, its length is {info.length}")
                return
            data += piece
        judged.ok(judged.invoke(name, GetLength(segment)), info.length)
        if not data:
            return
        judged.ok(judged.invoke(name, ReadRange(segment, info.start_offset)), bytes(data))
        # What is read of it elsewhere, now and later, is the same.
        history = self._world.history
        history.ok(history.invoke(name, ReadRange(segment, info.start_offset)), bytes(data))
        stream = next((stream for stream in streams if segment.startswith(f"{stream}/")), None)
        if stream is None:
            return
        assembler = EventAssembler(segment, info.start_offset)
        try:
            assembler.feed(bytes(data))
            events, first = assembler.take()
            assembler.check()
        except CorruptionError as error:
            self._found(f"{name}: {segment}: what was recovered are not events: {error}")
            return
        for event, at in zip(events, offsets_of(events, first), strict=False):
            judged.see(name, EventSeen(stream, f"{name} {stream}", segment, at, event, key_of(event)))
        self._world.counts["events recovered"] += len(events)

    async def _read_key(self, name: str, store: SegmentStore, table: str, key: bytes, judged: History) -> None:
        call = judged.invoke(name, GetKey(table, key))
        try:
            (entry,) = await store.table_get(table, [key])
        except NoSuchSegmentError:
            entry = None  # Nothing of it is safe, or that is missed now.
        judged.ok(call, None if entry is None else KeyValue(entry.value, entry.version))

    async def _go_on(self, name: str, store: SegmentStore) -> None:
        """Let the store take more, flush it, and read that back from storage."""
        for container in store.containers:
            number = next(n for n in range(10_000) if store.container(f"rescue/{n}") is container)
            await store.create_segment(f"rescue/{number}")
            await store.append(f"rescue/{number}", _LATER)
            await container.flush()
            read = (await store.read(f"rescue/{number}", 0, 100)).joined()
            if read != _LATER:
                self._found(f"{name}: rescue/{number} got {_LATER!r}, and has {read!r}")


async def _user_segments(container: SegmentContainer) -> list[str]:
    """Return the names of all segments that are no tables and belong to users, inactive ones too."""
    names = {segment.name for segment in container.segments() if not segment.is_table}
    tables = {segment.name for segment in container.segments() if segment.is_table}
    names |= {name async for name, _ in catalog_records(container)} - tables
    return [name for name in names if not name.startswith(f"{SYSTEM_SCOPE}/") and not is_index_segment(name)]


def _age(segment: str) -> tuple[int, int, str]:
    """Return what segments of a stream are sorted by, so that those that others follow come first."""
    _, _, last = segment.rpartition("/")
    number, _, epoch = last.partition(".#epoch.")
    return (int(epoch), int(number), segment) if number.isdigit() and epoch.isdigit() else (0, 0, segment)


def _lasting_segments(history: History) -> set[str]:
    """Return the segments that got bytes and are never deleted."""
    calls = (ended.invocation.call for ended in history.calls())
    return {call.segment for call in calls if isinstance(call, AppendBytes) and call.segment.startswith(REFUSED_PREFIX)}


def _keys(history: History) -> list[tuple[str, bytes]]:
    calls = (ended.invocation.call for ended in history.calls())
    return sorted({(call.table, call.key) for call in calls if isinstance(call, (PutKey, RemoveKey))})


def _as_of(records: list[Record], safe: list[int]) -> History:
    """Return the history of a store that was lost: of what was not safe it may have anything or nothing.

    `safe`: by container, how many records were there before its last flush. An event is in a container that is not
    known here, so it is safe when that is so in all of them.
    """
    history = History(lambda: 0.0)
    calls: dict[int, Invocation] = {}
    for record in records:
        match record:
            case Invocation(call=WriteEvent() | AppendBytes() | PutKey() | RemoveKey() as call):
                calls[record.index] = history.invoke(record.client, call)
            case Completion(invocation=Invocation(index=index), outcome=outcome) if index in calls:
                begun = calls[index]
                if outcome is Outcome.REFUSED:
                    history.refuse(begun)
                elif outcome is Outcome.FAIL:
                    history.fail(begun, record.error)
                elif outcome is Outcome.OK and record.index < _safe(begun, safe):
                    history.ok(begun, record.result)
    return history


def _safe(call: Invocation, safe: list[int]) -> int:
    match call.call:
        case AppendBytes(segment=name) | PutKey(table=name) | RemoveKey(table=name):
            return safe[container_of(name, len(safe))]
    return min(safe)
