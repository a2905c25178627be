"""`open_bucket_log`: a wrong bucket, wrong credentials or wrong long-term storage end a start that wrote nothing."""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.model.errors import (
    InvalidArgumentError,
    PenstockError,
    StorageBucketMissingError,
    StorageCredentialsError,
    StorageIdentityError,
    StorageUnsuitableError,
)
from penstock.model.segments import Buffer
from penstock.runtime.bucket_rules import BucketRules
from penstock.runtime.objects import ObjectStoreSettings, ObjectVersion
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.segmentstore.tier2.object_storage_settings import ObjectStorageSettings
from penstock.segmentstore.tier2.storage_identity import StorageIdentity
from penstock.server.bucket_log import BucketLog, open_bucket_log
from penstock.server.settings import StandaloneSettings
from penstock_simulation.simulated.objects import ObjectFaults, SimulatedBucket, SimulatedObjects
from support.s3_server import S3Server

QUICK = ObjectFaults(latency_s_min=0.0, latency_s_max=0.001)
NO_RULES = BucketRules("", ())
SETTINGS = StandaloneSettings(log="s3://bucket/log", tier2="s3://bucket/data")


class _IgnoresVersions(SimulatedObjects):
    """Replaces what is in another version."""

    async def put_if(self, key: str, content: Buffer, version: ObjectVersion) -> ObjectVersion:
        data = bytes(content)
        self.bucket.replace(key, data, "")
        return (await self.get_versioned(key)).version


class _ReadsOnly(SimulatedObjects):
    """Has credentials that may not create objects."""

    async def put_new(self, key: str, content: Buffer, tag: str) -> None:
        raise StorageCredentialsError("s3://bucket refuses these credentials for a creation")


class World:
    """A simulated bucket for the log, and long-term storage in memory."""

    def __init__(self, runtime: Runtime) -> None:
        self.bucket = SimulatedBucket()
        self.chunks = MemoryChunkStorage()
        self.runtime = runtime
        self.kind: type[SimulatedObjects] = SimulatedObjects
        self.faults = QUICK
        rng = random.Random(1)
        runtime.open_objects = lambda place, settings: self.kind(self.bucket, random.Random(rng.random()), self.faults)

    async def open(self, rules: BucketRules = NO_RULES, settings: StandaloneSettings = SETTINGS) -> BucketLog:
        """Open the log as a start does, and close it."""
        opened = await open_bucket_log(settings, self.runtime, self.chunks, read_rules=lambda place, settings: rules)
        await opened.logs.close()
        return opened

    async def refusal(self, kind: type[PenstockError], *, rules: BucketRules = NO_RULES) -> str:
        """Return what a start that ends with this error says."""
        with pytest.raises(kind) as caught:
            await self.open(rules)
        return str(caught.value)

    def written(self) -> set[str]:
        """Return the keys that were ever written, those of the probe left out."""
        return {key for _, key, _ in self.bucket.history if not key.startswith("log/_probe/")}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    runtime = real_runtime(1)
    yield World(runtime)
    await runtime.work.close()


async def test_a_new_log_is_probed_and_made_and_found_again(world: World) -> None:
    first = await world.open()
    assert first.is_new
    assert set(world.bucket.contents) == {"log/identity"}
    change_count = len(world.bucket.history)
    again = await world.open()
    assert (again.cluster_id, again.is_new) == (first.cluster_id, False)
    assert len(world.bucket.history) == change_count


@pytest.mark.parametrize("fault", ["two steps", "no versions"])
async def test_a_bucket_without_conditional_writes_is_refused(world: World, fault: str) -> None:
    if fault == "two steps":
        world.faults = replace(QUICK, is_atomic=False)
    else:
        world.kind = _IgnoresVersions
    assert "s3://bucket/log cannot hold a log" in await world.refusal(StorageUnsuitableError)
    assert world.written() == set()


async def test_credentials_that_may_only_read_are_refused(world: World) -> None:
    world.kind = _ReadsOnly
    assert "refuses these credentials" in await world.refusal(StorageCredentialsError)
    assert world.bucket.contents == {}
    assert world.written() == set()


async def test_rules_that_delete_objects_of_the_log_are_refused_at_each_start(world: World) -> None:
    harmful = BucketRules("", ("rule old (prefix '') deletes objects after 7 days",))
    assert "rule old (prefix '') deletes objects" in await world.refusal(StorageUnsuitableError, rules=harmful)
    assert not world.bucket.history
    await world.open()
    assert "after 7 days" in await world.refusal(StorageUnsuitableError, rules=harmful)


async def test_versioning_is_reported(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await world.open(BucketRules("Enabled", ()))
    assert "s3://bucket/log has versioning enabled" in caplog.text


async def test_long_term_storage_of_another_cluster_is_refused_before_the_log_is_made_or_claimed(world: World) -> None:
    """Both places are named. The server that runs on the log is not disturbed."""
    await world.chunks.create_identity(StorageIdentity("other").encode())
    told = await world.refusal(StorageIdentityError)
    assert "it belongs to cluster other, and the log in s3://bucket/log is new" in told
    assert not world.bucket.history
    world.chunks = MemoryChunkStorage()
    opened = await world.open()
    before = dict(world.bucket.contents)
    await world.chunks.create_identity(StorageIdentity("other").encode())
    told = await world.refusal(StorageIdentityError)
    assert f"cluster other, and the log in s3://bucket/log belongs to cluster {opened.cluster_id}" in told
    assert world.bucket.contents == before


async def test_another_number_of_containers_is_refused(world: World) -> None:
    await world.open()
    with pytest.raises(InvalidArgumentError, match="start with --containers 4, not 5"):
        await world.open(settings=replace(SETTINGS, segment_store=SegmentStoreSettings(container_count=5)))


@pytest.mark.parametrize("fault", ["secret", "bucket", "none"])
async def test_a_real_server_refuses_credentials_and_a_missing_bucket(s3_server: S3Server, fault: str) -> None:
    bucket = s3_server.make_bucket(f"b{uuid.uuid4().hex[:12]}").bucket
    store: ObjectStoreSettings = s3_server.settings
    error: type[PenstockError] = StorageCredentialsError
    if fault == "secret":
        store = replace(store, secret_access_key="wrong")
    elif fault == "bucket":
        bucket, error = "missing-bucket", StorageBucketMissingError
    else:
        store = replace(store, access_key_id="unknown", secret_access_key="unknown")
    settings = replace(
        SETTINGS, log=f"s3://{bucket}/log", tier2=f"s3://{bucket}/data",
        object_storage=ObjectStorageSettings(store=store),
    )  # fmt: skip
    runtime = real_runtime(1)
    try:
        with pytest.raises(error, match=bucket):
            await open_bucket_log(settings, runtime, MemoryChunkStorage())
    finally:
        await runtime.work.close()
