"""Parts of the controller's background work by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Collection, Sequence

import pytest

from penstock.controller.errors import WorkElsewhereError
from penstock.controller.locks import StreamLocks
from penstock.controller.metadata import layout
from penstock.controller.metadata.given_up import GivenUpWork
from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.metadata.store import Write
from penstock.controller.settings import ControllerSettings
from penstock.controller.tasks import BackgroundTasks
from penstock.controller.transaction_state.creations import Creations
from penstock.controller.work.background_work import BackgroundWork, StreamQueue, all_ended
from penstock.model.errors import ContainerOfflineError, CorruptionError, InvalidArgumentError, PenstockError
from penstock_simulation.memory_store import MemoryMetadataStore

SETTINGS = ControllerSettings(
    workflow_concurrency_max=2,
    work_slot_s=60.0,
    attempts_max=2,
    retry_delay_ms_first=1,
    retry_delay_ms_max=2,
    damaged_retry_delay_ms=1,
    given_up_records_max=3,
)
DAMAGE = CorruptionError("a record", 0, "damaged")


class House:
    """Background work over a store in memory."""

    def __init__(self) -> None:
        self.store = MemoryMetadataStore()
        self.locks = StreamLocks()
        self.tasks = BackgroundTasks()
        self.given_up = GivenUpWork(RecordStore(self.store), SETTINGS, lambda: 7, lambda: "owner")
        self.work = BackgroundWork(self.tasks, SETTINGS, self.locks, self.given_up)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    """What is under way is cancelled at the end."""
    made = House()
    await made.store.create_table(layout.PENDING_WORK)
    yield made
    await made.tasks.close()


async def _fails(error: Exception) -> None:
    raise error


async def test_what_is_damaged_does_not_hide_what_a_repetition_mends() -> None:
    """A batch is forgotten after damage; an item that only met an outage would be lost with it."""
    with pytest.raises(ContainerOfflineError):
        await all_ended([_fails(DAMAGE), _fails(ContainerOfflineError(1, "away"))])


async def test_what_is_given_up_does_not_hide_what_is_damaged() -> None:
    """A batch is forgotten when it is given up; an item whose record must be repaired would be lost with it."""
    with pytest.raises(CorruptionError):
        await all_ended([_fails(InvalidArgumentError("never")), _fails(DAMAGE)])


@pytest.mark.parametrize("error", [DAMAGE, WorkElsewhereError("elsewhere"), ContainerOfflineError(1, "away")], ids=repr)
async def test_what_is_posted_is_tried_again_until_it_is_done(house: House, error: PenstockError) -> None:
    """Damage that is repaired later, another controller at work, a long outage: none of them ends the retries.

    Before, the item was dropped after the first two: a transaction stayed COMMITTING and was never retried.
    """
    attempts = []

    async def work(scope: str, stream: str, items: list[str]) -> Collection[str]:
        attempts.append(items)
        if len(attempts) < 9:
            raise error
        return items

    queue = StreamQueue("commit", house.work, SETTINGS, work)
    queue.post("scope", "stream", "item")
    async with asyncio.timeout(60):
        await queue.empty("scope", "stream")
    assert attempts == [["item"]] * 9
    # Waiting for another controller is no failure.
    assert house.work.failed_attempt_count == (0 if isinstance(error, WorkElsewhereError) else 8)
    assert house.given_up.count == 0


async def test_what_is_not_done_stays_in_its_queue(house: House) -> None:
    """A batch that does a part of what was posted: the rest has its turn, and nothing has two."""
    done = []

    async def work(scope: str, stream: str, items: list[int]) -> Collection[int]:
        done.append(items[0])
        return items[:1]

    queue = StreamQueue("commit", house.work, SETTINGS, work)
    for number in range(5):
        queue.post("scope", "stream", number)
    await queue.empty("scope", "stream")
    assert done == [0, 1, 2, 3, 4]


async def test_waiting_for_a_lock_holds_no_slot(house: House) -> None:
    """More pieces of work wait for the lock of one stream than there are slots; work on another one continues.

    Once each took its slot first: the other stream stood still for as long as the lock was held.
    """
    done: list[str] = []

    async def work(name: str) -> None:
        done.append(name)

    async with house.locks.hold("scope/busy"):
        for number in range(SETTINGS.workflow_concurrency_max + 1):
            name = f"busy {number}"
            house.tasks.start(name, house.work.until_done(name, lambda name=name: work(name), lock="scope/busy"))  # type: ignore[misc]
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await house.work.until_done("other", lambda: work("other"), lock="scope/other")
    await house.tasks.idle()
    assert done == ["other", "busy 0", "busy 1", "busy 2"]


async def test_waiting_for_the_next_attempt_holds_no_slot(house: House) -> None:
    """Work that fails permanently, more of it than there are slots, does not keep other work waiting."""
    for number in range(SETTINGS.workflow_concurrency_max + 1):
        house.work.start(f"bad {number}", lambda: _fails(ContainerOfflineError(1, "away")))
    async with asyncio.timeout(60):
        for _ in range(20):
            await house.work.until_done("good", lambda: asyncio.sleep(0))


async def test_what_is_given_up_is_reported_in_log_record_and_statistic(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that stays ends the work; the newest of all records are kept, in their order."""
    for number in range(5):
        error = InvalidArgumentError(f"never, {number}")
        assert await house.work.until_done(f"work {number}", lambda error=error: _fails(error)) is None  # type: ignore[func-returns-value, misc]
    assert "work 4 is abandoned, it cannot be completed: never, 4" in caplog.text
    assert house.given_up.count == 5
    found = await house.given_up.newest()
    assert [(one.number, one.work, one.owner, one.given_up_ms) for one in found] == [
        (number, f"work {number}", "owner", 7) for number in (4, 3, 2)
    ]
    assert found[0].reason == "InvalidArgumentError: never, 4"
    slots = await house.store.get(layout.PENDING_WORK, [layout.given_up_key(slot) for slot in range(4)])
    assert [slot is None for slot in slots] == [False, False, False, True]


