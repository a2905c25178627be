"""`MemoryIndexStorage` and `MemorySortedIndex`: in-memory seams of sorted indexes, with injected faults.

Simple rather than fast. Every call yields to the loop once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from penstock.model.errors import BadOffsetError, InvalidArgumentError, SegmentTruncatedError, StorageError
from penstock.model.segments import Buffer
from penstock.segmentstore.container.btree.sorted_index import KEY_LENGTH_MAX, MARK_LENGTH_MAX


class MemoryIndexStorage:
    """One index segment. Implements `IndexStorage`. Several indexes may share one, as an old and a new owner do.

    Attributes:
            start_offset: first byte that is not truncated.
        data: the bytes from there on.
        calls: how often each operation was called.
            reads_at_once_max: the most reads that were in progress at the same time.
    """

    def __init__(self, name: str = "index") -> None:
        self.name = name
        self.data: bytearray = bytearray()
        self.start_offset: int = 0
        self.calls: Counter[str] = Counter()
        self.reads_at_once_max: int = 0
        self._reads = 0
        self._faults: dict[str, list[tuple[BaseException, bool]]] = {}
        self._gates: dict[str, asyncio.Event] = {}

    @property
    def length(self) -> int:
        """End offset of all bytes ever written."""
        return self.start_offset + len(self.data)

    def fail(
        self, operation: str, *, times: int = 1, has_effect: bool = False, error: BaseException | None = None
    ) -> None:
        """Make the next `times` calls of open, read, append or truncate raise, after their effect with `has_effect`."""
        fault = error or StorageError(f"injected failure {'after' if has_effect else 'before'} {operation}")
        self._faults.setdefault(operation, []).extend([(fault, has_effect)] * times)

    def hold(self, operation: str) -> None:
        """Block calls of `operation` until `release`."""
        self._gates[operation] = asyncio.Event()

    def release(self, operation: str) -> None:
        """Release blocked calls."""
        self._gates.pop(operation).set()

    async def _begin(self, operation: str) -> BaseException | None:
        """Raise a fault without effect; return one to raise after the effect."""
        self.calls[operation] += 1
        await asyncio.sleep(0)
        if gate := self._gates.get(operation):
            await gate.wait()
        faults = self._faults.get(operation)
        if not faults:
            return None
        error, has_effect = faults.pop(0)
        if not has_effect:
            raise error
        return error

    async def open(self) -> tuple[int, int]:
        """See `IndexStorage.open`."""
        await self._begin("open")
        return self.start_offset, self.length

    async def read(self, offset: int, length: int) -> bytes:
        """See `IndexStorage.read`."""
        self._reads += 1
        self.reads_at_once_max = max(self.reads_at_once_max, self._reads)
        try:
            await self._begin("read")
        finally:
            self._reads -= 1
        if offset < self.start_offset:
            raise SegmentTruncatedError(self.name, start_offset=self.start_offset, offset=offset)
        if offset + length > self.length:
            raise StorageError(f"{self.name}: read of {length} bytes at {offset} is beyond the length {self.length}")
        return bytes(self.data[offset - self.start_offset : offset + length - self.start_offset])

    async def append(self, offset: int, data: Sequence[Buffer]) -> int:
        """See `IndexStorage.append`."""
        error = await self._begin("append")
        if offset != self.length:
            raise BadOffsetError(self.name, expected=offset, actual=self.length)
        self.data += b"".join(data)
        if error is not None:
            raise error
        return self.length

    async def truncate(self, offset: int) -> None:
        """See `IndexStorage.truncate`."""
        error = await self._begin("truncate")
        if offset > self.start_offset:
            del self.data[: offset - self.start_offset]
            self.start_offset = offset
        if error is not None:
            raise error


class MemorySortedIndex:
    """A dictionary. Implements `SortedIndex`.

    Attributes:
            entries: its contents; may be read and set.
            is_cached: whether `get_cached` returns every entry; else none.
    """

    def __init__(self, *, value_length: int = 8) -> None:
        self.value_length = value_length
        self.generation: int = 0
        self.entries: dict[bytes, bytes] = {}
        self.stored_bytes: int = 0
        self.mark: bytes = b""
        self.is_cached = True
        self.entry_count: int = 0
        self._faults: list[tuple[BaseException, bool]] = []

    def fail_update(self, *, times: int = 1, has_effect: bool = False, error: BaseException | None = None) -> None:
        """Make the next `times` updates raise, after their effect with `has_effect`; `open` shows it then."""
        self._faults.extend([(error or StorageError("injected failure of update"), has_effect)] * times)

    async def open(self) -> None:
        """See `SortedIndex.open`."""
        await asyncio.sleep(0)

    def close(self) -> None:
        """See `SortedIndex.close`."""

    def get_cached(self, key: bytes) -> tuple[bool, bytes | None]:
        """See `SortedIndex.get_cached`."""
        return (True, self.entries.get(key)) if self.is_cached else (False, None)

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """See `SortedIndex.get`."""
        await asyncio.sleep(0)
        return [self.entries.get(key) for key in keys]

    async def page(
        self, *, after: bytes = b"", first: bytes = b"", last: bytes | None = None, limit: int
    ) -> Sequence[tuple[bytes, bytes]]:
        """See `SortedIndex.page`."""
        await asyncio.sleep(0)
        return [
            (key, self.entries[key])
            for key in sorted(self.entries)
            if key >= first and (not after or key > after) and (last is None or key <= last)
        ][:limit]

    async def update(self, changes: Mapping[bytes, bytes | None], mark: bytes) -> None:
        """See `SortedIndex.update`."""
        for key, value in changes.items():
            if not 1 <= len(key) <= KEY_LENGTH_MAX:
                raise InvalidArgumentError(f"key of {len(key)} bytes, 1 to {KEY_LENGTH_MAX} are possible")
            if value is not None and len(value) != self.value_length:
                raise InvalidArgumentError(f"value of {len(value)} bytes, all must be {self.value_length}")
        if len(mark) > MARK_LENGTH_MAX:
            raise InvalidArgumentError(f"mark of {len(mark)} bytes, longest is {MARK_LENGTH_MAX}")
        await asyncio.sleep(0)
        fault = self._faults.pop(0) if self._faults else None
        if fault is None or fault[1]:
            for key, value in changes.items():
                if value is None:
                    self.entries.pop(key, None)
                else:
                    self.entries[key] = value
            self.mark = mark
            self.generation += 1
            self.entry_count = len(self.entries)
            self.stored_bytes = sum(len(key) + self.value_length for key in self.entries)
        if fault is not None:
            raise fault[0]
