"""Bugs that the simulation has found, by name. Each has the seed and the plan that showed it, or a direct test of it.

What a seed draws changes when scenarios do; so a seed alone is no lasting test. Where it can be said in a few lines
what went wrong, the test says that instead.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Sequence
from types import SimpleNamespace
from typing import cast

import pytest
from google.protobuf.message import Message

from penstock.client.settings import ClientSettings
from penstock.client.transport.connection_pool import ConnectionPool, Purpose
from penstock.controller.grpc.call import Front
from penstock.controller.grpc.table import call_table
from penstock.controller.metadata.records import TransactionStatus
from penstock.controller.service import ControllerService
from penstock.model.errors import (
    ChunkError,
    ContainerOfflineError,
    ControllerUnavailableError,
    CorruptionError,
    LogFencedError,
    MetadataConflictError,
    OutcomeUnknownError,
    PenstockError,
)
from penstock.rpc import controller_pb2 as pb
from penstock.runtime.runtime import real_runtime
from penstock.segmentstore.container.log.recovery import recover
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container.tables.index import TableBusyError, TableIndex
from penstock.segmentstore.container.tables.reads import page_of
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.settings import CacheSettings
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier1.log_settings import LocalLogSettings
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock_simulation.memory_index import MemoryIndexStorage, MemorySortedIndex
from penstock_simulation.mutations.catalog import MUTATIONS
from penstock_simulation.runner import run
from penstock_simulation.simulated.cluster import SimulatedCluster
from penstock_simulation.simulated.faults import FaultPlan
from penstock_simulation.simulated.simulation import Simulation
from penstock_simulation.workloads.profile import Profile
from support.btree import new_index
from support.containers import FaultyChunks, Incarnations, append


async def _commit_decided(result: TransactionStatus | PenstockError) -> Message:
    """Answer a commitTransaction that the controller decides so."""

    async def commit(*given: object, **options: object) -> TransactionStatus:
        if isinstance(result, PenstockError):
            raise result
        return result

    service = SimpleNamespace(transactions=SimpleNamespace(commit=commit))
    request = pb.TxnRequest(streamInfo=pb.StreamInfo(scope="s", stream="t"))
    return await call_table(Front(cast(ControllerService, service), list))["commitTransaction"](request)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OutcomeUnknownError("the container stopped while it was written"), OutcomeUnknownError),
        (MetadataConflictError("it keeps changing"), ControllerUnavailableError),
        (ControllerUnavailableError("not now"), ControllerUnavailableError),
    ],
)
async def test_commit_whose_outcome_is_unknown_is_not_answered_as_refused(
    error: PenstockError, raised: type[PenstockError]
) -> None:
    """Seed 138: a container was fenced while a commit was decided; the client got FAILURE.

    FAILURE is final for clients. The decision was durable, and the transaction was committed after the restart.
    """
    with pytest.raises(raised):
        await _commit_decided(error)


async def test_commit_of_an_aborted_transaction_is_still_refused() -> None:
    assert await _commit_decided(TransactionStatus.ABORTED) == pb.TxnStatus(status=pb.TxnStatus.FAILURE)


def test_connection_attempt_without_a_waiting_caller_fails_silently() -> None:
    """Seed 29: all tasks waiting for a connection had been cancelled when it failed; the loop reported the error."""
    with Simulation(seed=1) as simulation:
        client = simulation.host("client")

        async def connect() -> None:
            async def resolve(segment: str) -> tuple[str, int]:
                return "unknown", 1

            pool = ConnectionPool(resolve, ClientSettings(connect_timeout_s=0.5))
            waiting = asyncio.create_task(pool.connection("s/t/0.#epoch.0", Purpose.APPEND))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.sleep(2.0)

        simulation.run(lambda: client.run(connect()))
        gc.collect()
        assert simulation.loop.unhandled == []


async def test_truncated_log_without_checkpoint_is_corrupt_and_not_a_new_container() -> None:
    """Seeds 21 and 76 with bits flipped in the log: its last frames, the checkpoint among them, appeared torn.

    The container came up empty, as if it had never been there. That the log was truncated shows that it had a
    checkpoint.
    """
    logs = MemoryLogFactory(real_runtime(1))
    first = logs.create(0)
    await first.open()
    address = await first.append([b"all that there was"], 18)
    await first.truncate(address)
    await first.close()
    log = logs.create(0)
    await log.open()
    assert log.is_truncated
    with pytest.raises(CorruptionError, match="checkpoint at its new start is missing"):
        await recover(log, ContainerState(0, Cache(CacheSettings()), ContainerSettings()))
    await log.close()


async def test_truncation_whose_caller_was_cancelled_fails_silently() -> None:
    """Seed 189: a container stopped while its log was truncated, and found fenced; the loop complained."""
    unheard: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unheard.append(context))
    runtime = real_runtime(1)
    log = LocalLogFactory("/nowhere", runtime, LocalLogSettings()).create(0)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise LogFencedError("opened by another incarnation")

    caller = asyncio.create_task(log._work.shielded(fail()))
    await asyncio.sleep(0)
    caller.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    del caller
    gc.collect()
    assert unheard == []


def test_reader_whose_close_failed_can_be_closed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 146: `close` had no answer; called again it did nothing, and the reader stayed in its group."""
    with Simulation(seed=1) as simulation:
        cluster = SimulatedCluster(simulation)
        host = cluster.add_client("client")

        async def scenario() -> None:
            async with cluster.client(host) as client:
                await client.create_stream("s/t")
                group = await client.reader_group("g", ["s/t"])
                reader = await group.reader("r")

                async def lost(step: object) -> None:
                    raise OutcomeUnknownError("no answer")

                with monkeypatch.context() as patch:
                    patch.setattr(group._record, "update", lost)
                    with pytest.raises(OutcomeUnknownError):
                        await reader.close()
                assert "r" in (await group._state()).readers
                await reader.close()
                assert not (await group._state()).readers

        async def play() -> None:
            await cluster.ready()
            await host.run(scenario())

        simulation.run(play)


