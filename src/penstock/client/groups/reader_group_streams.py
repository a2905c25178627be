"""`GroupStreams`: the set of streams that a group reads, and changes to it.

It is stored in the group's configuration in the controller, with a generation that increases with each change. The
shared record follows before the next change is made. So if a client dies in between, any other one completes the
change, and no generation is skipped. Streams found by patterns are added and removed in the same way. See
``docs/reader-groups.md``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial

from penstock.client.common.deadline import within
from penstock.client.common.retry import Backoff
from penstock.client.controller.reader_group_calls import RegisteredGroup
from penstock.client.groups import reader_group_state as rgs
from penstock.client.groups.group_checkpoint import interval_s_of
from penstock.client.groups.group_state import GroupState
from penstock.client.groups.reader_group_record import GroupRecord
from penstock.client.streams.start_positions import Start, checked_start, end_cuts, positions_in, start_cuts
from penstock.client.streams.stream_lives import recreated_streams
from penstock.client.transport.cluster import Cluster
from penstock.model.errors import (
    InvalidArgumentError,
    MetadataConflictError,
    NoSuchReaderGroupError,
    NoSuchScopeError,
    NoSuchStreamError,
)
from penstock.model.names import (
    PATTERN_CHARACTERS,
    check_scope_name,
    parse_segment_name,
    split_scoped_name,
)
from penstock.model.policies import GroupRetention
from penstock.model.stream_cuts import StreamCut


@dataclass(frozen=True, slots=True)
class Sources:
    """The requested sources of a group: streams (``scope/stream``), and patterns of their names (``scope/*``)."""

    streams: Sequence[str]
    patterns: Sequence[str]

    @classmethod
    def parse(cls, names: Sequence[str]) -> Sources:
        """Separate streams from patterns. Raises `InvalidNameError`, and `InvalidArgumentError` if not given a list."""
        if isinstance(names, str) or not names:
            raise InvalidArgumentError(f"{names!r}: give at least one stream, in a list")
        streams, patterns = [], []
        for name in names:
            scope, slash, rest = name.partition("/")
            if slash and PATTERN_CHARACTERS.intersection(rest):
                patterns.append(f"{check_scope_name(scope)}/{rest}")
            else:
                streams.append("/".join(split_scoped_name(name)))
        return cls(list(dict.fromkeys(streams)), list(dict.fromkeys(patterns)))

    def matches(self, stream: str) -> bool:
        """Return whether a stream matches one of the patterns."""
        return is_match(stream, self.patterns)

    async def all_streams(self, cluster: Cluster) -> list[str]:
        """Return the named streams, and those that match the patterns now. Raises `NoSuchScopeError`."""
        found = await heads_of(cluster, await streams_that_match(cluster, self.patterns))
        return list(dict.fromkeys([*self.streams, *found]))


def is_match(stream: str, patterns: Sequence[str]) -> bool:
    """Return whether one of the patterns matches a stream (``scope/stream``)."""
    return any(fnmatchcase(stream, pattern) for pattern in patterns)


async def streams_that_match(cluster: Cluster, patterns: Sequence[str]) -> list[str]:
    """Return the matching streams that exist now, Pravega's own excluded. Raises `NoSuchScopeError`."""
    found = []
    for scope in dict.fromkeys(pattern.partition("/")[0] for pattern in patterns):
        async for name in cluster.controller.streams(scope):
            if not name.startswith("_") and is_match(f"{scope}/{name}", patterns):
                found.append(f"{scope}/{name}")
    return found


async def heads_of(cluster: Cluster, streams: Sequence[str]) -> dict[str, StreamCut]:
    """Return the heads of streams. Streams that do not exist yet or any more are omitted: listings may contain them."""
    heads = {}
    for stream in streams:
        try:
            heads[stream] = await cluster.head(stream)
        except NoSuchStreamError:
            continue
    return heads


#: Returns the configuration to register in place of the current one, or None: no change.
Change = Callable[[RegisteredGroup, GroupState], Awaitable[RegisteredGroup | None]]


class GroupStreams:
    """See the module. Each call raises `NoSuchReaderGroupError`."""

    def __init__(self, cluster: Cluster, record: GroupRecord) -> None:
        self._cluster = cluster
        self._record = record
        self._name = f"{record.scope}/{record.name}"

    async def complete(self) -> tuple[RegisteredGroup, GroupState]:
        """Make the record follow the registered configuration, if a client stopped before that; return both."""
        registered = await self._cluster.controller.reader_group(self._record.scope, self._record.name)
        if registered is None or registered.id != self._record.group_id:
            raise NoSuchReaderGroupError(f"reader group {self._name} no longer exists")
        state = await self._record.state()
        if state.generation < registered.generation:
            known = registered
            cuts = await self.starts_of(known, state.streams)
            starts = {stream: positions_in({stream: cut}) for stream, cut in cuts.items()}
            ends = positions_in(ends_of(known))
            # A group that waits for a stream cannot be registered as a subscriber.
            retention = known.retention if known.starts else None
            interval_s = interval_s_of(known.checkpoint_interval_ms)
            state = await self._record.update(
                lambda state: rgs.read_streams(state, starts, ends, known.generation, retention, interval_s)
            )
        return registered, state

    async def starts_of(self, registered: RegisteredGroup, known: Sequence[str] = ()) -> dict[str, StreamCut]:
        """Return the start of a group in each of its streams; for `known` streams any value will do."""
        cuts = {}
        for stream, positions in registered.starts.items():
            cuts[stream] = StreamCut(*split_scoped_name(stream), positions)
            if not positions and stream not in known:
                cuts[stream] = await self._cluster.head(stream)
        return cuts

    async def refresh(self) -> int:
        """Complete interrupted changes, add streams that match a pattern, and remove deleted ones.

        Returns the generation of the record after that.
        """
        left: set[str] = set()
        generation = await self._change(partial(self._found, left))
        if left:
            # Created again under the same name: found again, as new.
            generation = await self._change(partial(self._found, set()))
        return generation

    async def add(self, names: Sequence[str], start: Start, until: Start) -> None:
        """Read more streams; see `ReaderGroup.add_streams`."""
        wanted = Sources.parse(names)
        if wanted.patterns and until is not None:
            raise InvalidArgumentError("until: streams found by a pattern have no end position; name the streams")
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
            # Only now: streams found earlier would not start at `start`.
            await self._record.update(lambda state: rgs.find_streams(state, {*state.patterns, *wanted.patterns}))

    async def remove(self, names: Sequence[str]) -> None:
        """Read fewer streams; see `ReaderGroup.remove_streams`."""
        unwanted = Sources.parse(names)
        registered, state = await self.complete()
        kept = [pattern for pattern in state.patterns if pattern not in unwanted.patterns]
        for stream in unwanted.streams:
            if is_match(stream, kept):
                raise InvalidArgumentError(
                    f"reader group {self._name} finds {stream} by a pattern ({', '.join(kept)}), and would add it "
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
                    f"reader group {self._name} reads only {', '.join(sorted({*gone, *unwanted.patterns}))}: add "
                    "another stream first, or delete the group"
                )
            # Removing a pattern is registered even if no stream is removed: clients that still use it are then refused.
            return _without(registered, gone)

        # A refused change has no effect.
        without(registered, kept)
        if unwanted.patterns:
            # First, so that removed streams are not found again.
            await self._record.update(
                lambda state: rgs.find_streams(state, set(state.patterns).difference(unwanted.patterns))
            )

        async def with_fewer(registered: RegisteredGroup, state: GroupState) -> RegisteredGroup | None:
            return without(registered, state.patterns)

        # A repetition changes nothing, except for patterns, where it is harmless.
        await self._change(with_fewer)

    async def set_retention(self, retention: GroupRetention) -> None:
        """Subscribe to all streams, or to none; see `ReaderGroup.set_retention`."""

        async def with_retention(registered: RegisteredGroup, state: GroupState) -> RegisteredGroup | None:
            if registered.starts:
                return None if registered.retention is retention else replace(registered, retention=retention)
            # The group waits for its first stream, and only the record has its retention. A new generation is
            # registered in any case: it refuses clients that are about to register a stream with the previous
            # retention.
            await self._record.update(lambda state: rgs.hold(state, retention))
            return registered

        await self._change(with_retention)

    async def set_checkpoint_interval(self, interval_ms: int) -> None:
        """Set the interval of checkpoints; see `ReaderGroup.set_checkpoint_interval`."""

        async def with_interval(registered: RegisteredGroup, state: GroupState) -> RegisteredGroup | None:
            is_so = registered.checkpoint_interval_ms == interval_ms
            # The record of a group from before checkpoints existed has none.
            is_followed = state.checkpoint.interval_s == interval_s_of(interval_ms)
            return None if is_so and is_followed else replace(registered, checkpoint_interval_ms=interval_ms)

        await self._change(with_interval)

    async def _found(self, left: set[str], registered: RegisteredGroup, state: GroupState) -> RegisteredGroup | None:
        """Return the configuration with the streams that match the patterns now.

        A stream that was created again since it was found must be removed first; it is added to `left`.
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
            # A listing is no proof of deletion, and removing a stream drops its positions.
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
        """Register a change and make the record follow; return the generation. Lost replies and races are resolved.

        Raises `MetadataConflictError` if concurrent changes win repeatedly.
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
    """Return the streams of a group that were deleted and created again since, except those found by its patterns."""
    streams = [stream for stream in registered.starts if not is_match(stream, state.patterns)]
    return await recreated_streams(cluster, known_segments(registered, state, streams))


def ends_of(registered: RegisteredGroup) -> dict[str, StreamCut]:
    """Return the group's end in each stream that has one."""
    return {stream: StreamCut(*split_scoped_name(stream), positions) for stream, positions in registered.ends.items()}


def _without(registered: RegisteredGroup, gone: Collection[str]) -> RegisteredGroup:
    return replace(
        registered,
        starts={stream: cut for stream, cut in registered.starts.items() if stream not in gone},
        ends={stream: cut for stream, cut in registered.ends.items() if stream not in gone},
    )


def _positions(cuts: Mapping[str, StreamCut]) -> dict[str, Mapping[int, int]]:
    return {stream: cut.positions for stream, cut in cuts.items()}
