"""Processes take logs in one bucket from each other, under every fault of a bucket. Planted mistakes are found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.model.errors import ObjectChangedError, ObjectExistsError
from penstock.segmentstore.tier1.object_log.container_record import ContainerRecord
from penstock.segmentstore.tier1.object_log.journal_format import journal_folder
from penstock.segmentstore.tier1.object_log.journal_reader import UpwardReader
from penstock.segmentstore.tier1.object_log.journal_writer import JournalWriter
from penstock.segmentstore.tier1.object_log.log_bucket import LogBucket, StoredRecord
from penstock.segmentstore.tier1.object_log.object_log import ObjectLog
from support.log_fleet import LogFleet

#: Within so many seeds a mistake is found; all but one are found by every fifth or so.
SEED_COUNT_MAX = 120


@pytest.mark.parametrize("seed", range(12))
def test_nothing_acknowledged_is_lost_repeated_or_out_of_order(seed: int) -> None:
    fleet = LogFleet(seed).run()
    assert fleet.check() == []
    # Otherwise it shows nothing.
    for history in fleet.histories.values():
        assert len(history.seen) > 5
        assert len(history.acknowledged) > 50


def delete_seals(patch: pytest.MonkeyPatch) -> None:
    """A trim deletes all objects of a journal."""

    async def list_slots(self: LogBucket, journal: bytes) -> tuple[list[int], bool]:
        slots = []
        async for page in self.objects.list(journal_folder(self.prefix, journal)):
            slots += [int(info.key.rpartition("/")[2], 16) for info in page]
        return slots, True

    patch.setattr(LogBucket, "list_slots", list_slots)


def acknowledge_in_any_order(patch: pytest.MonkeyPatch) -> None:
    """Slots are settled as they come."""
    settle = JournalWriter._settle

    def settle_done(self: JournalWriter) -> None:
        done = [slot for slot in self._slots if slot.is_done]
        left = [slot for slot in self._slots if not slot.is_done]
        self._slots.clear()
        self._slots.extend([*done, *left])
        settle(self)

    def slot_settled(self: ObjectLog, slot: int, appends: object, began_s: float) -> None:
        for append in appends:  # type: ignore[attr-defined]  # A sequence of `Append`.
            self._unacknowledged.remove(append)
            self._unacknowledged.appendleft(append)
            original(self, slot, [append], began_s)

    original = ObjectLog.slot_settled
    patch.setattr(ObjectLog, "slot_settled", slot_settled)
    patch.setattr(JournalWriter, "_settle", settle_done)


def seal_after_the_last_slot(patch: pytest.MonkeyPatch) -> None:
    """A reader passes over free slots if there are more after them."""
    read_up = UpwardReader.read_up

    async def read_over(self: UpwardReader, end: int | None = None) -> None:
        await read_up(self, end)
        while end is None and not self.is_sealed and await self._reader.part(self.journal, self.slot + 1) is not None:
            self.parts.append(type(self.parts[0])(self.parts[0].kind) if self.parts else None)  # type: ignore[arg-type]
            self.slot += 1
            await read_up(self, end)

    patch.setattr(UpwardReader, "read_up", read_over)


def take_exists_for_success(patch: pytest.MonkeyPatch) -> None:
    """A creation that is answered with "exists" counts as done."""
    put_hedged = LogBucket._put_hedged

    async def put(self: LogBucket, key: str, content: bytes, tag: str) -> None:
        try:
            await put_hedged(self, key, content, tag)
        except ObjectExistsError:
            return

    patch.setattr(LogBucket, "_put_hedged", put)


def change_without_condition(
    is_planted: Callable[[StoredRecord | None, ContainerRecord], bool],
) -> Callable[[pytest.MonkeyPatch], None]:
    """A change of a record is made whatever the record is now."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        change = LogBucket.change_record

        async def change_always(self: LogBucket, before: StoredRecord | None, record: ContainerRecord) -> StoredRecord:
            while is_planted(before, record):
                try:
                    return await change(self, await self.read_record(record.container_id), record)
                except ObjectChangedError:
                    continue
            return await change(self, before, record)

        patch.setattr(LogBucket, "change_record", change_always)

    return plant


def is_open(before: StoredRecord | None, record: ContainerRecord) -> bool:
    return before is None or record.epoch > before.record.epoch


def is_roll(before: StoredRecord | None, record: ContainerRecord) -> bool:
    if before is None or record.epoch != before.record.epoch or not record.pieces or not before.record.pieces:
        return False
    return record.pieces[-1].journal != before.record.pieces[-1].journal and record.pieces[-1].end is None


def roll_before_slots_are_settled(patch: pytest.MonkeyPatch) -> None:
    """What is below a seal and not settled is sent again, too."""
    found_seal = JournalWriter._found_seal

    def found(self: JournalWriter, slot: int) -> None:
        found_seal(self, slot)
        self.settled = slot

    patch.setattr(JournalWriter, "_found_seal", found)


def delete_before_the_record(patch: pytest.MonkeyPatch) -> None:
    """A truncation deletes, and is recorded some time later."""
    record_truncation = ObjectLog.record_truncation

    async def record_late(self: ObjectLog) -> None:
        stored = self._stored
        if stored is not None and self._truncation > stored.record.truncation:
            self._process.trim.note(stored.record.truncated(self._truncation))
            await self._process.trim.run_once()
            await asyncio.sleep(3.0)
        await record_truncation(self)

    patch.setattr(ObjectLog, "record_truncation", record_late)


#: By name: how it is planted, and a seed that found it when this was written.
PLANTED = {
    "seals are deleted with the trim": (delete_seals, 4),
    "acknowledgements out of slot order": (acknowledge_in_any_order, 0),
    "the seal goes behind the last slot": (seal_after_the_last_slot, 0),
    "exists is taken for success": (take_exists_for_success, 0),
    "an open without the final condition": (change_without_condition(is_open), 0),
    "a roll without a condition": (change_without_condition(is_roll), 0),
    "a resend before the slots below are settled": (roll_before_slots_are_settled, 18),
    "a deletion before the record": (delete_before_the_record, 0),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, first = PLANTED[name]
    plant(monkeypatch)
    for seed in range(first, first + SEED_COUNT_MAX):
        try:
            if LogFleet(seed).run().check():
                return
        except AssertionError:
            return
    pytest.fail(f"{name}: not found by {SEED_COUNT_MAX} seeds")