def test_no_frame_is_read_from_a_connection_after_its_reset() -> None:
    """Seed 511308 of links that break: the simulated network, not Penstock, lost the middle of a connection.

    What a client had sent before a reset was dropped, what it sent afterwards arrived. An event was missing.
    """
    profile = next(mutation.profile for mutation in MUTATIONS if mutation.name == "remove the event number check")
    assert run(511308, profile).violations == ()


class _SlowIndex(MemorySortedIndex):
    """An index whose look-ups wait until they are released."""

    def __init__(self) -> None:
        super().__init__(value_length=20)
        self.gate = asyncio.Event()

    def get_cached(self, key: bytes) -> tuple[bool, bytes | None]:
        return False, None

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        await self.gate.wait()
        return await super().get(keys)

    async def page(
        self, *, after: bytes = b"", first: bytes = b"", last: bytes | None = None, limit: int
    ) -> Sequence[tuple[bytes, bytes]]:
        await self.gate.wait()
        return await super().page(after=after, first=first, last=last, limit=limit)


@pytest.mark.parametrize("what", ["get", "page"])
async def test_a_table_that_leaves_memory_during_a_lookup_does_not_report_its_keys_as_absent(what: str) -> None:
    """Seeds 52, 87 and 152: a container was shut out while an index was read; "no such segment" was the answer."""
    index = _SlowIndex()
    await index.open()
    await index.update({b"key": b"v" * 20}, b"")
    table = TableIndex("t", 0)
    table.index = index
    call: Awaitable[object] = (
        table.load([b"key"]) if what == "get" else page_of(table, after=b"", first=b"", last=None, limit=9)
    )
    reading = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    table.end_life()
    index.gate.set()
    with pytest.raises(TableBusyError):
        await reading


