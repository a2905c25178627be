"""How entries reach Java: their order and batches, and the end after a failure. Without a virtual machine."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.model.errors.ledgers import LedgerError
from penstock.runtime import java_writer
from penstock.runtime.entry_sender import (
    ALONE_BYTES_MIN,
    BATCH_BYTES_MAX,
    BATCH_ENTRIES_MAX,
    EntrySender,
    EntrySource,
    fill,
    take_batch,
)
from penstock.runtime.java_writer import JavaWriter
from penstock.runtime.ledgers import LedgerEntry, LedgerQuorum


class Entry:
    """An entry with these parts. Notes the threads in which its bytes are put together."""

    def __init__(self, *parts: bytes) -> None:
        self.length = sum(map(len, parts))
        self.threads: list[str] = []
        self._parts = parts

    def parts(self) -> Sequence[bytes]:
        self.threads.append(threading.current_thread().name)
        return self._parts


SMALL = Entry(b"12345678")


class JavaFault(Exception):
    """What Java raises."""


class Answer:
    """A future of Java: of the last entry of a batch."""

    def __init__(self, last: int) -> None:
        self._last = last

    def get(self) -> int:
        return self._last

    def isDone(self) -> bool:
        return True


class LateAnswer:
    """A future of Java, of an entry that is sent alone. `finish` and `fail` complete it."""

    def __init__(self, entry: int) -> None:
        self.awaited = threading.Event()
        self._entry = entry
        self._done = threading.Event()
        self._error: JavaFault | None = None

    def finish(self) -> None:
        self._done.set()

    def fail(self) -> None:
        self._error = JavaFault("fenced")
        self._done.set()

    def get(self) -> int:
        self.awaited.set()
        assert self._done.wait(20)
        if self._error is not None:
            raise self._error
        return self._entry

    def isDone(self) -> bool:
        return self._done.is_set()

    def isCompletedExceptionally(self) -> bool:
        return self._error is not None


class Batches(EntrySender):
    """A sender without a thread, whose ledger is a list of entries. Calls whose number is in `faults` fail."""

    def __init__(self, faults: Sequence[int] = ()) -> None:
        self.woken: deque[EntrySource] = deque()
        self.stored: list[bytes] = []
        self.call_count = 0
        self._faults = faults

    def wake(self, source: EntrySource) -> None:
        self.woken.append(source)

    def send(self, handle: Any, entries: Sequence[LedgerEntry]) -> Any:
        del handle
        self.call_count += 1
        if self.call_count in self._faults:
            raise MemoryError("no memory for a buffer")
        self.stored += [b"".join(entry.parts()) for entry in entries]
        return Answer(len(self.stored) - 1)

    def run(self) -> None:
        """Do what the thread would do."""
        while self.woken:
            self.woken.popleft().send_batch()


class LateBatches(Batches):
    """The same. Each call returns a `LateAnswer`."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[LateAnswer] = []

    def send(self, handle: Any, entries: Sequence[LedgerEntry]) -> Any:
        del handle
        assert len(entries) == 1
        self.answers.append(LateAnswer(len(self.answers)))
        return self.answers[-1]


class Handle:
    """A handle of a ledger. Its metadata name no bookies."""

    def getId(self) -> int:
        return 7

    def getLedgerMetadata(self) -> Any:
        return self

    def getAllEnsembles(self) -> Any:
        return self

    def lastEntry(self) -> Any:
        return self

    def getValue(self) -> Sequence[str]:
        return ()


class Outcomes:
    """Notes what is confirmed, and the failure."""

    def __init__(self) -> None:
        self.last = -1
        self.calls: list[int] = []
        self.errors: list[LedgerError] = []
        self.changed = asyncio.Event()

    def confirmed(self, last_entry: int) -> None:
        assert not self.errors
        assert last_entry > self.last
        self.last = last_entry
        self.calls.append(last_entry)
        self.changed.set()

    def failed(self, error: LedgerError) -> None:
        self.errors.append(error)
        self.changed.set()


async def close_handle() -> None:
    """Close nothing."""


