"""`FaultyChunkStorage`: a chunk storage with latency, throttling, lost replies, stale lists and partial writes.

Each fault is a named value (`ChunkFault`) with a rate (`ChunkFaults`), all drawn from one generator, so that a seed
determines the history; `inject` makes a given call fail in a given way. Time is the running loop's.

After SlateDB's `failing_object_store.rs`. Kept of the `ChunkStorage` contract: a call that returns has had its effect,
and every call except `list` sees it immediately. Not kept: `create_with_content` may leave a partial chunk (as when a
process dies during it), and `list` may be stale.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from penstock.model.errors import ChunkError, InvalidArgumentError, NoSuchChunkError
from penstock.model.segments import Buffer
from penstock.segmentstore.tier2.chunk_storage import ChunkInfo, ChunkStorage
from penstock.segmentstore.tier2.wrapped import WrappedChunkStorage

T = TypeVar("T")


class ChunkFault(StrEnum):
    """Faults of a call.

    Attributes:
        LATENCY: it takes longer.
            THROTTLE: it is refused without effect because of too many calls: `ChunkThrottledError`.
        ERROR_BEFORE: it fails without effect: `ChunkError`.
        ERROR_AFTER: it has its effect, and the reply is lost: `ChunkReplyLostError`.
            PARTIAL_WRITE: some of the bytes are written, then it fails: `ChunkReplyLostError`. Writes only.
            STALE_LIST: it returns the state of some time ago. Lists only.
            REFUSED: it fails without effect, and so does every other change of that chunk: `ChunkError`.
    """

    LATENCY = "latency"
    THROTTLE = "throttle"
    ERROR_BEFORE = "error before"
    ERROR_AFTER = "error after"
    PARTIAL_WRITE = "partial write"
    STALE_LIST = "stale list"
    REFUSED = "refused"


class ChunkThrottledError(ChunkError):
    """The storage refused a call because of too many calls; it had no effect and may be retried later."""

    is_retriable = True


class ChunkReplyLostError(ChunkError):
    """The outcome of a call on a chunk is unknown: all, some or none of it may have happened."""


@dataclass(frozen=True, slots=True)
class ChunkFaults:
    """Rates are probabilities per call.

    Attributes:
        latency_s_min: every call takes at least this ...
        latency_s_max: ... and at most this, drawn evenly.
            slow_rate: rate of `LATENCY`: calls that take `slow_s` longer.
        slow_s: see `slow_rate`.
            slow_read_rate: additional rate for reads.
        bytes_per_s_max: bandwidth of all reads and writes together, None for no limit.
        throttle_rate: rate of `THROTTLE`.
        error_before_rate: rate of `ERROR_BEFORE`.
        error_after_rate: rate of `ERROR_AFTER`.
        partial_write_rate: rate of `PARTIAL_WRITE`.
        stale_list_rate: rate of `STALE_LIST`.
            staleness_s_max: greatest age of a stale list; drawn evenly.
            refused_prefixes: chunks with these name prefixes cannot be changed, as if the storage rejected the name.
    """

    latency_s_min: float = 0.0
    latency_s_max: float = 0.0
    slow_rate: float = 0.0
    slow_s: float = 1.0
    slow_read_rate: float = 0.0
    bytes_per_s_max: float | None = None
    throttle_rate: float = 0.0
    error_before_rate: float = 0.0
    error_after_rate: float = 0.0
    partial_write_rate: float = 0.0
    stale_list_rate: float = 0.0
    staleness_s_max: float = 5.0
    refused_prefixes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the bounds. Raises `InvalidArgumentError`."""
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, float) and (value < 0 or (name.endswith("_rate") and value > 1)):
                raise InvalidArgumentError(f"{name} cannot be {value}")
        if self.latency_s_min > self.latency_s_max:
            raise InvalidArgumentError(f"latency_s_min {self.latency_s_min} is above latency_s_max")
        if self.bytes_per_s_max == 0:
            raise InvalidArgumentError("bytes_per_s_max must be above 0")


