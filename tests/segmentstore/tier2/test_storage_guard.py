"""Long-term storage that is absent, another cluster's, damaged, or not all there: `GuardedChunkStorage`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from penstock.model.errors import (
    ChunkError,
    NoSuchChunkError,
    StorageCredentialsError,
    StorageError,
    StorageIdentityError,
    StorageUnavailableError,
    StorageUnreachableError,
)
from penstock.model.segments import Buffer
from penstock.segmentstore.settings import StorageGuardSettings
from penstock.segmentstore.tier2.chunk_storage import ChunkInfo
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.segmentstore.tier2.storage_guard import GuardedChunkStorage
from penstock.segmentstore.tier2.storage_identity import StorageIdentity
from support.containers import until

SETTINGS = StorageGuardSettings(
    check_interval_s=0.01,
    retry_interval_s=0.01,
    check_timeout_s=0.05,
    check_retry_delay_s=0.01,
    missing_chunks_max=3,
    missing_wait_s_max=0.1,
)
OURS = StorageIdentity("ours").encode()
THEIRS = StorageIdentity("theirs").encode()


class Slow(MemoryChunkStorage):
    """A storage whose identity cannot be read while `is_hung`, and that counts what was asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()
        self.answers.set()
        self.error: StorageError | None = None
        self.check_count = 0
        self.creation_count = 0

    async def read_identity(self) -> bytes | None:
        self.check_count += 1
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return await super().read_identity()

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        self.creation_count += 1
        return await super().create_with_content(name, data)


async def no_logs() -> bool:
    return False


async def logs() -> bool:
    return True


def guard(inner: MemoryChunkStorage) -> GuardedChunkStorage:
    return GuardedChunkStorage(inner, cluster_id="ours", settings=SETTINGS)


async def test_a_new_place_of_a_new_cluster_gets_the_identity() -> None:
    """Nothing can be written before. A crash right after it, before any log is opened, changes nothing."""
    inner = MemoryChunkStorage()
    storage = guard(inner)
    with pytest.raises(StorageUnavailableError, match="not checked yet"):
        await storage.create_with_content("a", [b"x"])
    await storage.claim(no_logs)
    assert inner.identity == OURS
    await storage.create_with_content("a", [b"x"])
    for had_logs in (no_logs, logs):
        again = guard(inner)
        await again.claim(had_logs)
        assert await again.read("a", 0, 1) == b"x"


async def test_an_empty_place_is_refused_once_there_is_a_log_and_nothing_is_created() -> None:
    inner = Slow()
    storage = guard(inner)
    with pytest.raises(StorageUnavailableError, match="has no identity; mount it"):
        await storage.claim(logs)
    with pytest.raises(StorageUnavailableError):
        await storage.create_with_content("a", [b"x"])
    assert (inner.identity, inner.creation_count) == (None, 0)


async def test_a_missing_place_is_waited_for_and_used_when_it_is_there() -> None:
    inner = MemoryChunkStorage()
    storage = guard(inner)
    waiting = asyncio.ensure_future(storage.claim_when_there(logs))
    await until(lambda: "has no identity" in (storage.problem or ""))
    assert not waiting.done()
    inner.identity = OURS
    await waiting
    assert storage.is_available


async def test_a_request_that_breaks_off_does_not_make_all_of_the_storage_unavailable() -> None:
    """One broken connection of many does not count for the others; the next check decides."""
    inner = Slow()
    storage = guard(inner)
    await storage.claim(no_logs)

    async def broken(name: str, offset: int, length: int) -> bytes:
        raise StorageUnreachableError("the connection to s3://bucket broke")

    await storage.create_with_content("a", [b"x"])
    whole, inner.read = inner.read, broken  # type: ignore[method-assign]
    with pytest.raises(StorageUnreachableError):
        await storage.read("a", 0, 1)
    assert storage.is_available
    inner.read = whole  # type: ignore[method-assign]
    assert await storage.read("a", 0, 1) == b"x"
    inner.error = StorageUnreachableError("s3://bucket cannot be reached")
    with pytest.raises(StorageUnavailableError, match="cannot be reached"):
        await storage.check()
    assert not storage.is_available