async def test_two_controllers_that_give_up_at_once_are_both_on_record(house: House) -> None:
    """Both draw the same number; the one whose write comes second takes the next."""
    other = GivenUpWork(RecordStore(house.store), SETTINGS, lambda: 8, lambda: "other")
    await asyncio.gather(
        house.given_up.add("one", InvalidArgumentError("never")), other.add("two", InvalidArgumentError("never"))
    )
    assert sorted((one.number, one.owner) for one in await other.newest()) in (
        [(0, "owner"), (1, "other")],
        [(0, "other"), (1, "owner")],
    )


async def test_work_that_fails_for_long_does_not_fill_the_log(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """Of 200 failures in a row less than a tenth are logged, the last of these late; none of them ends the work."""
    failures = iter(range(200))

    async def fails_for_long() -> None:
        if next(failures, None) is not None:
            raise ContainerOfflineError(1, "away")

    async with asyncio.timeout(60):
        await house.work.until_done("stubborn", fails_for_long)
    lines = [record.getMessage() for record in caplog.records if "stubborn" in record.getMessage()]
    assert len(lines) < 20
    assert "attempt 128" in lines[-1]
    assert house.work.failed_attempt_count == 200


async def test_work_on_one_stream_goes_in_order_beside_that_on_others(house: House) -> None:
    """S-195: items posted for a stream, and waiters for its lock, run in order of arrival; each gets its own result."""
    gate = asyncio.Event()
    running: list[str] = []
    done: list[tuple[str, str, int]] = []

    async def one(kind: str, stream: str, number: int) -> int:
        assert stream not in running
        running.append(stream)
        if stream == "held":
            await gate.wait()
        await asyncio.sleep(0)
        running.remove(stream)
        done.append((kind, stream, number))
        return number

    async def work(scope: str, stream: str, items: list[int]) -> Collection[int]:
        return [await one("posted", stream, items[0])]

    queue = StreamQueue("commit", house.work, SETTINGS, work, lock=lambda scope, stream: f"{scope}/{stream}")
    for number in range(3):
        for stream in ("held", "free"):
            queue.post("scope", stream, number)
    calls = [
        asyncio.create_task(
            house.work.until_done("call", lambda number=number: one("call", "held", number), lock="scope/held")  # type: ignore[misc]
        )
        for number in range(3)
    ]
    async with asyncio.timeout(60):
        await queue.empty("scope", "free")
    assert done == [("posted", "free", number) for number in range(3)]
    assert [queue.has("scope", "held", number) for number in range(3)] == [True] * 3
    assert not any(call.done() for call in calls)
    gate.set()
    async with asyncio.timeout(60):
        assert await asyncio.gather(*calls) == [0, 1, 2]
        await queue.empty("scope", "held")
    for kind in ("posted", "call"):
        assert [number for its, stream, number in done if (its, stream) == (kind, "held")] == [0, 1, 2]
    assert not queue.has("scope", "held", 2)


async def test_what_raises_before_it_begins_fails_as_anything_else(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """S-197: a function that raises instead of returning an awaitable; items posted afterwards are done."""
    errors = iter([ContainerOfflineError(1, "away"), None, InvalidArgumentError("never"), ValueError("a slip"), None])
    attempts, done = [], []

    def work(scope: str, stream: str, items: list[int]) -> Awaitable[Collection[int]]:
        attempts.append(items[0])
        if (error := next(errors)) is not None:
            raise error

        async def end() -> Collection[int]:
            done.extend(items)
            return items

        return end()

    queue = StreamQueue("commit", house.work, SETTINGS, work)
    for number in range(4):
        queue.post("scope", "stream", number)
        async with asyncio.timeout(60):
            await queue.empty("scope", "stream")
    # Tried again; given up; a slip of the program, which is logged.
    assert attempts == [0, 0, 1, 2, 3]
    assert done == [0, 3]
    assert house.given_up.count == 1
    assert "commit on scope/stream failed: a slip" in caplog.text

    def slip() -> Awaitable[None]:
        raise ValueError("another slip")

    with pytest.raises(ValueError, match="another slip"):
        await house.work.until_done("a call", slip)


@pytest.mark.parametrize("is_stopped", [False, True], ids=["until it succeeds", "until the controller stops"])
async def test_what_can_never_be_done_is_dropped_once_that_is_on_record(house: House, is_stopped: bool) -> None:
    """S-200: what may pass stays posted; what never passes goes, but not before the write that reports it is done."""
    errors: list[PenstockError] = [ContainerOfflineError(1, "away")] * 3
    put, failures = house.store.put, 0

    async def work(scope: str, stream: str, items: list[str]) -> Collection[str]:
        raise errors.pop() if errors else InvalidArgumentError("never")

    async def failing_put(table: str, writes: Sequence[Write]) -> Sequence[int]:
        nonlocal failures
        if is_stopped or failures < 5:
            failures += 1
            raise ContainerOfflineError(1, "away")
        return await put(table, writes)

    house.store.put = failing_put  # type: ignore[method-assign]
    queue = StreamQueue("commit", house.work, SETTINGS, work)
    queue.post("scope", "stream", "item")
    if is_stopped:
        async with asyncio.timeout(60):
            while failures < 5:
                assert queue.has("scope", "stream", "item")
                await asyncio.sleep(0.001)
            await house.tasks.close()
        assert house.given_up.count == 0
        return
    async with asyncio.timeout(60):
        await queue.empty("scope", "stream")
    assert failures == 5
    assert house.work.failed_attempt_count == 3 + 5
    (record,) = await house.given_up.newest()
    assert record.reason == "InvalidArgumentError: never"
    assert not queue.has("scope", "stream", "item")


async def test_a_stop_waits_for_the_ends_of_what_runs_and_takes_nothing_more(house: House) -> None:
    """S-201: what runs is cancelled, and may take some time to end; what comes meanwhile never begins."""
    begun, gate = asyncio.Event(), asyncio.Event()
    ended, late = [], []

    async def slow() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await gate.wait()
            ended.append("slow")

    async def work(scope: str, stream: str, items: list[str]) -> Collection[str]:
        late.extend(items)
        return items

    async def call() -> None:
        late.append("call")

    queue = StreamQueue("commit", house.work, SETTINGS, work)
    house.work.start("slow", slow)
    await begun.wait()
    stopping = asyncio.create_task(house.tasks.close())
    await asyncio.sleep(0)
    queue.post("scope", "stream", "posted")
    task = house.work.start("call", call)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not stopping.done()
    gate.set()
    async with asyncio.timeout(60):
        await stopping
    assert ended == ["slow"]
    assert task.cancelled()
    assert late == []


async def test_waiting_for_creations_ends_though_others_begin() -> None:
    """A seal holds its stream's lock meanwhile; creations that overlap without end must not starve it."""
    creations = Creations(views_max=10)
    first, second = creations.one("s/t"), creations.one("s/t")
    first.__enter__()
    waiting = asyncio.create_task(creations.ended("s/t"))
    await asyncio.sleep(0)
    second.__enter__()
    first.__exit__(None, None, None)
    async with asyncio.timeout(60):
        await waiting
    second.__exit__(None, None, None)
    await creations.ended("s/t")