async def test_chunks_freed_by_a_successor_are_no_corruption() -> None:
    """Seeds 69, 90 and 236: an incarnation that was shut out, and did not know yet, said that chunks were damaged."""
    lives = Incarnations()
    old = await lives.start()
    segment = await old.create("s/t/0.#epoch.0")
    await append(old, segment.name, b"stored")
    await old.flush()
    new = await lives.start()
    await new.delete(segment.name)
    await new.flush()
    with pytest.raises(ContainerOfflineError):
        await old.storage.read(segment, 0, 6)
    # Damage is still reported as corruption where there is no other owner.
    segment = await new.create("s/t/1.#epoch.0")
    await append(new, segment.name, b"stored")
    await new.flush()
    (chunk,) = await new.storage.layout(segment)
    await lives.chunks.inner.delete(chunk.name)
    with pytest.raises(CorruptionError):
        await new.storage.read(segment, 0, 6)
    await lives.close()


class _UnreliableChunks(MemoryChunkStorage):
    failing_reads = 0

    async def read(self, name: str, offset: int, length: int) -> bytes:
        if self.failing_reads:
            self.failing_reads -= 1
            raise ChunkError(name, "not now")
        return await super().read(name, offset, length)


async def test_a_failed_read_of_a_chunk_is_retried() -> None:
    """Seed 80: a start needed very many reads, one of them always failed, and the server never came up."""
    chunks = _UnreliableChunks()
    lives = Incarnations()
    lives.chunks = FaultyChunks(chunks)
    container = await lives.start()
    segment = await container.create("s/t/0.#epoch.0")
    await append(container, segment.name, b"stored")
    await container.flush()
    chunks.failing_reads = 2
    assert await container.storage.read(segment, 0, 6) == b"stored"
    chunks.failing_reads = 3
    with pytest.raises(ChunkError):
        await container.storage.read(segment, 0, 6)
    await lives.close()


async def test_index_is_opened_while_another_object_of_it_gives_the_last_footer_back() -> None:
    """Seed 356: a flush and a load had opened one index twice; a client got an error that offset 122 was truncated."""
    storage = MemoryIndexStorage("i")
    first, second = new_index(storage), new_index(storage)
    await first.open()
    for number in range(4):
        await first.update({b"key %d" % number: bytes(8)}, b"")
    read = storage.read

    async def overtaken(offset: int, length: int) -> bytes:
        storage.read = read  # type: ignore[method-assign]  # once
        await first.update({b"late": bytes(8)}, b"")
        await storage.truncate(offset + length)
        return await read(offset, length)

    storage.read = overtaken  # type: ignore[method-assign]  # see above
    await second.open()
    assert second.entry_count == 5


# Those below 200 are among the seeds that the pipeline runs for each change.
@pytest.mark.nightly
@pytest.mark.parametrize("seed", [236, 356, 369])
def test_seeds_that_failed_once_pass(seed: int) -> None:
    assert run(seed).violations == ()


def test_a_hasty_claim_of_a_log_does_not_mislead_later_owners() -> None:
    """It does not wait until its predecessor can no longer answer, so it may not claim that none can."""
    changes = [
        f"{5 + 4 * container + delay_s} Takeover container={container} is_patient={is_patient}\n"
        for container in range(3)
        for delay_s, is_patient in ((0, False), (0.15, True))
    ]
    outcome = run(501, Profile(writing_s=20), plan=FaultPlan.parse("".join(changes)))
    assert outcome.is_ok, outcome.violations


def test_a_watch_after_a_post_without_effect_is_not_checked_endlessly() -> None:
    """Nothing comes behind such a post, and the read was not cut short at any of its awaits: a run never ended."""
    profile = next(
        mutation.profile for mutation in MUTATIONS if mutation.name == "write a state on condition of what is there"
    )
    assert run(675441, profile).violations == ()


def test_merged_segments_are_read_before_storage_reported_their_lengths() -> None:
    """A start trusted the log for named segments only, so the bytes of a merged source seemed lost until its lookup."""
    profile = next(mutation.profile for mutation in MUTATIONS if mutation.name == "join what has changed meanwhile")
    assert run(327121, profile).violations == ()