def new_writer(sender: Batches) -> tuple[JavaWriter, Outcomes]:
    """Return a writer over a list, and its outcomes."""
    outcomes = Outcomes()
    loop = asyncio.get_running_loop()
    return JavaWriter(Handle(), LedgerQuorum(), outcomes, loop, sender, close_handle, JavaFault), outcomes


async def test_entries_of_a_turn_are_sent_in_order_by_few_calls_and_confirmed() -> None:
    sender = Batches()
    writer, outcomes = new_writer(sender)
    entries = [b"%08d" % number for number in range(3 * BATCH_ENTRIES_MAX)]
    for entry in entries:
        writer.append(Entry(entry))
    assert len(sender.woken) == 1
    sender.run()
    assert sender.stored == entries
    assert sender.call_count == 3
    while outcomes.last < len(entries) - 1:
        outcomes.changed.clear()
        await asyncio.wait_for(outcomes.changed.wait(), 5)
    await writer.close()
    assert [error.code for error in outcomes.errors] == [-11]


async def test_after_a_batch_that_was_not_sent_no_other_one_is() -> None:
    """An entry after it would get the number of an entry before, and would be confirmed in its place."""
    sender = Batches(faults=(2,))
    writer, outcomes = new_writer(sender)
    for number in range(4 * BATCH_ENTRIES_MAX):
        writer.append(Entry(b"%08d" % number))
    sender.run()
    assert len(sender.stored) == BATCH_ENTRIES_MAX
    while not outcomes.errors:
        outcomes.changed.clear()
        await asyncio.wait_for(outcomes.changed.wait(), 5)
    assert outcomes.last <= BATCH_ENTRIES_MAX - 1
    assert outcomes.errors[0].code == -999
    with pytest.raises(LedgerError):
        writer.append(SMALL)
    await writer.close()
    sender.run()
    assert len(sender.stored) == BATCH_ENTRIES_MAX
    assert len(outcomes.errors) == 1


async def in_flight(count: int) -> tuple[JavaWriter, Outcomes, list[LateAnswer]]:
    """Return a writer with so many entries in flight after a first one, which is confirmed, and their futures."""
    sender = LateBatches()
    writer, outcomes = new_writer(sender)
    writer.append(Entry(bytes(ALONE_BYTES_MIN)))
    sender.run()
    assert await asyncio.to_thread(sender.answers[0].awaited.wait, 5)
    for _ in range(count):
        writer.append(Entry(bytes(ALONE_BYTES_MIN)))
    sender.run()
    sender.answers[0].finish()
    await asyncio.wait_for(outcomes.changed.wait(), 5)
    outcomes.changed.clear()
    assert outcomes.calls == [0]
    return writer, outcomes, sender.answers[1:]


async def test_the_outcomes_of_many_batches_in_flight_are_passed_on_in_groups() -> None:
    writer, outcomes, answers = await in_flight(64)
    for answer in answers[:15]:
        answer.finish()
    await asyncio.sleep(0.05)
    assert outcomes.calls == [0]
    answers[15].finish()
    await asyncio.wait_for(outcomes.changed.wait(), 5)
    assert outcomes.calls == [0, 16]
    for answer in answers[16:]:
        answer.finish()
    while outcomes.last < 64:
        outcomes.changed.clear()
        await asyncio.wait_for(outcomes.changed.wait(), 5)
    await writer.close()


async def test_the_outcome_of_one_of_few_batches_in_flight_is_passed_on_at_once() -> None:
    writer, outcomes, answers = await in_flight(16)
    for number, answer in enumerate(answers, 1):
        answer.finish()
        while outcomes.last < number:
            outcomes.changed.clear()
            await asyncio.wait_for(outcomes.changed.wait(), 5)
    await writer.close()


async def test_entries_of_a_group_before_one_that_failed_are_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_writer, "java_error", lambda error: LedgerError(-101, str(error)))
    writer, outcomes, answers = await in_flight(64)
    for answer in answers[:5]:
        answer.finish()
    for answer in answers[5:]:
        answer.fail()
    while not outcomes.errors:
        outcomes.changed.clear()
        await asyncio.wait_for(outcomes.changed.wait(), 5)
    assert outcomes.calls == [0, 5]
    await writer.close()


