"""Calls about a container that hangs leave the slots of the gRPC server to calls about other containers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from penstock.controller.container_waits import observer_of_call, waiting_for
from penstock.controller.errors import CallRefusedError
from penstock.controller.grpc.server import GrpcServer
from penstock.controller.grpc.slots import CallSlots, subject_of
from penstock.controller.settings import ControllerSettings
from penstock.model.names import segment_name
from penstock.model.routing import container_of
from penstock.model.segments import TableRemoval, TableUpdate
from penstock.rpc import controller_pb2 as pb
from penstock.rpc.controller_pb2_grpc import ControllerServiceStub
from penstock_simulation.memory_segments import MemorySegments
from support.controller_faults import BlockedSegments
from support.in_process_cluster import InProcessCluster

CONTAINERS, SICK = 4, 2
SETTINGS = ControllerSettings(rpc_concurrency_max=4, rpc_slot_s=0.05, rpc_waiting_max=5, rpc_share_max=3)


def container(segment: str) -> int:
    return container_of(segment, CONTAINERS)


def segment_in(number: int) -> str:
    """Return a segment of container `number`."""
    return next(name for i in range(1000) if container(name := segment_name("s", f"t{i}", 0)) == number)


class HangingSegments(BlockedSegments):
    """Notes the containers of segments that requests are about; those to data segments in `SICK` can be blocked."""

    def __init__(self, store: MemorySegments) -> None:
        super().__init__(store, self._is_sick)
        self.containers: set[int] = set()

    @staticmethod
    def _is_sick(segment: str) -> bool:
        return container(segment) == SICK

    def __getattr__(self, name: str) -> Any:
        forward = super().__getattr__(name)

        def noting(segment: str, *arguments: list[bytes | TableUpdate | TableRemoval], **options: int | bytes) -> Any:
            if isinstance(segment, str):
                self.containers.add(container(segment))
            return forward(segment, *arguments, **options)

        return noting


async def answer(call: Any) -> str:
    """Return OK, or the status of a call."""
    try:
        await call
    except grpc.RpcError as error:
        return error.code().name
    return "OK"


async def test_calls_about_a_hanging_container_leave_slots_to_others(cluster: InProcessCluster) -> None:
    """2 000 calls wait for one container or are refused; a call about another container is answered at once.

    The former end at their deadline. After the container answers again, so do all calls.
    """
    segments = HangingSegments(cluster.store)
    service = cluster.build(ControllerSettings(), segments=segments)
    await service.start()
    async with (
        GrpcServer(service, "127.0.0.1", 0) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        stub = ControllerServiceStub(channel)
        await stub.createScope(pb.ScopeInfo(scope="s"))  # type: ignore[misc]
        sick: list[pb.StreamInfo] = []
        healthy: list[pb.StreamInfo] = []
        for i in range(24):
            info = pb.StreamInfo(scope="s", stream=f"t{i}")
            config = pb.StreamConfig(streamInfo=info, scalingPolicy=pb.ScalingPolicy(minNumSegments=1))
            assert (await stub.createStream(config)).status == pb.CreateStreamStatus.SUCCESS  # type: ignore[misc]

        def begin(info: pb.StreamInfo, timeout_s: float) -> Awaitable[Any]:
            return answer(stub.createTransaction(pb.CreateTxnRequest(streamInfo=info, lease=10_000), timeout=timeout_s))

        # A stream's tables may be in the container, too, though its segment is in another one.
        for i in range(24):
            info = pb.StreamInfo(scope="s", stream=f"t{i}")
            segments.containers.clear()
            assert await begin(info, 60.0) == "OK"
            if container(segment_name("s", info.stream, 0)) == SICK:
                sick.append(info)
            elif SICK not in segments.containers:
                healthy.append(info)
        assert len(sick) >= 3
        assert len(healthy) >= 3

        segments.is_blocked = True
        stuck = [asyncio.create_task(begin(sick[i % len(sick)], 20.0)) for i in range(2000)]  # type: ignore[arg-type]
        await asyncio.sleep(0.5)
        assert [await begin(info, 60.0) for info in healthy] == ["OK"] * len(healthy)
        # The slots are given back, too.
        async with asyncio.timeout(60):
            while server.slots.held_count or server.slots.waiting_count < 1000:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert [await begin(info, 60.0) for info in healthy] == ["OK"] * len(healthy)
        assert await begin(sick[0], 60.0) == "UNAVAILABLE"
        found = Counter(await asyncio.gather(*stuck))
        assert set(found) == {"UNAVAILABLE", "DEADLINE_EXCEEDED"}
        assert found["DEADLINE_EXCEEDED"] == ControllerSettings().rpc_share_max

        segments.release()
        async with asyncio.timeout(60):
            while server.slots.waiting_count:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert [await begin(info, 60.0) for info in (*sick, *healthy)] == ["OK"] * len(sick + healthy)
        await service.idle()
        assert (server.slots.held_count, server.slots.waiting_count, server.slots.key_count) == (0, 0, 0)


class Calls:
    """Calls that begin a wait for a segment, and continue until `gate` is set."""

    def __init__(self, slots: CallSlots) -> None:
        self.slots = slots
        self.gate = asyncio.Event()

    def start(self, subject: str, segment: str = "") -> asyncio.Task[None]:
        return asyncio.create_task(self._run(subject, segment))

    async def _run(self, subject: str, segment: str) -> None:
        async with self.slots.hold(subject):
            if not segment:
                await self.gate.wait()
                return
            with waiting_for(segment):
                await self.gate.wait()


@pytest.fixture
def slots() -> CallSlots:
    return CallSlots(SETTINGS, CONTAINERS)


def outcomes(tasks: list[asyncio.Task[object]]) -> list[str]:
    """Return what has become of each task."""
    return [
        "runs" if not task.done() else type(task.exception()).__name__ if task.exception() else "done" for task in tasks
    ]


async def settled(tasks: list[asyncio.Task[object]], running: int) -> None:
    """Wait until no more than `running` tasks run."""
    async with asyncio.timeout(60):
        while outcomes(tasks).count("runs") > running:  # noqa: ASYNC110
            await asyncio.sleep(0)


@pytest.mark.parametrize("is_by_container", [False, True], ids=["subject", "container"])
async def test_calls_beyond_the_share_are_refused_and_others_served(slots: CallSlots, is_by_container: bool) -> None:
    """The bound counts calls in slots and in the waiting room."""
    calls = Calls(slots)

    def sick(number: int) -> asyncio.Task[object]:
        return calls.start(f"s/{number}", segment_in(SICK)) if is_by_container else calls.start("s/sick")

    tasks = [sick(number) for number in range(4)]
    await asyncio.sleep(3 * SETTINGS.rpc_slot_s)
    assert sorted(outcomes(tasks)) == ["CallRefusedError"] + ["runs"] * 3
    other = calls.start("s/other", segment_in(1))
    await asyncio.sleep(2 * SETTINGS.rpc_slot_s)
    assert (slots.held_count, slots.waiting_count) == (0, 4)
    with pytest.raises(CallRefusedError, match="rpc_share_max"):
        await sick(5)
    calls.gate.set()
    await asyncio.gather(*tasks, other, return_exceptions=True)
    assert not other.exception()
    assert (slots.held_count, slots.waiting_count, slots.key_count) == (0, 0, 0)
    await sick(6)


@pytest.mark.parametrize("is_by_container", [False, True], ids=["subject", "container"])
async def test_calls_that_hang_leave_free_slots_from_the_first_moment(is_by_container: bool) -> None:
    """The limit counts before the first of them has waited for long, and again when all of them have given up."""
    slots = CallSlots(ControllerSettings(rpc_concurrency_max=16, rpc_slot_s=3600.0, rpc_share_max=15), CONTAINERS)
    calls = Calls(slots)

    def sick(kind: int, number: int) -> asyncio.Task[object]:
        return calls.start(f"s/{kind}-{number}", segment_in(kind)) if is_by_container else calls.start(f"s/{kind}")

    for _ in range(2):
        tasks = [sick(SICK, number) for number in range(40)]
        await settled(tasks, 12)
        assert Counter(outcomes(tasks)) == {"runs": 12, "CallRefusedError": 28}
        with pytest.raises(CallRefusedError, match="the slots that are free are for calls about others"):
            await sick(SICK, 40)
        tasks += [sick(3, number) for number in range(40)]
        await settled(tasks, 15)
        assert slots.held_count == 15
        async with slots.hold("s/healthy"):
            with waiting_for(segment_in(1)):
                await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert (slots.held_count, slots.waiting_count, slots.key_count) == (0, 0, 0)


async def test_a_cluster_of_one_container_uses_all_slots() -> None:
    """There are no calls about other containers for which slots would have to stay free."""
    slots = CallSlots(SETTINGS, 1)
    calls = Calls(slots)
    tasks = [calls.start(f"s/{number}", segment_in(SICK)) for number in range(SETTINGS.rpc_concurrency_max)]
    await asyncio.sleep(0)
    assert outcomes(tasks) == ["runs"] * SETTINGS.rpc_concurrency_max  # type: ignore[arg-type]
    calls.gate.set()
    await asyncio.gather(*tasks)


async def test_a_subject_whose_container_refused_it_begins_no_further_work(slots: CallSlots) -> None:
    """A refused call may leave work behind, so the next one about the same subject is refused before it begins."""
    calls = Calls(slots)
    tasks = [calls.start(f"s/{number}", segment_in(SICK)) for number in range(3)]
    await asyncio.sleep(3 * SETTINGS.rpc_slot_s)
    with pytest.raises(CallRefusedError):
        await calls.start("s/new", segment_in(SICK))
    with pytest.raises(CallRefusedError, match="wait for container"):
        async with slots.hold("s/new"):
            pytest.fail("the call has begun")
    calls.gate.set()
    await asyncio.gather(*tasks)
    async with slots.hold("s/new"):
        pass


async def test_no_call_takes_a_slot_when_all_are_held(slots: CallSlots) -> None:
    """A slot is free again when its call ends, fails or is cancelled."""
    calls = Calls(slots)
    tasks = [calls.start(f"s/{number}") for number in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(CallRefusedError, match="rpc_concurrency_max"):
        await calls.start("s/other")
    tasks[0].cancel()
    await asyncio.wait([tasks[0]])
    with pytest.raises(ValueError, match="as the test says"):
        async with slots.hold("s/other"):
            raise ValueError("as the test says")
    calls.gate.set()
    await asyncio.gather(*tasks[1:])
    assert (slots.held_count, slots.waiting_count, slots.key_count) == (0, 0, 0)


async def test_a_full_waiting_room_ends_calls_and_admits_healthy_ones(slots: CallSlots) -> None:
    """A call that would enter it is ended; a further call about a container with calls in it is refused at once."""
    calls = Calls(slots)
    tasks = []
    for number in (SICK, 3):
        tasks += [calls.start(f"s/{number}-{i}", segment_in(number)) for i in range(3)]
        await asyncio.sleep(3 * SETTINGS.rpc_slot_s)
    assert (slots.held_count, slots.waiting_count) == (0, 5)
    assert sorted(outcomes(tasks)) == ["CallRefusedError"] + ["runs"] * 5  # type: ignore[arg-type]
    started = asyncio.get_running_loop().time()
    with pytest.raises(CallRefusedError, match="rpc_waiting_max"):
        await calls.start("s/new", segment_in(3))
    assert asyncio.get_running_loop().time() - started < SETTINGS.rpc_slot_s
    async with slots.hold("s/healthy"):
        with waiting_for(segment_in(1)):
            await asyncio.sleep(0)
    calls.gate.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (slots.held_count, slots.waiting_count, slots.key_count) == (0, 0, 0)


async def test_work_that_outlives_its_call_is_neither_counted_nor_ended(slots: CallSlots) -> None:
    """A task that a call has started inherits its observer: its waits count only while the call runs."""
    gate = asyncio.Event()

    async def work() -> str:
        with waiting_for(segment_in(SICK)):
            await gate.wait()
        with waiting_for(segment_in(SICK)):
            return "done"

    async with slots.hold("s/t"):
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        assert slots.key_count == 2
    assert slots.key_count == 0
    assert observer_of_call.get() is None
    gate.set()
    assert await task == "done"
    assert slots.key_count == 0


async def test_a_timeout_of_the_call_itself_stays_what_it_is(slots: CallSlots) -> None:
    """Only a refusal becomes `CallRefusedError`."""
    with pytest.raises(TimeoutError):
        async with slots.hold("s/t"), asyncio.timeout(0):
            await asyncio.sleep(1)
    assert slots.held_count == 0


INFO = pb.StreamInfo(scope="s", stream="t")


@pytest.mark.parametrize(
    ("request_", "subject"),
    [
        (INFO, "s/t"),
        (pb.CreateTxnRequest(streamInfo=INFO), "s/t"),
        (pb.StreamConfig(streamInfo=INFO), "s/t"),
        (pb.StreamCut(streamInfo=INFO), "s/t"),
        (pb.SegmentId(streamInfo=INFO), "s/t"),
        (pb.SubscriberStreamCut(streamCut=pb.StreamCut(streamInfo=INFO)), "s/t"),
        (pb.TimestampFromWriter(position=pb.StreamCut(streamInfo=INFO)), "s/t"),
        (pb.RemoveWriterRequest(stream=INFO), "s/t"),
        (pb.ReaderGroupInfo(scope="s", readerGroup="g"), "s/g"),
        (pb.ReaderGroupConfiguration(scope="s", readerGroupName="g"), "s/g"),
        (pb.KeyValueTableInfo(scope="s", kvtName="k"), "s/k"),
        (pb.ScopeInfo(scope="s"), ""),
        (pb.StreamsInScopeRequest(scope=pb.ScopeInfo(scope="s")), ""),
        (pb.CreateTxnRequest(), ""),
        (pb.ServerRequest(), ""),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_requests_name_their_subjects(request_: Message, subject: str) -> None:
    """The subject is found wherever the request holds it."""
    assert subject_of(request_) == subject