async def test_a_new_cluster_does_not_wait_for_storage_that_refuses_it() -> None:
    """Wrong credentials, or no such bucket: a mistake in the settings. One that has stored something does wait."""
    inner = Slow()
    inner.error = StorageCredentialsError("s3://bucket refuses these credentials")
    with pytest.raises(StorageCredentialsError):
        await guard(inner).claim_when_there(no_logs)
    inner.identity = OURS
    storage = guard(inner)
    waiting = asyncio.ensure_future(storage.claim_when_there(logs))
    await until(lambda: "refuses these credentials" in (storage.problem or ""))
    assert not waiting.done()
    inner.error = None
    await waiting
    assert storage.is_available


@pytest.mark.parametrize("had_logs", [no_logs, logs])
async def test_a_place_of_another_cluster_is_refused_at_once(had_logs: object) -> None:
    inner = MemoryChunkStorage()
    inner.identity = THEIRS
    with pytest.raises(StorageIdentityError, match="belongs to cluster theirs, this server to ours"):
        await guard(inner).claim_when_there(had_logs)  # type: ignore[arg-type]  # one of the two above
    assert inner.identity == THEIRS


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        (OURS[:-3], "checksum of its identity"),
        (b"", "checksum of its identity"),
        (OURS.replace(b"ours", b"hers"), "checksum of its identity"),
        (b"\0" * len(OURS), "checksum of its identity"),
    ],
)
async def test_a_damaged_identity_is_refused_and_left_as_it_is(identity: bytes, message: str) -> None:
    for had_logs in (no_logs, logs):
        inner = MemoryChunkStorage()
        inner.identity = identity
        with pytest.raises(StorageIdentityError, match=message):
            await guard(inner).claim_when_there(had_logs)
        assert inner.identity == identity


