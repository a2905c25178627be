"""Bugs that the simulation has found, by name. Each has the seed and the plan that showed it, or a direct test of it.

What a seed draws changes when scenarios do; so a seed alone is no lasting test. Where it can be said in a few lines
what went wrong, the test says that instead.
"""

from __future__ import annotations

import asyncio
import gc

import pytest

from penstock.client.connection_pool import ConnectionPool, Purpose
from penstock.client.settings import ClientSettings
from penstock.controller.grpc_calls import GrpcCalls
from penstock.controller.metadata.records import TransactionStatus
from penstock.model.errors import (
    ControllerUnavailableError,
    CorruptionError,
    LogFencedError,
    MetadataConflictError,
    OutcomeUnknownError,
    PenstockError,
)
from penstock.rpc import controller_pb2 as pb
from penstock.runtime.runtime import real_runtime
from penstock.segmentstore.container.cache import Cache
from penstock.segmentstore.container.recovery import recover
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.settings import CacheSettings, ContainerSettings
from penstock.segmentstore.tier1.local_log import LocalLog, LocalLogSettings
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.testing.mutations import MUTATIONS
from penstock.testing.runner import run
from penstock.testing.simulation.cluster import SimulatedCluster
from penstock.testing.simulation.simulation import Simulation


async def _decision(result: TransactionStatus | PenstockError) -> TransactionStatus:
    if isinstance(result, PenstockError):
        raise result
    return result


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
    """Seed 138: a container was fenced while a commit was decided; the client was told that it never would be.

    FAILURE is final for clients. The decision was durable, and the transaction was committed after the restart.
    """
    info = pb.StreamInfo(scope="s", stream="t")
    with pytest.raises(raised):
        await GrpcCalls._decide("commitTransaction", info, _decision(error), (TransactionStatus.COMMITTING,))


async def test_commit_of_an_aborted_transaction_is_still_refused() -> None:
    info = pb.StreamInfo(scope="s", stream="t")
    wanted = (TransactionStatus.COMMITTING, TransactionStatus.COMMITTED)
    reply = await GrpcCalls._decide("commitTransaction", info, _decision(TransactionStatus.ABORTED), wanted)
    assert reply.status == pb.TxnStatus.FAILURE


def test_connection_attempt_that_nobody_waits_for_any_more_fails_silently() -> None:
    """Seed 29: everybody who waited for a connection had been cancelled when it failed; the loop complained."""
    with Simulation(seed=1) as simulation:
        client = simulation.host("client")

        async def connect() -> None:
            async def resolve(segment: str) -> tuple[str, int]:
                return "nobody", 1

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
    """Seeds 21 and 76 with bits flipped in the log: its last frames, the checkpoint among them, looked torn.

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
    with pytest.raises(CorruptionError, match="checkpoint that it then began with is gone"):
        await recover(log, ContainerState(0, Cache(CacheSettings()), ContainerSettings()))
    await log.close()


async def test_truncation_whose_caller_was_cancelled_fails_silently() -> None:
    """Seed 189: a container stopped while its log was truncated, and found fenced; the loop complained."""
    unheard: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unheard.append(context))
    log = LocalLog("/nowhere", 0, real_runtime(1), LocalLogSettings())

    async def fail() -> None:
        await asyncio.sleep(0)
        raise LogFencedError("opened by another incarnation")

    caller = asyncio.create_task(log._shielded(fail()))
    await asyncio.sleep(0)
    caller.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    del caller
    gc.collect()
    assert unheard == []


def test_reader_whose_close_failed_can_be_closed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 146: `close` had no answer; called again it did nothing, and the reader stayed in its group for good."""
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
                    patch.setattr(group, "update", lost)
                    with pytest.raises(OutcomeUnknownError):
                        await reader.close()
                assert "r" in (await group.state()).readers
                await reader.close()
                assert not (await group.state()).readers

        async def play() -> None:
            await cluster.ready()
            await host.run(scenario())

        simulation.run(play)


def test_nothing_is_taken_from_a_connection_behind_its_reset() -> None:
    """Seed 511308 of links that break: the simulated network, not Penstock, lost the middle of a connection.

    What a client had sent before a reset was dropped, what it sent afterwards arrived. An event was missing.
    """
    profile = next(mutation.profile for mutation in MUTATIONS if mutation.name == "remove the event number check")
    assert run(511308, profile).violations == ()


@pytest.mark.parametrize("seed", [29, 138, 146, 189])
def test_seeds_that_failed_once_pass(seed: int) -> None:
    assert run(seed).violations == ()
