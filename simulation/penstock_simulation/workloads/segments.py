"""Clients below the level of streams: raw appends to a segment, readers of its bytes, and short-lived segments."""

from __future__ import annotations

import asyncio
import random
from functools import partial

from penstock.model.errors import (
    BadOffsetError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    PenstockError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentTruncatedError,
)
from penstock_simulation.checks.history import AppendBytes, GetLength, OffsetSeen, ReadRange
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.world import Workload, World

_READ_BYTES = 8 * 1024


class ByteAppender(Workload):
    """Appends bytes to a segment, some of them conditionally; truncates it now and then if allowed."""

    def __init__(
        self, world: World, host: Host, name: str, rng: random.Random, *, segment: str, mean_gap_s: float,
        rollover_bytes: int, truncates: bool,
    ) -> None:  # fmt: skip
        super().__init__(world, host, name, rng)
        self._segment = segment
        self._mean_gap_s = mean_gap_s
        self._rollover_bytes = rollover_bytes
        self._truncates = truncates
        self._number = 0
        self._length = 0

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        try:
            await self.client._segment_client.create_segment(self._segment, rollover_bytes=self._rollover_bytes)
        except SegmentExistsError:
            pass  # Another appender of the same segment has created it.

    async def run(self) -> None:
        """See `Workload.run`."""
        while self.world.is_writing:
            await (self.meet() if self.rng.random() < 0.1 else self.rest(self._mean_gap_s))
            try:
                if self._truncates and self.rng.random() < 0.05:
                    await self._truncate()
                elif self.rng.random() < 0.2:
                    await self._read_info()
                elif self.rng.random() < 0.1:
                    await self._locate()
                elif self.rng.random() < 0.15:
                    await self._append_twice()
                else:
                    await self._append()
            except PenstockError as error:
                if not self.world.is_passing(error):
                    self.world.problem(f"{self.name}: {self._segment}: {error!r}")
                    return

    async def verify(self) -> None:
        """See `Workload.verify`."""
        await self.world.insist(f"info of {self._segment}", self._read_info)

    async def _append(self, *, is_conditional: bool = False, is_alone: bool = True) -> None:
        history = self.world.history
        self._number += 1
        data = f"<{self.name} {self._number} ".encode() + self.world.padding(self.rng) + b">"
        expected = self._length if is_conditional or self.rng.random() < 0.3 else None
        call = history.invoke(self.name, AppendBytes(self._segment, data))
        try:
            end = await self.client._segment_client.append(self._segment, data, expected_offset=expected)
        except BadOffsetError as error:
            history.refuse(call, error)
            self._saw(error.actual, is_alone=is_alone)
        except PenstockError as error:
            history.unknown(call, error)
            raise
        else:
            history.ok(call, end - len(data))
            self._saw(end, is_alone=is_alone)
            if expected is not None and end != expected + len(data):
                self.world.problem(f"{self._segment}: {len(data)} bytes were to go to {expected}, they end at {end}")
            self.world.counts["byte appends"] += 1

    async def _append_twice(self) -> None:
        """Append unconditionally, and conditionally on the length before that is answered."""
        first = asyncio.create_task(self._append(is_alone=False))
        await asyncio.sleep(self.rng.choice((0.0, 0.001)))
        try:
            await self._append(is_conditional=True, is_alone=False)
        finally:
            await first

    async def _truncate(self) -> None:
        offset = self.rng.randint(self._length // 2, self._length)
        try:
            await self.client._segment_client.truncate_segment(self._segment, offset)
        except SegmentTruncatedError:
            return  # It was already truncated further.
        self.world.history.see(self.name, OffsetSeen(f"start of {self._segment}", offset))
        self.world.counts["segment truncations"] += 1

    async def _locate(self) -> None:
        """Get a border between appends after a random byte."""
        before = self._length
        offset = self.rng.randint(before // 2, before)
        try:
            border = await self.client._segment_client.locate_offset(self._segment, offset)
        except SegmentTruncatedError:
            return  # It was already truncated further.
        info = await self.client._segment_client.segment_info(self._segment)
        if not offset <= border <= info.length:
            self.world.problem(f"{self._segment}: the border behind {offset} is {border}, its length is {info.length}")
        self.world.counts["borders located"] += 1

    async def _read_info(self) -> None:
        history = self.world.history
        call = history.invoke(self.name, GetLength(self._segment))
        try:
            info = await self.client._segment_client.segment_info(self._segment)
        except PenstockError as error:
            history.fail(call, error)
            raise
        history.ok(call, info.length)
        self._saw(info.length)
        self.world.history.see(self.name, OffsetSeen(f"start of {self._segment}", info.start_offset))

    def _saw(self, length: int, *, is_alone: bool = True) -> None:
        """Record a length. Two concurrent calls may be answered in either order."""
        if not is_alone:
            self._length = max(self._length, length)
            return
        self._length = length
        self.world.history.see(self.name, OffsetSeen(f"length of {self._segment}", length))


class ByteReader(Workload):
    """Follows a segment's tail, rereads older parts now and then, and reads all of it at the end."""

    def __init__(self, world: World, host: Host, name: str, rng: random.Random, *, segment: str) -> None:
        super().__init__(world, host, name, rng)
        self._segment = segment
        self._offset = 0

    async def run(self) -> None:
        """See `Workload.run`."""
        while self.world.is_writing:
            try:
                if self._offset and self.rng.random() < 0.3:
                    await self._read(self.rng.randrange(self._offset), wait=False)
                else:
                    self._offset = await self._read(self._offset, wait=False)
            except SegmentTruncatedError as error:
                self._offset = max(self._offset, error.start_offset)
            except PenstockError as error:
                if not self.world.is_passing(error):
                    self.world.problem(f"{self.name}: {self._segment}: {error!r}")
                    return
            await self.rest(0.4)

    async def verify(self) -> None:
        """See `Workload.verify`."""
        world = self.world
        info = await world.insist("info", partial(self.client._segment_client.segment_info, self._segment))
        if info.length < self._offset:
            world.problem(f"{self._segment}: its length is {info.length}, bytes up to {self._offset} had been read")
        offset = info.start_offset
        while offset < info.length:
            following = await world.insist("read", partial(self._read, offset, wait=False))
            if following == offset:
                world.problem(f"{self._segment}: nothing to read at {offset}, its length is {info.length}")
                return
            offset = following

    async def _read(self, offset: int, *, wait: bool) -> int:
        history = self.world.history
        call = history.invoke(self.name, ReadRange(self._segment, offset))
        try:
            data = await self.client._segment_client.read(self._segment, offset, _READ_BYTES, wait=wait)
        except PenstockError as error:
            history.fail(call, error)
            raise
        history.ok(call, data.joined())
        self.world.counts["byte reads"] += 1
        return offset + len(data.joined())


class SegmentLives(Workload):
    """Creates segments one after another, appends to them, truncates, seals, reads and deletes them."""

    def __init__(
        self, world: World, host: Host, name: str, rng: random.Random, *, prefix: str, mean_gap_s: float
    ) -> None:
        super().__init__(world, host, name, rng)
        self._prefix = prefix
        self._mean_gap_s = mean_gap_s
        self._gone: list[str] = []

    async def run(self) -> None:
        """See `Workload.run`."""
        number = 0
        while self.world.is_writing:
            await self.rest(self._mean_gap_s)
            number += 1
            segment = f"{self._prefix}{number}/0.#epoch.0"
            try:
                await self._live(segment)
            except OutcomeUnknownError:
                continue
            except PenstockError as error:
                if not self.world.is_passing(error):
                    self.world.problem(f"{self.name}: {segment}: {error!r}")

    async def verify(self) -> None:
        """See `Workload.verify`: deleted segments stay deleted."""
        for segment in self._gone:
            try:
                info = await self.world.insist("info", partial(self.client._segment_client.segment_info, segment))
            except NoSuchSegmentError:
                continue
            self.world.problem(f"{segment} was deleted, and is there again: {info}")

    async def _live(self, segment: str) -> None:
        segments, rng, history = self.client._segment_client, self.rng, self.world.history
        await segments.create_segment(segment)
        self.world.counts["segments created"] += 1
        length = 0
        for number in range(rng.randint(1, 5)):
            data = f"<{segment} {number} ".encode() + self.world.padding(rng) + b">"
            call = history.invoke(self.name, AppendBytes(segment, data))
            try:
                length = await segments.append(segment, data)
            except PenstockError as error:
                history.unknown(call, error)
                raise
            history.ok(call, length - len(data))
            await self.rest(self._mean_gap_s / 4)
        start = rng.randint(0, length) if rng.random() < 0.5 else 0
        if start:
            await segments.truncate_segment(segment, start)
        await segments.seal_segment(segment)
        await self._check_sealed(segment, start, length)
        if rng.random() < 0.7:
            await segments.delete_segment(segment)
            self._gone.append(segment)
            self.world.counts["segments deleted"] += 1

    async def _check_sealed(self, segment: str, start: int, length: int) -> None:
        segments, world = self.client._segment_client, self.world
        try:
            await segments.append(segment, b"too late")
        except SegmentSealedError:
            pass  # Expected.
        else:
            world.problem(f"{segment} took an append after it was sealed")
        info = await segments.segment_info(segment)
        if (info.start_offset, info.length, info.is_sealed) != (start, length, True):
            world.problem(f"{segment}: truncated at {start} and sealed at {length}, but is {info}")
        if start < length:
            call = world.history.invoke(self.name, ReadRange(segment, start))
            try:
                data = (await segments.read(segment, start, length - start)).joined()
            except PenstockError as error:
                world.history.fail(call, error)
                raise
            world.history.ok(call, data)
        if start:
            try:
                await segments.read(segment, start - 1, 1)
            except SegmentTruncatedError:
                pass  # Expected.
            else:
                world.problem(f"{segment}: a byte before its start {start} was served")
