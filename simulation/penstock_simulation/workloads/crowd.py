"""More segments than fit into memory, and merges that are counted by a conditional attribute."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial

from penstock.client.transport.replies import expect
from penstock.model.errors import (
    BadAttributeError,
    BadOffsetError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    PenstockError,
    SegmentSealedError,
)
from penstock.model.names import TRANSACTION_DELIMITER
from penstock.model.segments import NO_VALUE
from penstock.wire.commands import AttributeUpdate, MergeSegments, SegmentAttributeUpdated, SegmentsMerged
from penstock_simulation.checks.history import AppendBytes, ReadRange
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.world import Workload, World

_READ_BYTES = 8 * 1024
#: Type of an attribute update on the wire: replace if it equals the old value.
_REPLACE_IF_EQUALS = 4


@dataclass(slots=True)
class _Member:
    """The expected state of one of a client's own segments, which no other client uses.

    `life` counts the segments of that name. `length` was acknowledged; up to `doubt` more bytes may exist, from calls
    without an answer. `attributes` are acknowledged values; `doubtful` are values that may have replaced them.
    """

    name: str
    life: int = 0
    length: int = 0
    start: int = 0
    doubt: int = 0
    is_sealed: bool = False
    attributes: dict[bytes, int] = field(default_factory=dict)
    doubtful: dict[bytes, list[int]] = field(default_factory=dict)

    @property
    def history_name(self) -> str:
        """Its name in the history, where a byte never changes."""
        return f"{self.name} (life {self.life})"


class SegmentCrowd(Workload):
    """Works on very many segments of its own, a few calls on each, and creates and deletes some."""

    def __init__(
        self, world: World, host: Host, name: str, rng: random.Random, *, prefix: str, segment_count: int,
        mean_gap_s: float,
    ) -> None:  # fmt: skip
        super().__init__(world, host, name, rng)
        self._prefix = prefix
        self._segment_count = segment_count
        self._mean_gap_s = mean_gap_s
        self._number = 0
        self._members: list[_Member] = []
        #: Segments that were certainly deleted: their names may be reused.
        self._free: list[_Member] = []

    async def run(self) -> None:
        """See `Workload.run`."""
        while self.world.is_writing:
            await self.rest(self._mean_gap_s)
            try:
                if len(self._members) < self._segment_count and self.rng.random() < 0.5:
                    await self._create()
                elif self._members:
                    await self._work(self._member())
            except PenstockError as error:
                if not self.world.is_passing(error):
                    self.world.problem(f"{self.name}: {error!r}")

    async def verify(self) -> None:
        """See `Workload.verify`."""
        for member in self._members:
            await self.world.insist(f"check of {member.name}", partial(self._check, member))
        for member in self._free:
            await self._check_gone(member)

    def _member(self) -> _Member:
        """Return one of the newest segments half of the time, so that some are used often while others are idle."""
        members = self._members
        return self.rng.choice(members[-5:] if self.rng.random() < 0.3 else members)

    async def _create(self) -> None:
        if self._free and self.rng.random() < 0.6:
            last = self._free.pop(self.rng.randrange(len(self._free)))
            member = _Member(last.name, last.life + 1)
        else:
            self._number += 1
            member = _Member(f"{self._prefix}{self._number}/0.#epoch.0")
        # After a lost reply the name is not used: the segment may still be created later.
        await self.client._segment_client.create_segment(member.name)
        self._members.append(member)
        self.world.counts["crowd segments created"] += 1

    async def _work(self, member: _Member) -> None:
        kind = self.rng.random()
        if kind < 0.3:
            await self._append(member)
        elif kind < 0.5:
            await self._set_attribute(member)
        elif kind < 0.6:
            await self._info(member)
        elif kind < 0.7:
            await self._infos()
        elif kind < 0.85:
            await self._check(member)
        elif kind < 0.9:
            await self._truncate(member)
        elif kind < 0.93:
            await self._seal(member)
        else:
            await self._delete(member)

    async def _append(self, member: _Member) -> None:
        history = self.world.history
        self._number += 1
        data = f"<{self.name} {self._number} ".encode() + self.world.padding(self.rng) + b">"
        call = history.invoke(self.name, AppendBytes(member.history_name, data))
        member.doubt += len(data)
        try:
            end = await self.client._segment_client.append(member.name, data)
        except SegmentSealedError as error:
            history.fail(call, error)
            member.doubt -= len(data)
            if not member.is_sealed:
                self._wrong(member, "it is sealed")
        except PenstockError as error:
            history.unknown(call, error)
            raise
        else:
            history.ok(call, end - len(data))
            if member.is_sealed:
                self._wrong(member, "it took an append after it was sealed")
            if end < member.length + len(data):
                self._wrong(member, f"{len(data)} bytes behind {member.length} end at {end}")
            self._saw_length(member, end)

    async def _set_attribute(self, member: _Member) -> None:
        attribute = bytes(15) + bytes([self.rng.randrange(1, 12)])
        value = await self._attribute(member, attribute)
        if member.is_sealed:
            return
        self._number += 1
        following = self._number if self.rng.random() < 0.85 or value == NO_VALUE else NO_VALUE
        member.doubtful.setdefault(attribute, []).append(following)
        is_set = await self.client._segment_client.update_attribute(
            member.name, attribute, value=following, expected=value
        )
        if is_set:
            if not any(other != following for other in member.doubtful[attribute]):
                del member.doubtful[attribute]
            member.attributes[attribute] = following
            self.world.counts["crowd attributes set"] += 1
        elif len(member.doubtful[attribute]) == 1:
            self._wrong(member, f"attribute {attribute[-1]} was {value}, and an update on that condition failed")

    async def _attribute(self, member: _Member, attribute: bytes) -> int:
        value = await self.client._segment_client.get_attribute(member.name, attribute)
        expected = member.attributes.get(attribute, NO_VALUE)
        if value != expected and value not in member.doubtful.get(attribute, ()):
            self._wrong(member, f"attribute {attribute[-1]} is {value}, it was set to {expected}")
        return value

    async def _info(self, member: _Member) -> None:
        info = await self.client._segment_client.segment_info(member.name)
        self._saw_length(member, info.length)
        if info.start_offset != member.start or info.is_sealed != member.is_sealed:
            self._wrong(member, f"it should start at {member.start} and be sealed: {member.is_sealed}; it is {info}")

    async def _infos(self) -> None:
        """Get the infos of many segments in one call."""
        some = self.rng.sample(self._members, min(10, len(self._members)))
        infos = await self.client._segment_client.segment_infos([member.name for member in some])
        for member, info in zip(some, infos, strict=True):
            if isinstance(info, NoSuchSegmentError):
                self._wrong(member, "it is not there")
            elif not isinstance(info, PenstockError):
                self._saw_length(member, info.length)
        self.world.counts["crowd bulk infos"] += 1

    def _saw_length(self, member: _Member, length: int) -> None:
        if not member.length <= length <= member.length + member.doubt:
            self._wrong(member, f"its length is {length}, {member.length} bytes were known, {member.doubt} in doubt")
        member.doubt -= max(length - member.length, 0)
        member.length = max(length, member.length)

    async def _check(self, member: _Member) -> None:
        """Compare everything with the expected state."""
        await self._info(member)
        if member.start < member.length:
            start = member.start if self.rng.random() < 0.5 else self.rng.randrange(member.start, member.length)
            call = self.world.history.invoke(self.name, ReadRange(member.history_name, start))
            try:
                data = (await self.client._segment_client.read(member.name, start, _READ_BYTES)).joined()
            except PenstockError as error:
                self.world.history.fail(call, error)
                raise
            self.world.history.ok(call, data)
            if not data:
                self._wrong(member, f"nothing to read at {start}, its length is {member.length}")
        for attribute in [*member.attributes]:
            await self._attribute(member, attribute)
        self.world.counts["crowd checks"] += 1

    async def _truncate(self, member: _Member) -> None:
        offset = self.rng.randint(member.start, member.length)
        before, member.start = member.start, offset
        try:
            await self.client._segment_client.truncate_segment(member.name, offset)
        except PenstockError:
            # It is unknown which of the two holds: do not use the segment any more.
            member.start = before
            self._members.remove(member)
            raise

    async def _seal(self, member: _Member) -> None:
        if member.doubt or member.doubtful:
            return
        try:
            await self.client._segment_client.seal_segment(member.name)
        except SegmentSealedError:
            if not member.is_sealed:
                self._wrong(member, "it is sealed already")
        except PenstockError:
            self._members.remove(member)
            raise
        member.is_sealed = True

    async def _delete(self, member: _Member) -> None:
        self._members.remove(member)
        try:
            await self.client._segment_client.delete_segment(member.name)
        except NoSuchSegmentError:
            self._wrong(member, "it is not there")
            return
        # A late append of a broken connection may still arrive: do not reuse the name in that case.
        if not member.doubt and not member.doubtful:
            self._free.append(member)
            if self.rng.random() < 0.3:
                await self._check_gone(member)
        self.world.counts["crowd segments deleted"] += 1

    async def _check_gone(self, member: _Member) -> None:
        try:
            info = await self.world.insist("info", partial(self.client._segment_client.segment_info, member.name))
        except NoSuchSegmentError:
            return
        self._wrong(member, f"it was deleted, and is there again: {info}")

    def _wrong(self, member: _Member, what: str) -> None:
        self.world.problem(f"{self.name}: {member.history_name}: {what}")


class MergeClient(Workload):
    """Merges segments into one of its own. An attribute counts the merges; both change atomically."""

    def __init__(self, world: World, host: Host, name: str, rng: random.Random, *, target: str, mean_gap_s: float):
        super().__init__(world, host, name, rng)
        self._target = target
        self._mean_gap_s = mean_gap_s
        self._attribute = bytes(15) + b"\x77"
        self._merged = b""
        self._count = 0
        self._number = 0

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        await self.client._segment_client.create_segment(self._target)

    async def run(self) -> None:
        """See `Workload.run`."""
        while self.world.is_writing:
            await self.rest(self._mean_gap_s)
            self._number += 1
            source = f"{self._target}{TRANSACTION_DELIMITER}{self._number:032x}"
            try:
                data = await self._fill(source)
            except PenstockError as error:
                # The segment may still be created later, so the next one gets another name.
                if not self.world.is_passing(error):
                    self.world.problem(f"{self.name}: {source}: {error!r}")
                continue
            await self._merge(source, data)

    async def verify(self) -> None:
        """See `Workload.verify`."""
        count = await self.world.insist("merge count", self._stored_count)
        data = await self.world.insist(f"read of {self._target}", self._read)
        if count != self._count:
            self.world.problem(f"{self._target}: {self._count} merges were done, it counts {count}")
        if data != self._merged:
            at = next(
                (at for at, (one, other) in enumerate(zip(data, self._merged, strict=False)) if one != other),
                min(len(data), len(self._merged)),
            )
            self.world.problem(
                f"{self._target}: {len(self._merged)} bytes were merged into it, it has {len(data)}, other ones from "
                f"{at} on"
            )

    async def _fill(self, source: str) -> bytes:
        segments, rng = self.client._segment_client, self.rng
        await segments.create_segment(source)
        data = b""
        for _ in range(rng.randint(1, 3)):
            piece = f"<{source[-6:]} {len(data)} ".encode() + self.world.padding(rng) + b">"
            try:
                end = await segments.append(source, piece, expected_offset=len(data))
            except BadOffsetError as error:
                self.world.problem(f"{source}: {len(data)} bytes were appended, it has {error.actual}")
                raise
            data += piece
            if end != len(data):
                self.world.problem(f"{source}: {len(data)} bytes were appended, it has {end}")
        for number in range(12 if rng.random() < 0.2 else 0):
            await segments.update_attribute(source, bytes(14) + bytes([1, number]), value=number, expected=NO_VALUE)
        await self.rest(self._mean_gap_s)
        if rng.random() < 0.3:
            await segments.seal_segment(source)
        return data

    async def _merge(self, source: str, data: bytes) -> None:
        """Merge once, with retries until the outcome is known."""
        world, before = self.world, self._count
        while True:
            try:
                await self._try_merge(source, before)
            except (BadAttributeError, NoSuchSegmentError, OutcomeUnknownError):
                pass  # The count shows whether an earlier attempt succeeded.
            except PenstockError as error:
                if not world.is_passing(error):
                    world.problem(f"{self.name}: merge of {source}: {error!r}")
            count = await world.insist("merge count", self._stored_count)
            if count == before + 1:
                break
            if count != before:
                world.problem(f"{self._target}: it counts {count} merges after {before} and one more")
                self._count = count
                return
            await self.rest(0.3)
        self._count = count
        self._merged += data
        world.counts["merges on condition"] += 1

    async def _try_merge(self, source: str, before: int) -> None:
        updates = (AttributeUpdate(self._attribute, _REPLACE_IF_EQUALS, before + 1, before if before else NO_VALUE),)
        # The client API has no conditional merge; only clients that use the wire protocol directly have it.
        reply = await self.client._segment_client._change(
            self._target, lambda request_id: MergeSegments(request_id, self._target, source, "", updates)
        )
        if isinstance(reply, SegmentAttributeUpdated):
            raise BadAttributeError(self._target, attribute_id=self._attribute, expected=before, actual=NO_VALUE)
        expect(reply, SegmentsMerged, self._target)

    async def _stored_count(self) -> int:
        value = await self.client._segment_client.get_attribute(self._target, self._attribute)
        return 0 if value == NO_VALUE else value

    async def _read(self) -> bytes:
        info = await self.client._segment_client.segment_info(self._target)
        data = b""
        while len(data) < info.length:
            piece = (await self.client._segment_client.read(self._target, len(data), _READ_BYTES)).joined()
            if not piece:
                self.world.problem(f"{self._target}: nothing to read at {len(data)}, its length is {info.length}")
                break
            data += piece
        return data
