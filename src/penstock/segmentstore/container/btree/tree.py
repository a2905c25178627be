"""`BTreeIndex`: a `SortedIndex` as an append-only B+tree in one segment of long-term storage.

An update appends new versions of the touched leaves and all their ancestors, and a footer that refers to the new root,
in one all-or-nothing append. A state of the tree, identified by its footer, never changes: readers continue with the
state they began with. Only if its pages were truncated meanwhile must they start again with a newer one.

Only one task updates. The append is conditional on the length, so a former owner that still writes gets
`BadOffsetError` and changes nothing. Differs from segment-store 5.3: no root pointer in core attributes (R5.12),
because storage commits lengths with each write and so never shows a partial one (R5.13, L3, L4).

Source: segment-store 5.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Final, TypeVar

from penstock.model.errors import (
    BadOffsetError,
    CorruptionError,
    InvalidArgumentError,
    LogFencedError,
    PenstockError,
    SegmentTruncatedError,
    StorageError,
    StorageNotPrimaryError,
    UnreadableDataError,
)
from penstock.segmentstore.container.btree.footer import (
    FOOTER_LENGTH,
    Footer,
    decode_footer,
    empty_footer,
    encode_footer,
)
from penstock.segmentstore.container.btree.page_cache import PageCache
from penstock.segmentstore.container.btree.page_reader import PageReader
from penstock.segmentstore.container.btree.plan import add_moves, plan_update
from penstock.segmentstore.container.btree.read import find_cached, find_values, scan
from penstock.segmentstore.container.btree.rewrite import Rewriter
from penstock.segmentstore.container.btree.sorted_index import KEY_LENGTH_MAX, MARK_LENGTH_MAX, IndexStorage
from penstock.segmentstore.container.btree.sorting import sorted_in_slices
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container_settings import IndexSettings

_log = logging.getLogger(__name__)
T = TypeVar("T")

#: Maximum length of a value; together with the longest key it fits into any page.
VALUE_LENGTH_MAX: Final = 1024
PAGE_BYTES_MIN: Final = 128
PAGE_BYTES_MAX: Final = 32 * 1024
#: Cheap steps before yielding to the event loop.
_SLICE_STEPS: Final = 512
#: Keys checked before yielding to the event loop.
_SLICE_KEYS: Final = 4096


class BTreeIndex:
    """See the module. Implements `SortedIndex`. Opened on first use.

    `name` is the segment's, for messages. Call `close` when it is no longer used: its pages are counted in `cache`.
    """

    def __init__(
        self, storage: IndexStorage, *, name: str, value_length: int, cache: Cache, settings: IndexSettings
    ) -> None:
        if not 0 <= value_length <= VALUE_LENGTH_MAX:
            raise InvalidArgumentError(f"{name}: values of {value_length} bytes, 0 to {VALUE_LENGTH_MAX} are possible")
        if not PAGE_BYTES_MIN <= settings.page_bytes <= PAGE_BYTES_MAX:
            raise InvalidArgumentError(
                f"page_bytes is {settings.page_bytes}, {PAGE_BYTES_MIN} to {PAGE_BYTES_MAX} are possible"
            )
        self.name = name
        self.value_length = value_length
        self.generation: int = 0
        self.entry_count: int = 0
        self.stored_bytes: int = 0
        self.mark: bytes = b""
        self._storage = storage
        self._settings = settings
        self._pages = PageCache(cache)
        self._reader = PageReader(name, storage, self._pages, settings)
        self._state: Footer | None = None
        self._start_offset = 0
        # The state in storage may differ from `_state`, because an update failed.
        self._is_doubtful = True
        # Held by updates and by reads of the footer.
        self._lock = asyncio.Lock()

    # -- Opening

    async def open(self) -> None:
        """Find the last complete update. Raises `CorruptionError` if the stored data is not an index."""
        async with self._lock:
            self._pages.reopen()
            await self._open()

    async def _open(self) -> Footer:
        for _ in range(self._settings.redo_max):
            try:
                return await self._read_footer()
            except SegmentTruncatedError:
                continue  # Another object of this index has updated it meanwhile, and truncated the footer.
        return await self._read_footer()

    async def _read_footer(self) -> Footer:
        self._is_doubtful = True
        start_offset, length = await self._storage.open()
        state = self._state
        # A committed footer never changes: the same length means the same state.
        if state is None or state.end != length:
            if length == 0:
                state = empty_footer(self.value_length)
            else:
                offset = length - FOOTER_LENGTH
                if offset < start_offset:
                    raise CorruptionError(
                        self.name,
                        start_offset,
                        f"bytes {start_offset} to {length} are fewer than the {FOOTER_LENGTH} of an index's footer",
                    )
                data = await self._storage.read(offset, FOOTER_LENGTH)
                state = decode_footer(
                    self.name, offset, data, start_offset=start_offset, value_length=self.value_length
                )
            self._publish(state)
        self._start_offset = start_offset
        self.stored_bytes = length - start_offset
        self._is_doubtful = False
        return state

    def _publish(self, state: Footer) -> None:
        self._state = state
        self.generation += 1
        self.entry_count = state.entry_count
        self.mark = state.mark
        self.stored_bytes = state.end - self._start_offset

    def close(self) -> None:
        """Release the memory of cached pages. The index may be used again, and caches pages once it is opened."""
        self._pages.clear()

    # -- Reading

    def get_cached(self, key: bytes) -> tuple[bool, bytes | None]:
        """See `SortedIndex.get_cached`."""
        if self._state is None:
            return False, None
        found = find_cached(self._state, key, self._pages)
        self._pages.touch()
        return found

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """See `SortedIndex.get`. Pages not in memory are read once each, several at a time."""
        if len(keys) == 1:
            is_known, value = self.get_cached(keys[0])
            if is_known:
                return [value]
        ordered = await sorted_in_slices(list(dict.fromkeys(keys)))

        async def read(state: Footer) -> dict[bytes, bytes]:
            return await find_values(state, ordered, self._reader.load)

        found = await self._read_in_one_state(read)
        return [found.get(key) for key in keys]

    async def page(
        self, *, after: bytes = b"", first: bytes = b"", last: bytes | None = None, limit: int
    ) -> Sequence[tuple[bytes, bytes]]:
        """See `SortedIndex.page`."""
        is_after = bool(after) and after >= first

        async def read(state: Footer) -> list[tuple[bytes, bytes]]:
            return await scan(
                state,
                after if is_after else first,
                last,
                limit,
                self._reader.load,
                is_after=is_after,
                reads_max=self._settings.reads_max,
            )

        return await self._read_in_one_state(read)

    async def _read_in_one_state(self, read: Callable[[Footer], Awaitable[T]]) -> T:
        """Return the result of `read` in a state that is still current when it completes."""
        for _ in range(self._settings.redo_max):
            state = self._state
            if state is None:
                await self._open_after(None)
                continue
            try:
                result = await read(state)
            except SegmentTruncatedError as error:
                await self._open_after(state, error)
                continue
            if self._state is state:
                return result
        # Every attempt was overtaken by an update. Under the lock no update becomes visible.
        async with self._lock:
            state = self._state or await self._open()
            try:
                return await read(state)
            except SegmentTruncatedError as error:
                after = await self._open()
                if after is state:
                    raise self._lost_page(error) from error
                return await read(after)

    async def _open_after(self, state: Footer | None, error: SegmentTruncatedError | None = None) -> None:
        """Advance from `state`, which is None or whose pages are partly truncated, to a later state."""
        async with self._lock:
            if self._state is not state:
                return
            if await self._open() is state and error is not None:
                raise self._lost_page(error) from error

    def _lost_page(self, error: SegmentTruncatedError) -> CorruptionError:
        return CorruptionError(
            self.name, error.offset, f"the index needs a page here, but the segment starts at {error.start_offset}"
        )

    # -- Updating

    async def update(self, changes: Mapping[bytes, bytes | None], mark: bytes) -> None:
        """See `SortedIndex.update`. `changes` must not be modified until it returns.

        All pages that it touches, old and new, are in memory meanwhile. Removals of absent keys and puts of unchanged
        values write no page. Also truncates bytes that are no longer needed; a failure of that is only visible in
        `stored_bytes`.

        Raises:
            InvalidArgumentError: a key, a value or the mark is too long or too short; nothing was done.
            BadOffsetError: another writer has updated the index. Its state is visible now; repeat the update, if still
                owner.
        """
        if len(mark) > MARK_LENGTH_MAX:
            raise InvalidArgumentError(f"{self.name}: mark of {len(mark)} bytes, longest is {MARK_LENGTH_MAX}")
        async with self._lock:
            change_bytes = await self._check(changes)
            keys = await sorted_in_slices(list(changes))
            before = self._state
            if before is None or self._is_doubtful:
                before = await self._open()
            try:
                built, state = await self._build(before, keys, changes, mark, change_bytes)
            except SegmentTruncatedError as error:
                # Another writer has updated the index and truncated pages.
                after = await self._open()
                if after is before:
                    raise self._lost_page(error) from error
                raise BadOffsetError(self.name, expected=before.end, actual=after.end) from error
            if not built.pages and (state.root, state.height, mark) == (before.root, before.height, before.mark):
                return
            await self._append(before, state, built.pages)
            self._publish(state)
            await self._refresh_cache(built)
            await self._give_back(state)

    async def _check(self, changes: Mapping[bytes, bytes | None]) -> int:
        """Check keys and values; return their total length in bytes."""
        total = 0
        items = iter(changes.items())
        while part := list(islice(items, _SLICE_KEYS)):
            lengths = [len(key) for key, _ in part]
            if min(lengths) < 1 or max(lengths) > KEY_LENGTH_MAX:
                raise InvalidArgumentError(
                    f"{self.name}: a key of {min(lengths) or max(lengths)} bytes, 1 to {KEY_LENGTH_MAX} are possible"
                )
            if any(value is not None and len(value) != self.value_length for _, value in part):
                raise InvalidArgumentError(f"{self.name}: all values must be {self.value_length} bytes long")
            total += sum(lengths) + self.value_length * len(part)
            if len(part) == _SLICE_KEYS:
                await asyncio.sleep(0)
        return total

    async def _build(
        self,
        before: Footer,
        keys: Sequence[bytes],
        changes: Mapping[bytes, bytes | None],
        mark: bytes,
        change_bytes: int,
    ) -> tuple[Rewriter, Footer]:
        plan = await plan_update(before, keys, self._reader.load)
        await add_moves(
            plan,
            before,
            self._reader.load,
            written_bytes=plan.touched_bytes + change_bytes + FOOTER_LENGTH,
            stored_end=before.end,
            settings=self._settings,
        )
        rewriter = Rewriter(
            before,
            keys,
            changes,
            load=self._reader.load,
            is_cached=self._pages.__contains__,
            settings=self._settings,
        )
        return rewriter, await rewriter.rewrite(plan.root, mark)

    async def _append(self, before: Footer, state: Footer, pages: Sequence[bytes]) -> None:
        # However the append ends, including cancellation, the state in storage is unknown until it succeeds.
        self._is_doubtful = True
        try:
            length = await self._storage.append(before.end, [*pages, encode_footer(state)])
        except BadOffsetError:
            await self._open()
            raise
        if length != state.end:
            raise StorageError(
                f"{self.name}: the segment is {length} bytes long after an append that ends at {state.end}; open again"
            )
        self._is_doubtful = False

    async def _refresh_cache(self, built: Rewriter) -> None:
        for number, offset in enumerate(built.replaced):
            self._pages.discard(offset)
            if number % _SLICE_STEPS == _SLICE_STEPS - 1:
                await asyncio.sleep(0)
        for number, offset in enumerate(built.kept):
            self._pages.put(offset, built.built[offset])
            if number % _SLICE_STEPS == _SLICE_STEPS - 1:
                await asyncio.sleep(0)

    async def _give_back(self, state: Footer) -> None:
        if state.lowest - self._start_offset < self._settings.truncate_bytes_min:
            return
        try:
            await self._storage.truncate(state.lowest)
        except (UnreadableDataError, LogFencedError, StorageNotPrimaryError):
            # The stored state must be read again, by this incarnation or the next; the update itself is done.
            self._is_doubtful = True
            raise
        except (PenstockError, OSError) as error:
            _log.info("%s: could not truncate before %d: %s; it is retried later", self.name, state.lowest, error)
            return
        self._start_offset = state.lowest
        self.stored_bytes = state.end - self._start_offset