#: Calls that change a chunk.
_CHANGES = ("create", "create_with_content", "write", "delete", "concat")
#: Changes remembered for stale lists; older ones are always visible.
_HISTORY_MAX = 10_000


class FaultyChunkStorage(WrappedChunkStorage):
    """`ChunkStorage` with faults around `inner`.

    Attributes:
        faults: may be replaced at any time, for instance by `ChunkFaults()` to heal.
        fault_counts: faults so far.
    """

    def __init__(self, inner: ChunkStorage, rng: random.Random, faults: ChunkFaults | None = None) -> None:
        super().__init__(inner)
        self.faults: ChunkFaults = faults or ChunkFaults()
        self.fault_counts: Counter[ChunkFault] = Counter()
        self._rng = rng
        self._injected: dict[str, deque[ChunkFault]] = {}
        #: When the bandwidth is free again.
        self._busy_until_s = 0.0
        #: Changes, oldest first: (time, chunk, its state before).
        self._history: deque[tuple[float, str, ChunkInfo | None]] = deque(maxlen=_HISTORY_MAX)

    def inject(self, call: str, *faults: ChunkFault) -> None:
        """Make the next calls named `call` (``"write"``, ``"list"``...) meet these faults, one each, in this order."""
        self._injected.setdefault(call, deque()).extend(faults)

    async def read_identity(self) -> bytes | None:
        """See `ChunkStorage.read_identity`."""
        return await self._call("read_identity", "identity", 0, self.inner.read_identity)

    def hold_to_identity(self, identity: bytes) -> None:
        """See `ChunkStorage.hold_to_identity`."""
        self.inner.hold_to_identity(identity)

    async def create_identity(self, identity: bytes) -> None:
        """See `ChunkStorage.create_identity`."""
        await self._call("create_identity", "identity", 0, lambda: self.inner.create_identity(identity))

    async def create(self, name: str) -> None:
        """See `ChunkStorage.create`."""
        await self._call("create", name, 0, lambda: self._create(name))

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        """See `ChunkStorage.create_with_content`."""

        async def create(content: Sequence[Buffer]) -> int:
            count = await self.inner.create_with_content(name, content)
            self._note(name, None)
            return count

        return await self._write("create_with_content", name, data, create)

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        """See `ChunkStorage.write`."""

        async def write(content: Sequence[Buffer]) -> int:
            count = await self.inner.write(name, offset, content)
            self._note(name, ChunkInfo(name, offset))
            return count

        return await self._write("write", name, data, write)

    async def read(self, name: str, offset: int, length: int) -> bytes:
        """See `ChunkStorage.read`."""
        return await self._call("read", name, length, lambda: self.inner.read(name, offset, length))

    async def info(self, name: str) -> ChunkInfo:
        """See `ChunkStorage.info`."""
        return await self._call("info", name, 0, lambda: self.inner.info(name))

    async def exists(self, name: str) -> bool:
        """See `ChunkStorage.exists`."""
        return await self._call("exists", name, 0, lambda: self.inner.exists(name))

    async def delete(self, name: str) -> None:
        """See `ChunkStorage.delete`."""
        await self._call("delete", name, 0, lambda: self._delete(name))

    async def concat(self, target: str, target_length: int, sources: Sequence[tuple[str, int]]) -> int:
        """See `ChunkStorage.concat`."""

        async def concat() -> int:
            before = [await self._info_or_none(name) for name in (target, *(name for name, _ in sources))]
            length = await self.inner.concat(target, target_length, sources)
            for info in before:
                if info is not None:
                    self._note(info.name, info)
            return length

        return await self._call("concat", target, 0, concat)

    async def list(self, prefix: str = "") -> Sequence[ChunkInfo]:
        """See `ChunkStorage.list`. The result may be up to `ChunkFaults.staleness_s_max` old."""
        return await self._call("list", prefix, 0, lambda: self._list(prefix))

    async def names(self, *, limit: int, after: str = "") -> Sequence[str]:
        """See `ChunkStorage.names`."""
        return await self._call("names", after, 0, lambda: self.inner.names(limit=limit, after=after))

    # Effects.

    async def _create(self, name: str) -> None:
        await self.inner.create(name)
        self._note(name, None)

    async def _delete(self, name: str) -> None:
        before = await self._info_or_none(name)
        await self.inner.delete(name)
        self._note(name, before)

    async def _list(self, prefix: str) -> Sequence[ChunkInfo]:
        listed = await self.inner.list(prefix)
        if not self._strikes("list", ChunkFault.STALE_LIST, self.faults.stale_list_rate):
            return listed
        as_of_s = asyncio.get_running_loop().time() - self._rng.uniform(0, self.faults.staleness_s_max)
        found: dict[str, ChunkInfo] = {info.name: info for info in listed}
        for time_s, name, before in reversed(self._history):
            if time_s <= as_of_s:
                break
            if not name.startswith(prefix):
                continue
            if before is None:
                found.pop(name, None)
            else:
                found[name] = before
        return [found[name] for name in sorted(found)]

    async def _write(
        self, call: str, name: str, data: Sequence[Buffer], write: Callable[[Sequence[Buffer]], Awaitable[int]]
    ) -> int:
        length = sum(map(len, data))

        async def whole_or_part() -> int:
            if length > 1 and self._strikes(call, ChunkFault.PARTIAL_WRITE, self.faults.partial_write_rate):
                count = self._rng.randrange(1, length)
                await write([b"".join(data)[:count]])
                raise ChunkReplyLostError(name, f"simulated: {call} stopped within {length} bytes")
            return await write(data)

        return await self._call(call, name, length, whole_or_part)

    # Faults around the effects.

    async def _call(self, call: str, name: str, length: int, effect: Callable[[], Awaitable[T]]) -> T:
        faults = self.faults
        await self._delay(call, length)
        if faults.refused_prefixes and call in _CHANGES and name.startswith(faults.refused_prefixes):
            self.fault_counts[ChunkFault.REFUSED] += 1
            raise ChunkError(name, f"simulated: {call} is refused permanently")
        if self._strikes(call, ChunkFault.THROTTLE, faults.throttle_rate):
            raise ChunkThrottledError(name, f"simulated: too many requests, {call} was refused")
        if self._strikes(call, ChunkFault.ERROR_BEFORE, faults.error_before_rate):
            raise ChunkError(name, f"simulated: {call} failed before it had an effect")
        result = await effect()
        if self._strikes(call, ChunkFault.ERROR_AFTER, faults.error_after_rate):
            raise ChunkReplyLostError(name, f"simulated: the reply to {call} was lost")
        return result

    async def _delay(self, call: str, length: int) -> None:
        faults = self.faults
        delay_s = 0.0
        if faults.latency_s_max:
            delay_s = self._rng.uniform(faults.latency_s_min, faults.latency_s_max)
        slow_rate = faults.slow_rate + (faults.slow_read_rate if call == "read" else 0.0)
        if self._strikes(call, ChunkFault.LATENCY, slow_rate):
            delay_s += faults.slow_s
        if faults.bytes_per_s_max is not None and length:
            now_s = asyncio.get_running_loop().time()
            self._busy_until_s = max(self._busy_until_s, now_s) + length / faults.bytes_per_s_max
            delay_s += self._busy_until_s - now_s
        if delay_s:
            await asyncio.sleep(delay_s)

    def _strikes(self, call: str, fault: ChunkFault, rate: float) -> bool:
        injected = self._injected.get(call)
        if injected and injected[0] is fault:
            injected.popleft()
        elif not rate or self._rng.random() >= rate:
            return False
        self.fault_counts[fault] += 1
        return True

    def _note(self, name: str, before: ChunkInfo | None) -> None:
        self._history.append((asyncio.get_running_loop().time(), name, before))

    async def _info_or_none(self, name: str) -> ChunkInfo | None:
        try:
            return await self.inner.info(name)
        except NoSuchChunkError:
            return None