async def test_every_flipped_bit_of_an_identity_is_noticed() -> None:
    for at in range(len(OURS) * 8):
        damaged = bytearray(OURS)
        damaged[at // 8] ^= 1 << at % 8
        try:
            found = StorageIdentity.decode(bytes(damaged), "here")
        except StorageIdentityError:
            continue
        assert found == StorageIdentity("ours")  # A space in place of the last line's end.
        assert at // 8 == len(OURS) - 1


async def test_a_place_with_chunks_of_an_unknown_cluster_is_refused() -> None:
    """A new cluster over the long-term storage of one whose identity was removed."""
    inner = MemoryChunkStorage()
    await inner.create_with_content("s/t/0", [b"x"])
    with pytest.raises(StorageIdentityError, match=r"no identity but chunks \(s/t/0, 1 in all\)"):
        await guard(inner).claim(no_logs)
    assert inner.identity is None


async def test_two_stores_of_one_cluster_that_begin_at_once_agree() -> None:
    inner = MemoryChunkStorage()
    await asyncio.gather(*(guard(inner).claim(no_logs) for _ in range(5)))
    assert inner.identity == OURS


async def test_of_two_clusters_that_begin_at_once_one_is_refused() -> None:
    inner = Slow()
    inner.answers.clear()
    # With time enough to answer, on any machine.
    patient = StorageGuardSettings()
    first, second = (GuardedChunkStorage(inner, cluster_id=cluster, settings=patient) for cluster in ("ours", "theirs"))
    claims = asyncio.gather(first.claim(no_logs), second.claim(no_logs), return_exceptions=True)
    await until(lambda: inner.check_count == 2)  # Neither has seen an identity.
    inner.answers.set()
    ends = await claims
    assert sorted(type(end).__name__ for end in ends) == ["NoneType", "StorageIdentityError"]


async def test_storage_that_vanishes_is_noticed_and_not_touched_until_it_is_back() -> None:
    inner = Slow()
    storage = guard(inner)
    await storage.claim(no_logs)
    storage.start()
    await storage.create_with_content("a", [b"x"])
    inner.identity = None
    await until(lambda: not storage.is_available)
    for call in (
        lambda: storage.create_with_content("b", [b"x"]), lambda: storage.write("a", 1, [b"y"]),
        lambda: storage.delete("a"), lambda: storage.read("a", 0, 1), lambda: storage.info("a"),
        lambda: storage.exists("a"), storage.list, lambda: storage.create("c"),
        lambda: storage.concat("a", 1, [("b", 1)]),
    ):  # fmt: skip
        with pytest.raises(StorageUnavailableError, match="has no identity"):
            await call()  # a lambda
    assert inner.creation_count == 1
    inner.identity = THEIRS
    await until(lambda: "cluster theirs" in (storage.problem or ""))
    inner.identity = OURS
    await until(lambda: storage.is_available)
    assert await storage.read("a", 0, 1) == b"x"
    await storage.close()


async def test_a_missing_chunk_is_believed_only_while_the_storage_is_there() -> None:
    """Between two checks: a read that finds no chunk checks the identity first."""
    inner = MemoryChunkStorage()
    storage = guard(inner)
    await storage.claim(no_logs)
    with pytest.raises(NoSuchChunkError):
        await storage.read("a", 0, 1)
    assert storage.is_available
    inner.identity = None
    with pytest.raises(StorageUnavailableError):
        await storage.read("a", 0, 1)
    inner.identity = OURS
    await storage.check()
    inner.identity = None
    for call in (lambda: storage.exists("a"), storage.list):
        with pytest.raises(StorageUnavailableError):
            await call()


async def test_storage_that_hangs_or_fails_is_unavailable_and_not_asked_more_and_more() -> None:
    inner = Slow()
    storage = guard(inner)
    await storage.claim(no_logs)
    storage.start()
    inner.answers.clear()
    await until(lambda: "did not answer within 0.05 s" in (storage.problem or ""))
    check_count = inner.check_count
    with pytest.raises(StorageUnavailableError, match="did not answer"):
        await storage.check()
    assert inner.check_count == check_count  # The one that hangs is still the only one.
    inner.answers.set()
    await until(lambda: storage.is_available)
    inner.error = ChunkError("identity", "input/output error")
    await until(lambda: "input/output error" in (storage.problem or ""))
    inner.error = None
    await until(lambda: storage.is_available)
    await storage.close()


@pytest.mark.parametrize("found", [OURS, THEIRS, None])
async def test_a_cluster_with_logs_does_not_wait_for_storage_that_does_not_answer(found: bytes | None) -> None:
    """Nothing is done there before it has answered, and has the right identity; containers may start meanwhile."""
    inner = Slow()
    inner.identity = found
    inner.answers.clear()
    storage = guard(inner)
    async with asyncio.timeout(60):
        await storage.claim_when_there(logs)
        storage.start()
        await storage.check_place()
    with pytest.raises(StorageUnavailableError, match="did not answer"):
        await storage.create_with_content("s/a/0", [b"bytes"])
    inner.answers.set()
    if found == OURS:
        await until(lambda: storage.is_available)
    else:
        await until(lambda: "did not answer" not in (storage.problem or ""))
        with pytest.raises(StorageUnavailableError):
            await storage.check_place()
        assert not storage.is_available
    assert inner.creation_count == 0
    await storage.close()


@pytest.mark.parametrize("error", [None, StorageCredentialsError("who is this?")])
async def test_a_new_cluster_and_one_that_is_refused_wait_for_their_storage(error: StorageError | None) -> None:
    inner = Slow()
    inner.error = error
    if error is None:
        inner.answers.clear()
    storage = guard(inner)
    waiting = asyncio.create_task(storage.claim_when_there(no_logs if error is None else logs))
    await until(lambda: inner.check_count > (0 if error is None else 2))
    assert not (await asyncio.wait((waiting,), timeout=0.1))[0]
    waiting.cancel()
    await storage.close()


async def test_a_probe_of_the_storage_of_another_cluster_does_not_claim_it() -> None:
    """A creation that is under way, past this guard, when the check finds another identity still creates nothing."""
    inner = MemoryChunkStorage()
    storage = guard(inner)
    await storage.claim(no_logs)
    storage.start()
    inner.identity = StorageIdentity("another").encode()
    await until(lambda: not storage.is_available)
    with pytest.raises(StorageUnavailableError):
        await inner.create_with_content("chunk", [b"x"])
    assert await inner.list() == []
    await storage.close()


async def test_many_missing_chunks_at_once_mean_unavailable_until_they_are_back() -> None:
    inner = MemoryChunkStorage()
    storage = guard(inner)
    await storage.claim(no_logs)
    storage.start()
    for number in (0, 1, 2, 2, 0):
        storage.note_missing(f"chunk-{number}")
    assert storage.is_available  # Three of them are the damage of three segments.
    storage.note_missing("chunk-3")
    assert "4 chunks are missing" in (storage.problem or "")
    for number in range(4):
        await inner.create_with_content(f"chunk-{number}", [b"x"])
    await until(lambda: storage.is_available)
    await storage.close()


async def test_many_missing_chunks_that_do_not_come_back_are_taken_for_lost() -> None:
    """The guard stops waiting after a time; and the same chunks do not make storage unavailable a second time."""
    inner = MemoryChunkStorage()
    storage = guard(inner)
    await storage.claim(no_logs)
    storage.start()
    lost = [f"chunk-{number}" for number in range(10)]
    for chunk in lost:
        storage.note_missing(chunk)
    assert not storage.is_available
    await until(lambda: storage.is_available)
    for chunk in lost:
        storage.note_missing(chunk)
    assert storage.is_available
    await storage.close()  # type: ignore[unreachable]


class Throttling(MemoryChunkStorage):
    """A storage that refuses the first `refused_count` reads of its identity, as one does that is asked too often."""

    def __init__(self) -> None:
        super().__init__()
        self.refused_count = 0

    async def read_identity(self) -> bytes | None:
        if self.refused_count:
            self.refused_count -= 1
            raise ChunkError("identity", "too many requests")
        return await super().read_identity()


async def test_a_probe_that_is_refused_once_does_not_make_the_storage_unavailable() -> None:
    """Each repeated deletion inspects it: one refusal in twenty would close it to everybody for most of the time."""
    inner = Throttling()
    storage = guard(inner)
    await storage.claim(no_logs)
    await storage.create_with_content("a", [b"x"])
    inner.refused_count = SETTINGS.check_attempts_max - 1
    await storage.check()
    assert storage.is_available
    assert await storage.read("a", 0, 1) == b"x"
    inner.refused_count = SETTINGS.check_attempts_max
    with pytest.raises(StorageUnavailableError, match="cannot be read: chunk identity: too many requests"):
        await storage.check()
    assert not storage.is_available
    await storage.check()  # type: ignore[unreachable]
    assert storage.is_available


class Flapping(MemoryChunkStorage):
    """A storage that is not there for the next `missing_count` calls, and back when it is inspected."""

    def __init__(self) -> None:
        super().__init__()
        self.missing_count = 0

    def _is_missing(self) -> bool:
        self.missing_count -= 1
        return self.missing_count >= 0

    async def read(self, name: str, offset: int, length: int) -> bytes:
        if self._is_missing():
            raise NoSuchChunkError(name)
        return await super().read(name, offset, length)

    async def exists(self, name: str) -> bool:
        return not self._is_missing() and await super().exists(name)

    async def list(self, prefix: str = "") -> Sequence[ChunkInfo]:
        return [] if self._is_missing() else await super().list(prefix)

    async def names(self, *, limit: int, after: str = "") -> Sequence[str]:
        return [] if self._is_missing() else await super().names(limit=limit, after=after)


async def test_a_chunk_is_not_lost_when_the_storage_was_away_only_until_it_was_probed() -> None:
    """A call finds no chunk, the storage comes back, the check succeeds: the chunk is not counted as missing."""
    inner = Flapping()
    storage = guard(inner)
    await storage.claim(no_logs)
    await storage.create_with_content("a", [b"x"])
    inner.missing_count = 1
    assert await storage.read("a", 0, 1) == b"x"
    inner.missing_count = 1
    assert await storage.exists("a")
    inner.missing_count = 1
    assert [chunk.name for chunk in await storage.list()] == ["a"]
    inner.missing_count = 1
    assert await storage.names(limit=5) == ["a"]
    with pytest.raises(NoSuchChunkError):
        await storage.read("b", 0, 1)
    assert not await storage.exists("b")
    assert await storage.list("b") == []
    assert await storage.names(limit=5, after="a") == []
    assert storage.is_available
