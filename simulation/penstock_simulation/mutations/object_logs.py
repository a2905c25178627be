"""Planted bugs in logs in a bucket: each breaks one rule of the protocol in docs/object-log.md."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from penstock.model.errors import ObjectChangedError, ObjectExistsError, StorageError
from penstock.segmentstore.tier1.object_log.container_record import ContainerRecord
from penstock.segmentstore.tier1.object_log.journal_format import ObjectKind, journal_folder, journal_key
from penstock.segmentstore.tier1.object_log.journal_reader import SlotPart, UpwardReader
from penstock.segmentstore.tier1.object_log.journal_writer import Append, JournalWriter
from penstock.segmentstore.tier1.object_log.log_bucket import LogBucket, StoredRecord
from penstock.segmentstore.tier1.object_log.object_log import ObjectLog
from penstock_simulation.mutations.mutation import Mutation, patched
from penstock_simulation.workloads.plans import PlanSettings
from penstock_simulation.workloads.profile import Profile

#: Processes take logs of small journals from each other all the time; requests to their bucket often go wrong.
TAKEN_OBJECT_LOGS = Profile(
    name="taken object logs", object_log_rate=1.0, log_fault_rates=(0.03,), takeover_gap_s=1.0, move_share=0.4,
    plan=PlanSettings(
        duration_s=16.0, lasts_s_max=4.0, mean_gap_s_min=1.0, mean_gap_s_max=3.0, kinds=("Pause", "Crash"),
        swizzle_rate=0.0, crash_loop_rate=0.0, zombie_rate=0.0,
    ),
    workloads=("events", "bytes"), share=1.0, writing_s=18.0, shared_storage_rate=1.0, memory_flip_rate=0.0,
    refused_rate=0.0, scale_rate=0.0,
)  # fmt: skip


#: An owner is suspended until its journal is not needed any more, and resumes.
_LONG_PAUSES = replace(
    TAKEN_OBJECT_LOGS, name="suspended owners of object logs", store_count_min=2, container_count=2, move_share=1.0,
    plan=replace(TAKEN_OBJECT_LOGS.plan, lasts_s_max=14.0, kinds=("Pause",)), pace=3.0,
)  # fmt: skip


def _delete_seals() -> AbstractContextManager[None]:
    async def list_slots(self: LogBucket, journal: bytes) -> tuple[list[int], bool]:
        slots = []
        async for page in self.objects.list(journal_folder(self.prefix, journal)):
            slots += [int(info.key.rpartition("/")[2], 16) for info in page]
        return slots, True

    return patched(LogBucket, "list_slots", list_slots)


@contextmanager
def _acknowledge_in_any_order() -> Iterator[None]:
    settle, settled = JournalWriter._settle, ObjectLog.slot_settled

    def settle_done(self: JournalWriter) -> None:
        done = [slot for slot in self._slots if slot.is_done]
        left = [slot for slot in self._slots if not slot.is_done]
        self._slots.clear()
        self._slots.extend([*done, *left])
        settle(self)

    def slot_settled(self: ObjectLog, slot: int, appends: Sequence[Append], began_s: float) -> None:
        for append in appends:
            self._unacknowledged.remove(append)
            self._unacknowledged.appendleft(append)
            settled(self, slot, [append], began_s)

    with patched(ObjectLog, "slot_settled", slot_settled), patched(JournalWriter, "_settle", settle_done):
        yield


def _seal_after_the_last_slot() -> AbstractContextManager[None]:
    read_up = UpwardReader.read_up

    async def read_over(self: UpwardReader, end: int | None = None) -> None:
        await read_up(self, end)
        while end is None and not self.is_sealed and await self._reader.part(self.journal, self.slot + 1) is not None:
            self.parts.append(SlotPart(ObjectKind.DATA))
            self.slot += 1
            await read_up(self, end)

    return patched(UpwardReader, "read_up", read_over)


def _take_exists_for_success() -> AbstractContextManager[None]:
    put_hedged = LogBucket._put_hedged

    async def put(self: LogBucket, key: str, content: bytes, tag: str) -> None:
        try:
            await put_hedged(self, key, content, tag)
        except ObjectExistsError:
            return

    return patched(LogBucket, "_put_hedged", put)


def _take_exists_for_a_seal() -> AbstractContextManager[None]:
    create = LogBucket.create

    async def create_or_end(self: LogBucket, journal: bytes, slot: int, content: bytes, nonce: bytes) -> bool:
        try:
            await self._put_hedged(journal_key(self.prefix, journal, slot), content, nonce.hex())
        except ObjectExistsError:
            return False
        except StorageError:
            return await create(self, journal, slot, content, nonce)
        return True

    return patched(LogBucket, "create", create_or_end)


def _change_without_condition(
    is_planted: Callable[[StoredRecord | None, ContainerRecord], bool],
) -> AbstractContextManager[None]:
    change = LogBucket.change_record

    async def change_always(self: LogBucket, before: StoredRecord | None, record: ContainerRecord) -> StoredRecord:
        while is_planted(before, record):
            try:
                return await change(self, await self.read_record(record.container_id), record)
            except ObjectChangedError:
                continue
        return await change(self, before, record)

    return patched(LogBucket, "change_record", change_always)


def _is_open(before: StoredRecord | None, record: ContainerRecord) -> bool:
    return before is None or record.epoch > before.record.epoch


def _is_roll(before: StoredRecord | None, record: ContainerRecord) -> bool:
    if before is None or record.epoch != before.record.epoch or not record.pieces or not before.record.pieces:
        return False
    return record.pieces[-1].journal != before.record.pieces[-1].journal and record.pieces[-1].end is None


def _roll_before_slots_are_settled() -> AbstractContextManager[None]:
    found_seal = JournalWriter._found_seal

    def found(self: JournalWriter, slot: int) -> None:
        found_seal(self, slot)
        self.settled = slot

    return patched(JournalWriter, "_found_seal", found)


def _delete_before_the_record() -> AbstractContextManager[None]:
    record_truncation = ObjectLog.record_truncation

    async def record_late(self: ObjectLog) -> None:
        stored = self._stored
        if stored is not None and self._truncation > stored.record.truncation:
            self._process.trim.changed(None, stored.record.truncated(self._truncation))
            await self._process.trim.run_once()
            await asyncio.sleep(3.0)
        await record_truncation(self)

    return patched(ObjectLog, "record_truncation", record_late)


def _planted(name: str, breaks: str, apply: Callable[[], AbstractContextManager[None]]) -> Mutation:
    return Mutation(name, breaks, TAKEN_OBJECT_LOGS, apply)


_READ = "what is acknowledged is in what each later incarnation reads"

OBJECT_LOG_MUTATIONS: tuple[Mutation, ...] = (
    _planted("acknowledge slots in any order", _READ, _acknowledge_in_any_order),
    _planted("seal after the last slot that is found", _READ, _seal_after_the_last_slot),
    _planted("take an object that exists for the own one", _READ, _take_exists_for_success),
    _planted("take an object that exists for a seal", "a journal ends at its seal", _take_exists_for_a_seal),
    _planted("open a log without the last condition", _READ, lambda: _change_without_condition(_is_open)),
    _planted("continue in another journal without a condition", _READ, lambda: _change_without_condition(_is_roll)),
    _planted("delete slots before the truncation is recorded", _READ, _delete_before_the_record),
)  # fmt: skip
"""Planted bugs, part of `MUTATIONS`."""

FLEET_LOG_MUTATIONS: tuple[Mutation, ...] = (
    Mutation("delete seals with the trim", _READ, _LONG_PAUSES, _delete_seals),
    _planted("send again before the slots below are settled", "no operation is applied twice",
             _roll_before_slots_are_settled),
)  # fmt: skip
"""Planted bugs that whole clusters find in too few seeds; `support.log_fleet` in the tests finds them."""
