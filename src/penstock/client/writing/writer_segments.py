"""`WriterSegments`: the segments that a writer appends to: routing of events, and successors of sealed segments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from penstock.client.controller.stream_segments import SegmentMap, SegmentRange
from penstock.client.settings import ClientSettings
from penstock.client.writing.ack import AckState, follow
from penstock.client.writing.append_window import Block
from penstock.client.writing.block_sender import BlockSender
from penstock.client.writing.routes import Routes
from penstock.model.errors import InvalidArgumentError
from penstock.model.events import EVENT_HEADER_LENGTH
from penstock.model.names import SegmentId
from penstock.model.routing import routing_key_hash
from penstock.model.segments import Buffer
from penstock.runtime.portal import Lock


class WriterSegments:
    """See the module. Unless stated otherwise the caller holds `lock`, which guards the appenders' windows, too.

    Args:
        make_appender: makes the appender of a segment.
    """

    def __init__(self, settings: ClientSettings, make_appender: Callable[[SegmentRange], BlockSender]) -> None:
        self._settings = settings
        self._make_appender = make_appender
        #: A lock, not a thread: without contention it never waits.
        self.lock: Lock = Lock()
        self.appenders: dict[SegmentId, BlockSender] = {}
        self.routes: Routes[BlockSender] = Routes(
            self._home_of, settings.routing_cache_size_max, settings.routing_cache_bytes_max
        )
        self._map = SegmentMap(())
        #: Counts the bursts of events without a key, each of which goes to one segment.
        self._turn = 0
        self._dirty: list[BlockSender] = []

    def begin(self, segment_map: SegmentMap) -> None:
        """Append to these segments. Called once."""
        self._map = segment_map
        for segment in segment_map.segments:
            self._add(segment)

    def anywhere(self) -> BlockSender:
        """Return the appender for events without a key: the same until `turn` is called."""
        segments = self._map.segments
        return self.appenders[segments[self._turn % len(segments)].segment_id]

    def turn(self) -> None:
        """Direct the next events without a key to the next segment: whole blocks, not one event to each segment."""
        self._turn += 1

    def mark(self, appender: BlockSender) -> None:
        """Note that an appender has something to send."""
        if not appender.is_dirty:
            appender.is_dirty = True
            self._dirty.append(appender)

    def take_marked(self) -> list[BlockSender]:
        """Return the appenders that have something to send, each once."""
        marked, self._dirty = self._dirty, []
        for appender in marked:
            appender.is_dirty = False
        return marked

    def pending(self) -> Iterator[Block]:
        """Yield the blocks that are not durable yet."""
        for appender in self.appenders.values():
            yield from appender.window.pending()

    def take_all(self) -> list[Block]:
        """Remove and return all blocks that are not durable yet."""
        return [block for appender in self.appenders.values() for block in appender.window.take_all()]

    async def spread(
        self, sealed: SegmentRange, successors: Sequence[SegmentRange], on_moved: Callable[[], None]
    ) -> None:
        """Move events of a sealed segment to its successors, some in each turn, then route new events there.

        Until then new events for it are queued after its old ones: no event is stored before older events of its key.
        `on_moved` is called when an appender has been marked. The caller does not hold `lock`.
        """
        window = self.appenders[sealed.segment_id].window
        acks: dict[AckState, None] = {}
        is_done = False
        with self.lock:
            new_map = self._map.replace(sealed.segment_id, successors)
            for current in new_map.segments:
                self._add(current)
        while not is_done:
            with self.lock:
                block = window.oldest()
                if block is not None:
                    acks.update(dict.fromkeys(self._move(block, new_map)))
                    if not block.event_count:
                        window.drop_oldest()
                if window.is_empty:
                    is_done = True
                    self._map = new_map
                    del self.appenders[sealed.segment_id]
                    self.routes.forget()
            if block is not None and not block.event_count:
                # Not under the lock: callbacks of a part that has failed are called immediately, and may write.
                follow(block.ack, acks)
                acks = {}
            on_moved()
            if not is_done:
                await asyncio.sleep(0)

    def _move(self, block: Block, new_map: SegmentMap) -> Iterator[AckState]:
        """Move the first events of a block to the segments of a map; return their acks there."""
        groups: dict[BlockSender, tuple[list[Buffer], list[str | None]]] = {}
        segments = new_map.segments
        anywhere = segments[self._turn % len(segments)]
        homes: dict[str | None, BlockSender] = {None: self.appenders[anywhere.segment_id]}
        events, keys = block.cut(self._settings.block_bytes_max, self._settings.spread_turn_event_count_max)
        for event, key in zip(events, keys, strict=True):
            home = homes.get(key)
            if home is None:
                assert key is not None, "it has a home"
                home = homes[key] = self.appenders[new_map.segment_of(routing_key_hash(key)).segment_id]
            group = groups.setdefault(home, ([], []))
            group[0].append(event)
            group[1].append(key)
        for appender, (group_events, group_keys) in groups.items():
            size_bytes = sum(map(len, group_events)) + EVENT_HEADER_LENGTH * len(group_events)
            if len(group_events) == 1:
                yield appender.window.add(group_events[0], group_keys[0], size_bytes)
            else:
                yield appender.window.add_many(group_events, group_keys, size_bytes)
            self.mark(appender)

    def _home_of(self, routing_key: str) -> BlockSender:
        if not isinstance(routing_key, str):
            raise InvalidArgumentError(f"a routing key is str, not {type(routing_key).__name__}")
        return self.appenders[self._map.segment_of(routing_key_hash(routing_key)).segment_id]

    def _add(self, segment: SegmentRange) -> None:
        if segment.segment_id not in self.appenders:
            self.appenders[segment.segment_id] = self._make_appender(segment)
