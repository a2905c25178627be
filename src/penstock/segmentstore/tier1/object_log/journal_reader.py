"""Reads the frames of one container from journals: upward to the first free slot, and a known range of slots ahead."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass

from penstock.model.errors import CorruptionError, NoSuchObjectError
from penstock.runtime.waits import cancel_and_wait
from penstock.segmentstore.later_format import LaterFormatError
from penstock.segmentstore.tier1.durable_log import InspectFrame
from penstock.segmentstore.tier1.object_log.journal_format import (
    ObjectKind,
    Section,
    decode_header,
    decode_section,
    decode_table,
    journal_key,
)
from penstock.segmentstore.tier1.object_log.log_bucket import LogBucket
from penstock.segmentstore.tier1.object_log.settings import ObjectLogSettings
from penstock.segmentstore.tier1.object_log.shared_slots import SharedSlots


@dataclass(frozen=True, slots=True)
class SlotPart:
    """What a slot has for one container: a section, or none. `data`: its bytes, if they have been read."""

    kind: ObjectKind
    section: Section | None = None
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class SlotPlace:
    """A slot to be read. `ordinal`: of the piece that it is in. `part`: what is known of it."""

    ordinal: int
    journal: bytes
    slot: int
    part: SlotPart | None = None


@dataclass(frozen=True, slots=True)
class SlotFrames:
    """The frames of one container in a slot."""

    ordinal: int
    slot: int
    frames: Sequence[bytes]


class JournalReader:
    """Reads sections of container `container_id`. `shared`: reads slots together with others."""

    def __init__(
        self, bucket: LogBucket, settings: ObjectLogSettings, container_id: int, shared: SharedSlots | None = None
    ) -> None:
        self._bucket = bucket
        self._settings = settings
        self._container_id = container_id
        self._shared = shared

    async def part(self, journal: bytes, slot: int) -> SlotPart | None:
        """Read header and table of a slot; None if it is free. Raises `UnreadableDataError`."""
        key = journal_key(self._bucket.prefix, journal, slot)
        if self._shared is not None:
            head = await self._shared.head(journal, slot)
        else:
            head = await self._bucket.slot_start(journal, slot, self._settings.read_head_bytes)
        if head is None:
            return None
        header = decode_header(head, key, journal, slot)
        if header.kind is ObjectKind.SEAL:
            return SlotPart(header.kind)
        if header.table_end > len(head) >= self._settings.read_head_bytes:
            rest = await self._bucket.slot_range(journal, slot, len(head), header.table_end - len(head))
            head += rest
        for section in decode_table(header, head, key):
            if section.container == self._container_id:
                end = section.offset + section.length
                return SlotPart(header.kind, section, head[section.offset : end] if end <= len(head) else None)
        return SlotPart(header.kind)

    async def data(self, journal: bytes, slot: int, part: SlotPart) -> bytes:
        """Return the bytes of a section; empty if there is none. Raises `CorruptionError`."""
        section = part.section
        if section is None or part.data is not None:
            return part.data or b""
        try:
            return await self._bucket.slot_range(journal, slot, section.offset, section.length)
        except NoSuchObjectError:
            key = journal_key(self._bucket.prefix, journal, slot)
            raise CorruptionError(key, 0, "it was there, and is missing now") from None

    async def frames(self, journal: bytes, slot: int, part: SlotPart) -> list[bytes]:
        """Return the frames of a section. Raises `CorruptionError`."""
        if part.section is None:
            return []
        data = await self.data(journal, slot, part)
        return decode_section(part.section, data, journal_key(self._bucket.prefix, journal, slot))

    async def known_range(self, places: Iterable[SlotPlace]) -> AsyncGenerator[SlotFrames, None]:
        """Yield the frames of slots in their order, reading ahead within `read_slots_max` and `read_bytes_max`.

        Raises `CorruptionError` for a slot that is missing or sealed: all of them are inside of pieces.
        """
        loop = asyncio.get_running_loop()
        waiting: Iterator[SlotPlace] = iter(places)
        heads: deque[tuple[SlotPlace, asyncio.Task[SlotPart]]] = deque()
        bodies: deque[tuple[SlotPlace, int, asyncio.Task[list[bytes]]]] = deque()
        body_bytes = 0
        try:
            while True:
                while len(heads) < self._settings.read_slots_max and (place := next(waiting, None)) is not None:
                    heads.append((place, loop.create_task(self._present_part(place))))
                while heads and heads[0][1].done() and (not bodies or body_bytes < self._settings.read_bytes_max):
                    place, head = heads.popleft()
                    part = head.result()
                    length = 0 if part.section is None else part.section.length
                    body_bytes += length
                    bodies.append((place, length, loop.create_task(self.frames(place.journal, place.slot, part))))
                if bodies and bodies[0][2].done():
                    place, length, body = bodies.popleft()
                    body_bytes -= length
                    if frames := body.result():
                        yield SlotFrames(place.ordinal, place.slot, frames)
                    continue
                tasks: list[asyncio.Task[SlotPart] | asyncio.Task[list[bytes]]] = []
                if bodies:
                    tasks.append(bodies[0][2])
                if heads and not heads[0][1].done():
                    tasks.append(heads[0][1])
                if not tasks:
                    return
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left = [*(head for _, head in heads), *(body for _, _, body in bodies)]
            await cancel_and_wait(*left)

    async def _present_part(self, place: SlotPlace) -> SlotPart:
        part = place.part if place.part is not None else await self.part(place.journal, place.slot)
        if part is None or part.kind is ObjectKind.SEAL:
            what = "it is missing" if part is None else "it is a seal"
            key = journal_key(self._bucket.prefix, place.journal, place.slot)
            raise CorruptionError(key, 0, f"{what}, although the log of container {self._container_id} includes it")
        return part


class UpwardReader:
    """Reads a piece that may have no end yet, slot by slot, and keeps what it has read, up to a number of bytes.

    Attributes:
        slot: the first slot that was not read: free, or a seal (`is_sealed`).
        parts: what the slots before it have, from `first` on.
    """

    def __init__(
        self,
        reader: JournalReader,
        journal: bytes,
        first: int,
        settings: ObjectLogSettings,
        inspect: InspectFrame | None,
    ) -> None:
        self.journal: bytes = journal
        self.first: int = first
        self.slot: int = first
        self.is_sealed: bool = False
        self.parts: list[SlotPart] = []
        self._reader = reader
        self._settings = settings
        self._inspect = inspect
        self._kept_bytes = 0

    async def read_up(self, end: int | None = None) -> None:
        """Read until a slot is free or sealed, or up to `end`. Raises `UnreadableDataError`, the inspection's error."""
        count_max = self._settings.read_slots_max
        while not self.is_sealed and (end is None or self.slot < end):
            count = count_max
            if end is not None:
                count = min(count, end - self.slot)
            if end is None and not self.parts:
                count = 1  # A journal often ends right here.
            else:
                count_max = max(count_max, min(2 * count_max, self._settings.open_slots_max))
            first = self.slot
            found = await asyncio.gather(*(self._reader.part(self.journal, first + index) for index in range(count)))
            present: list[SlotPart] = []
            for part in found:
                if part is None or part.kind is ObjectKind.SEAL:
                    break
                present.append(part)
            # At once: one request after the other would take a round trip for each slot.
            for part in await asyncio.gather(*(self._kept(first + index, part) for index, part in enumerate(present))):
                await self._inspect_frames(part)
                self.parts.append(part)
                self.slot += 1
            if len(present) < count:
                self.is_sealed = found[len(present)] is not None
                return

    async def _kept(self, slot: int, part: SlotPart) -> SlotPart:
        """Read the bytes of a slot and keep them, if there is room for them."""
        section = part.section
        if section is None or self._kept_bytes + section.length > self._settings.kept_bytes_max:
            return SlotPart(part.kind, section)
        self._kept_bytes += section.length
        return SlotPart(part.kind, section, await self._reader.data(self.journal, slot, part))

    async def _inspect_frames(self, part: SlotPart) -> None:
        """Inspect the frames of the next slot, if its bytes are kept."""
        if self._inspect is None or part.data is None:
            return
        for frame in await self._reader.frames(self.journal, self.slot, part):
            try:
                self._inspect(frame)
            except LaterFormatError as error:
                raise error.at(f"slot {self.slot} of journal {self.journal.hex()}") from error
