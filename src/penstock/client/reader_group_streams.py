"""`GroupStreams`: which streams a group reads, and changes of that.

The controller's configuration of the group says it, with a generation that each change moves on; the shared record
follows, before the next change is made. So a client that dies in between leaves a change that any other one completes,
and no generation is left out. Streams found by patterns come and go in the same way. See ``docs/reader-groups.md``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial

from penstock.client import reader_group_state as rgs
from penstock.client.cluster import Cluster
from penstock.client.deadline import within
from penstock.client.group_checkpoint import interval_s_of
from penstock.client.group_state import GroupState
from penstock.client.reader_group_calls import RegisteredGroup
from penstock.client.reader_group_record import GroupRecord
from penstock.client.retry import Backoff
from penstock.client.starts import Start, checked_start, end_cuts, positions_in, start_cuts
from penstock.client.stream_lives import recreated_streams
from penstock.model.errors import (
    InvalidArgumentError,
    MetadataConflictError,
    NoSuchReaderGroupError,
    NoSuchScopeError,
    NoSuchStreamError,
)
from penstock.model.names import (
    check_scope_name,
    parse_segment_name,
    split_scoped_name,
)
from penstock.model.policies import GroupRetention
from penstock.model.stream_cuts import StreamCut

_PATTERN_CHARACTERS = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Sources:
    """What a caller wants a group to read: streams (``scope/stream``), and patterns of their names (``scope/*``)."""

    streams: Sequence[str]
    patterns: Sequence[str]

    @classmethod
    def parse(cls, names: Sequence[str]) -> Sources:
        """Tell streams from patterns. Raises `InvalidNameError`, `InvalidArgumentError` for anything but a list."""
        if isinstance(names, str) or not names:
            raise InvalidArgumentError(f"{names!r}: give at least one stream, in a list")
        streams, patterns = [], []
        for name in names:
            scope, slash, rest = name.partition("/")
            if slash and _PATTERN_CHARACTERS.intersection(rest):
                patterns.append(f"{check_scope_name(scope)}/{rest}")
            else:
                streams.append("/".join(split_scoped_name(name)))
        return cls(list(dict.fromkeys(streams)), list(dict.fromkeys(patterns)))

    def matches(self, stream: str) -> bool:
        """Say whether a stream is one that a pattern finds."""
        return is_match(stream, self.patterns)

    async def all_streams(self, cluster: Cluster) -> list[str]:
        """Return the streams named, and those that the patterns find now. Raises `NoSuchScopeError`."""
        found = await heads_of(cluster, await streams_that_match(cluster, self.patterns))
        return list(dict.fromkeys([*self.streams, *found]))


def is_match(stream: str, patterns: Sequence[str]) -> bool:
    """Say whether one of the patterns finds a stream (``scope/stream``)."""
    return any(fnmatchcase(stream, pattern) for pattern in patterns)


async def streams_that_match(cluster: Cluster, patterns: Sequence[str]) -> list[str]:
    """Return the streams that there are now, Pravega's own left out, that match. Raises `NoSuchScopeError`."""
    found = []
    for scope in dict.fromkeys(pattern.partition("/")[0] for pattern in patterns):
        async for name in cluster.controller.streams(scope):
            if not name.startswith("_") and is_match(f"{scope}/{name}", patterns):
                found.append(f"{scope}/{name}")
    return found


async def heads_of(cluster: Cluster, streams: Sequence[str]) -> dict[str, StreamCut]:
    """Return where streams begin, without those that are not there yet, or not any more: listings know too many."""
    heads = {}
    for stream in streams:
        try:
            heads[stream] = await cluster.head(stream)
        except NoSuchStreamError:
            continue
    return heads


#: Gives what is to be registered in place of what is, or None: nothing is to be changed.
Change = Callable[[RegisteredGroup, GroupState], Awaitable[RegisteredGroup | None]]


class GroupStreams:
    """See the module. Each call raises `NoSuchReaderGroupError`."""

    def __init__(self, cluster: Cluster, record: GroupRecord) -> None:
        self._cluster = cluster
        self._record = record
        self._name = f"{record.scope}/{record.name}"

    async def complete(self) -> tuple[RegisteredGroup, GroupState]:
        """Let the record follow what is registered, if somebody was stopped before it did; return both."""
        registered = await self._cluster.controller.reader_group(self._record.scope, self._record.name)
        if registered is None or registered.id != self._record.group_id:
            raise NoSuchReaderGroupError(f"reader group {self._name} does not exist any more")
        state = await self._record.state()
        if state.generation < registered.generation:
            known = registered
            cuts = await self.starts_of(known, state.streams)
            starts = {stream: positions_in({stream: cut}) for stream, cut in cuts.items()}
            ends = positions_in(ends_of(known))
            # A group that waits for a stream cannot be registered as one that subscribes.
            retention = known.retention if known.starts else None
            interval_s = interval_s_of(known.checkpoint_interval_ms)
            state = await self._record.update(
                lambda state: rgs.read_streams(state, starts, ends, known.generation, retention, interval_s)
            )
        return registered, state

    async def starts_of(self, registered: RegisteredGroup, known: Sequence[str] = ()) -> dict[str, StreamCut]:
        """Return where a group begins in each of its streams; of those `known` it does not matter."""
        cuts = {}
        for stream, positions in registered.starts.items():
            cuts[stream] = StreamCut(*split_scoped_name(stream), positions)
            if not positions and stream not in known:
                cuts[stream] = await self._cluster.head(stream)
        return cuts

    async def refresh(self) -> int:
        """Complete what was begun, take in streams that a pattern finds and leave those that are gone.

        Returns the generation that the record has by then.
        """
        left: set[str] = set()
        generation = await self._change(partial(self._found, left))
        if left:
            # Made again under the same name: found once more, as new.
            generation = await self._change(partial(self._found, set()))
        return generation

    async def add(self, names: Sequence[str], start: Start, until: Start) -> None:
        """Read more streams; see `ReaderGroup.add_streams`."""
        wanted = Sources.parse(names)
        if wanted.patterns and until is not None:
            raise InvalidArgumentError("until: what is found by a pattern has no end; name the streams")
        found = await wanted.all_streams(self._cluster)

        async def with_more(registered: RegisteredGroup, state: GroupState) -> RegisteredGroup | None:
            new = [stream for stream in found if stream not in registered.starts]
            if not new:
                return None
            starts = await start_cuts(self._cluster, checked_start(start, new), new)
            ends = {} if until is None else await end_cuts(self._cluster, checked_start(until, new, "until"), starts)
            return replace(
                registered,
                starts={**registered.starts, **_positions(starts)},
                ends={**registered.ends, **_positions(ends)},
            )

        await self._change(with_more)
        if wanted.patterns:
            # Only now: streams found before would not begin at `start`.
            await self._record.update(
                lambda state: rgs.find_streams(state, {*state.patterns, *wanted.patterns})
            )

    async def remove(self, names: Sequence[str]) -> None:
        """Read fewer streams; see `ReaderGroup.remove_streams`."""
        unwanted = Sources.parse(names)
        registered, state = await self.complete()
        kept = [pattern for pattern in state.patterns if pattern not in unwanted.patterns]
        for stream in unwanted.streams:
            if is_match(stream, kept):
                raise InvalidArgumentError(
                    f"reader group {self._name} finds {stream} by a pattern ({', '.join(kept)}), and would find it "
                    "again: remove the pattern"
                )

        def without(registered: RegisteredGroup, kept: Sequence[str]) -> RegisteredGroup | None:
            gone = {
                stream
                for stream in registered.starts
                if stream in unwanted.streams or (unwanted.matches(stream) and not is_match(stream, kept))
            }
            if not gone and not unwanted.patterns:
                return None
            if not kept and gone.issuperset(registered.starts):
                raise InvalidArgumentError(
                    f"reader group {self._name} reads nothing but {', '.join(sorted({*gone, *unwanted.patterns}))}: "
                    "add another stream first, or delete the group"
                )
            # A pattern that is gone is registered even if nothing goes with it: who still looks by it is overtaken.
            return _without(registered, gone)

        # What is refused changes nothing.
        without(registered, kept)
        if unwanted.patterns:
            # First: what is removed must not be found once more.
            await self._record.update(
                lambda state: rgs.find_streams(state, set(state.patterns).difference(unwanted.patterns))
            )

        async def with_fewer(registered: RegisteredGroup, state: GroupState) -> RegisteredGroup | None:
            return without(registered, state.patterns)

        # A repetition finds nothing to do, but for patterns, where it does no harm.
        await self._change(with_fewer)

    async def set_retention(self, retention: GroupRetention) -> None:
        """Subscribe to all streams, or to none; see `ReaderGroup.set_retention`."""

        async def with_retention(registered: RegisteredGroup, state: GroupState) -> RegisteredGroup | None:
            if registered.starts:
                return None if registered.retention is retention else replace(registered, retention=retention)
            # It waits for its first stream, and the record alone knows. A new generation is registered in any case:
            # who is about to register a stream by what the record said before is refused.
            await self._record.update(lambda state: rgs.hold(state, retention))
            return registered

        await self._change(with_retention)

    async def set_checkpoint_interval(self, interval_ms: int) -> None:
        """Take a checkpoint so often; see `ReaderGroup.set_checkpoint_interval`."""

        async def with_interval(registered: RegisteredGroup, state: GroupState) -> RegisteredGroup | None:
            is_so = registered.checkpoint_interval_ms == interval_ms
            # A group of before there were any has a record without.
            is_followed = state.checkpoint.interval_s == interval_s_of(interval_ms)
            return None if is_so and is_followed else replace(registered, checkpoint_interval_ms=interval_ms)

        await self._change(with_interval)

    async def _found(
        self, left: set[str], registered: RegisteredGroup, state: GroupState
    ) -> RegisteredGroup | None:
        """Return what is to be read by the patterns as streams are now.

        A stream that was made again since it was found is to be left first; that it is so is added to `left`.
        """
        if not state.patterns:
            return None
        try:
            there = await streams_that_match(self._cluster, state.patterns)
        except NoSuchScopeError:
            there = []
        new = await heads_of(self._cluster, [stream for stream in there if stream not in registered.starts])
        gone = set()
        for stream in set(registered.starts).difference(there):
            # A listing is no proof: what is left loses its place.
            if is_match(stream, state.patterns):
                scope, name = split_scoped_name(stream)
                if not await self._cluster.controller.stream_exists(scope, name):
                    gone.add(stream)
        made_again = await self._made_again(registered, state, set(there).intersection(registered.starts))
        left |= made_again
        gone |= made_again
        if not new and not gone:
            return None
        kept = _without(registered, gone)
        return replace(kept, starts={**kept.starts, **_positions(new)})

    async def _made_again(self, registered: RegisteredGroup, state: GroupState, streams: set[str]) -> set[str]:
        """Return those of `streams` that were deleted since they were found, and created again under the same names."""
        return set(await recreated_streams(self._cluster, known_segments(registered, state, streams)))

    async def _change(self, change: Change) -> int:
        """Register a change and let the record follow; return the generation. Lost replies and races are looked into.

        Raises `MetadataConflictError` when others were faster time and again.
        """
        settings = self._cluster.settings
        backoff = Backoff(settings, self._cluster.rng)
        with within(f"change the streams of {self._name}", settings.retry_time_max_s, "retry_time_max_s"):
            while True:
                registered, state = await self.complete()
                wanted = await change(registered, state)
                if wanted is None:
                    return registered.generation
                if not registered.starts and wanted.starts:
                    wanted = replace(wanted, retention=state.retention)
                if await self._cluster.controller.update_reader_group(self._record.scope, self._record.name, wanted):
                    return (await self.complete())[0].generation
                await backoff.pause(
                    MetadataConflictError(f"the streams of reader group {self._name} are being changed elsewhere")
                )


def known_segments(registered: RegisteredGroup, state: GroupState, streams: Collection[str]) -> dict[str, set[int]]:
    """Return the ids of the segments that the group has, or began with, in each of `streams`."""
    known: dict[str, set[int]] = {stream: set(registered.starts.get(stream, ())) for stream in streams}
    for segment in rgs.positions_of(state):
        scope, name, number = parse_segment_name(segment)
        if (stream := f"{scope}/{name}") in known:
            known[stream].add(number)
    return known


async def recreated_in(cluster: Cluster, registered: RegisteredGroup, state: GroupState) -> list[str]:
    """Return the streams of a group that were deleted and created again since, but those that its patterns find."""
    streams = [stream for stream in registered.starts if not is_match(stream, state.patterns)]
    return await recreated_streams(cluster, known_segments(registered, state, streams))


def ends_of(registered: RegisteredGroup) -> dict[str, StreamCut]:
    """Return where a group ends, in the streams in which it does."""
    return {
        stream: StreamCut(*split_scoped_name(stream), positions) for stream, positions in registered.ends.items()
    }


def _without(registered: RegisteredGroup, gone: Collection[str]) -> RegisteredGroup:
    return replace(
        registered,
        starts={stream: cut for stream, cut in registered.starts.items() if stream not in gone},
        ends={stream: cut for stream, cut in registered.ends.items() if stream not in gone},
    )


def _positions(cuts: Mapping[str, StreamCut]) -> dict[str, Mapping[int, int]]:
    return {stream: cut.positions for stream, cut in cuts.items()}