async def test_the_end_of_a_writer_with_many_batches_in_flight_ends_its_thread() -> None:
    writer, _, answers = await in_flight(64)
    (thread,) = [each for each in threading.enumerate() if each.name == "ledger 7"]
    await writer.close()
    for answer in answers:
        answer.finish()
    while thread.is_alive():  # noqa: ASYNC110  # the test only polls
        await asyncio.sleep(0.01)


async def test_an_entry_that_is_queued_when_the_writer_is_closed_is_not_sent() -> None:
    sender = Batches()
    writer, outcomes = new_writer(sender)
    writer.append(SMALL)
    await writer.close()
    sender.run()
    assert sender.stored == []
    assert [error.code for error in outcomes.errors] == [-11]


@pytest.mark.parametrize(
    ("lengths", "batches"),
    [
        ([8] * 3, [[8] * 3]),
        ([8] * (BATCH_ENTRIES_MAX + 1), [[8] * BATCH_ENTRIES_MAX, [8]]),
        ([8, ALONE_BYTES_MIN, 8, 8], [[8], [ALONE_BYTES_MIN], [8, 8]]),
        ([ALONE_BYTES_MIN] * 2, [[ALONE_BYTES_MIN]] * 2),
        (
            [ALONE_BYTES_MIN - 1] * 18,
            [[ALONE_BYTES_MIN - 1] * (BATCH_BYTES_MAX // (ALONE_BYTES_MIN - 1)), [ALONE_BYTES_MIN - 1] * 2],
        ),
    ],
)
def test_batches_are_bounded_and_a_long_entry_is_sent_alone(lengths: list[int], batches: list[list[int]]) -> None:
    entries: deque[LedgerEntry] = deque(Entry(bytes(length)) for length in lengths)
    taken = []
    while entries:
        taken.append([each.length for each in take_batch(entries)])
    assert taken == batches
    assert take_batch(entries) == []


def test_the_thread_of_a_sender_serves_each_source_that_wakes_it_and_ends() -> None:
    sender = EntrySender.__new__(EntrySender)
    done: list[str] = []

    class Source:
        def __init__(self, name: str) -> None:
            self.name = name

        def send_batch(self) -> None:
            done.append(self.name)

    sender._begin()
    for name in ("a", "b", "a"):
        sender.wake(Source(name))
    thread = next(each for each in threading.enumerate() if each.name == "ledger entries")
    sender.close()
    thread.join(5)
    assert not thread.is_alive()
    assert done == ["a", "b", "a"]


async def test_the_bytes_of_an_entry_are_put_together_in_the_thread_of_the_sender() -> None:
    """A checksum and a copy of a long entry would hold up the event loop."""
    sender = Batches()
    writer, outcomes = new_writer(sender)
    entries = [Entry(b"head", bytes(ALONE_BYTES_MIN)), Entry(b"12345678")]
    for entry in entries:
        writer.append(entry)
    assert [entry.threads for entry in entries] == [[], []]
    thread = threading.Thread(target=sender.run, name="the sender")
    thread.start()
    thread.join(5)
    assert [entry.threads for entry in entries] == [["the sender"], ["the sender"]]
    assert sender.stored[0] == b"head" + bytes(ALONE_BYTES_MIN)
    await writer.close()
    assert [error.code for error in outcomes.errors] == [-11]


def test_parts_are_copied_one_after_the_other_and_fill_the_buffer() -> None:
    memory = bytearray(9)
    fill(memoryview(memory), [b"ab", memoryview(b"cdef"), bytearray(b"ghi")])
    assert memory == b"abcdefghi"


@pytest.mark.parametrize("parts", [[b"ab"], [b"ab", b"cde"], [b"abcde"]])
def test_parts_of_another_length_than_the_entry_are_refused(parts: list[bytes]) -> None:
    """Otherwise old bytes of the buffer would be stored."""
    with pytest.raises(ValueError):
        fill(memoryview(bytearray(4)), parts)
