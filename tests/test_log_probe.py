"""`penstock storage probe --log`: a bucket that would lose data of a log is refused; nothing is left in any."""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.model.errors import (
    InvalidArgumentError,
    ObjectChangedError,
    StorageBucketMissingError,
    StorageCredentialsError,
    StorageUnsuitableError,
)
from penstock.model.segments import Buffer
from penstock.runtime.bucket_rules import BucketRules, harmful_rules, read_bucket_rules
from penstock.runtime.objects import ObjectPlace, ObjectStoreSettings, ObjectVersion, VersionedObject
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.server.log_probe import LogProbeReport, probe_log
from penstock_simulation.simulated.objects import ObjectFault, ObjectFaults, SimulatedBucket, SimulatedObjects
from support.command_line import run_command
from support.s3_server import S3Server, S3UnavailableError

QUICK = ObjectFaults(latency_s_min=0.0, latency_s_max=0.001)
NO_RULES = BucketRules("", ())


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    made = real_runtime(1)
    yield made
    await made.work.close()


async def probe(
    runtime: Runtime,
    *,
    kind: type[SimulatedObjects] = SimulatedObjects,
    faults: ObjectFaults = QUICK,
    rules: BucketRules = NO_RULES,
) -> tuple[SimulatedBucket, LogProbeReport | StorageUnsuitableError]:
    """Probe a simulated bucket; return it, and the report or what is wrong."""
    bucket, rng = SimulatedBucket(), random.Random(1)
    runtime.open_objects = lambda place, settings: kind(bucket, random.Random(rng.random()), faults)
    try:
        return bucket, await probe_log(
            "s3://bucket/log", ObjectStoreSettings(), runtime, rounds=5, read_rules=lambda place, settings: rules
        )
    except StorageUnsuitableError as error:
        return bucket, error


async def test_a_sound_bucket_passes_and_is_left_empty(runtime: Runtime) -> None:
    bucket, report = await probe(runtime)
    assert isinstance(report, LogProbeReport)
    assert (report.place, report.racers, report.rounds, report.unclear_rounds) == ("s3://bucket/log", 20, 5, 0)
    assert len(report.steps) == 6
    assert bucket.contents == {}
    assert bucket.history
    assert all(key.startswith("log/_probe/") for _, key, _ in bucket.history)


async def test_requests_sent_twice_and_conflicts_are_no_faults_of_a_bucket(runtime: Runtime) -> None:
    kinds = (ObjectFault.SENT_TWICE, ObjectFault.CONFLICT)
    _, report = await probe(runtime, faults=replace(QUICK, rates=tuple((kind, 0.02) for kind in kinds)))
    assert isinstance(report, LogProbeReport)


class _IgnoresVersions(SimulatedObjects):
    """Replaces the object, or creates it."""

    async def put_if(self, key: str, content: Buffer, version: ObjectVersion) -> ObjectVersion:
        self.bucket.replace(key, bytes(content), "")
        return (await self.get_versioned(key)).version


class _IgnoresExistence(SimulatedObjects):
    """Creates over what exists."""

    async def put_new(self, key: str, content: Buffer, tag: str) -> None:
        self.bucket.replace(key, bytes(content), tag)


class _CreatesMissing(SimulatedObjects):
    """A replacement of a missing object creates it."""

    async def put_if(self, key: str, content: Buffer, version: ObjectVersion) -> ObjectVersion:
        if key not in self.bucket.contents:
            self.bucket.replace(key, bytes(content), "")
            return (await self.get_versioned(key)).version
        return await super().put_if(key, content, version)


class _NeverReplaces(SimulatedObjects):
    """Weak versions, as behind a proxy: none is ever the present one."""

    async def put_if(self, key: str, content: Buffer, version: ObjectVersion) -> ObjectVersion:
        raise ObjectChangedError(key, "never")


class _TornReads(SimulatedObjects):
    """Keeps content and version in two places, and reads one after the other."""

    async def get_versioned(self, key: str) -> VersionedObject:
        content = (await super().get_versioned(key)).content
        await asyncio.sleep(0.001)
        return VersionedObject(content, (await super().get_versioned(key)).version)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (_IgnoresVersions, "ignores If-Match"),
        (_IgnoresExistence, "ignores If-None-Match"),
        (_CreatesMissing, "created an object that did not exist"),
        (_NeverReplaces, "cannot be replaced in the version just read"),
        (_TornReads, "40 increments of a counter gave"),
    ],
)
async def test_each_way_of_losing_data_is_found(runtime: Runtime, kind: type[SimulatedObjects], said: str) -> None:
    bucket, error = await probe(runtime, kind=kind)
    assert isinstance(error, StorageUnsuitableError)
    assert said in str(error)
    assert "s3://bucket/log cannot hold a log" in str(error)
    assert bucket.contents == {}


async def test_a_bucket_that_checks_and_writes_in_two_steps_is_found(runtime: Runtime) -> None:
    bucket, error = await probe(runtime, faults=replace(QUICK, is_atomic=False))
    assert isinstance(error, StorageUnsuitableError)
    assert "writes in two steps" in str(error)
    assert bucket.contents == {}


async def test_rules_that_delete_objects_of_the_log_are_refused_before_anything_is_written(runtime: Runtime) -> None:
    bucket, error = await probe(runtime, rules=BucketRules("", ("rule tidy (prefix '') deletes objects after 7 days",)))
    assert isinstance(error, StorageUnsuitableError)
    assert "rule tidy (prefix '') deletes objects after 7 days" in str(error)
    assert not bucket.history


async def test_a_place_that_is_not_a_bucket_is_refused(runtime: Runtime) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a place in object storage"):
        await probe_log("/some/directory", ObjectStoreSettings(), runtime)


def lifecycle(*rules: str) -> bytes:
    documents = "".join(f"<Rule><ID>r</ID><Status>Enabled</Status>{rule}</Rule>" for rule in rules)
    return (
        f'<LifecycleConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{documents}</LifecycleConfiguration>'
    ).encode()


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("<Filter/><Expiration><Days>7</Days></Expiration>", "deletes objects after 7 days"),
        ("<Prefix/><Expiration><Date>2030-01-01</Date></Expiration>", "deletes objects on 2030-01-01"),
        ("<Filter><Prefix>a/lo</Prefix></Filter><Expiration><Days>1</Days></Expiration>", "prefix 'a/lo'"),
        ("<Filter><Prefix>a/log/j/</Prefix></Filter><Expiration><Days>1</Days></Expiration>", "prefix 'a/log/j/'"),
        ("<Filter><And><Prefix>a/</Prefix></And></Filter><Expiration><Days>1</Days></Expiration>", "prefix 'a/'"),
        ("<Filter/><Transition><Days>1</Days><StorageClass>GLACIER</StorageClass></Transition>", "GLACIER"),
        ("<Filter><Prefix>other/</Prefix></Filter><Expiration><Days>1</Days></Expiration>", ""),
        ("<Filter><Tag><Key>k</Key></Tag></Filter><Expiration><Days>1</Days></Expiration>", ""),
        ("<Filter/><Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>", ""),
        ("<Filter/><NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays></NoncurrentVersionExpiration>", ""),
        ("<Filter/><AbortIncompleteMultipartUpload><DaysAfterInitiation>1</DaysAfterInitiation>"
         "</AbortIncompleteMultipartUpload>", ""),
        ("<Filter/><Transition><Days>30</Days><StorageClass>STANDARD_IA</StorageClass></Transition>", ""),
    ],
)  # fmt: skip
def test_rules_that_delete_or_archive_objects_of_the_log_are_distinguished_from_others(rule: str, said: str) -> None:
    found = harmful_rules(lifecycle(rule), "a/log/")
    assert len(found) == bool(said)
    if said:
        assert said in found[0]


def test_a_rule_that_is_disabled_does_nothing() -> None:
    rule = lifecycle("<Filter/><Expiration><Days>7</Days></Expiration>").replace(b"Enabled", b"Disabled")
    assert harmful_rules(rule, "a/log/") == ()


def test_unreadable_bucket_settings_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    assert "gs:// buckets" in read_bucket_rules(ObjectPlace("gs", "b"), ObjectStoreSettings()).unknown[0]
    assert "with an access key" in read_bucket_rules(ObjectPlace("s3", "b"), ObjectStoreSettings()).unknown[0]


@pytest.fixture(params=["versitygw", "minio"])
def server(request: pytest.FixtureRequest) -> S3Server:
    found: S3Server = request.getfixturevalue("s3_server" if request.param == "versitygw" else "minio_server")
    if not found.is_atomic:
        pytest.skip("this server needs a file system with extended attributes")
    return found


@pytest.mark.interop
async def test_real_servers_pass_and_problems_are_reported_before_any_write(server: S3Server, runtime: Runtime) -> None:
    name = server.make_bucket(f"b{uuid.uuid4().hex[:12]}").bucket
    report = await probe_log(f"s3://{name}/log", server.settings, runtime, rounds=5)
    assert report.versioning == ""
    assert report.unclear_rounds == 0
    assert [info async for page in server.open(name).list("") for info in page] == []
    with pytest.raises(StorageBucketMissingError, match="no-such-bucket"):
        await probe_log("s3://no-such-bucket/log", server.settings, runtime)
    wrong = replace(server.settings, secret_access_key="wrong")
    with pytest.raises(StorageCredentialsError, match=name):
        await probe_log(f"s3://{name}/log", wrong, runtime)


@pytest.mark.interop
def test_the_command_reports_as_json_and_fails_with_the_reason(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not s3_server.is_atomic:
        pytest.skip("this server needs a file system with extended attributes")
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    place = f"s3://{s3_server.make_bucket(f'b{uuid.uuid4().hex[:12]}').bucket}/log"
    told = run_command("storage", "probe", "--log", place, "--rounds", "2", "--json").ok.json
    assert (told["place"], told["rounds"], told["racers"]) == (place, 2, 20)
    refused = run_command("storage", "probe", "--log", "s3://no-such-bucket/log", "--json")
    assert refused.code == 1
    assert refused.json["kind"] == "StorageBucketMissingError"


@pytest.mark.interop
async def test_a_server_that_writes_contents_and_versions_apart_is_refused(tmp_path: Path, runtime: Runtime) -> None:
    """versitygw with a sidecar directory, which real deployments use where extended attributes are missing."""
    try:
        server = SidecarServer(tmp_path / "s3").start()
    except S3UnavailableError as error:
        pytest.skip(str(error))
    try:
        name = server.make_bucket("sidecar-bucket").bucket
        with pytest.raises(StorageUnsuitableError):
            await probe_log(f"s3://{name}/log", server.settings, runtime, rounds=30)
    finally:
        server.kill()


class SidecarServer(S3Server):
    """Keeps versions beside the objects, whatever the file system offers."""

    @property
    def is_atomic(self) -> bool:
        return False


@pytest.fixture
def s3s_fs(tmp_path: Path) -> Iterator[ObjectStoreSettings]:
    program = shutil.which("s3s-fs")
    if program is None:
        pytest.skip("s3s-fs is not installed: cargo install s3s-fs --features binary")
    (tmp_path / "races").mkdir()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    options = ["--access-key", "key", "--secret-key", "secret", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen([program, *options, str(tmp_path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield ObjectStoreSettings(
        endpoint=f"http://127.0.0.1:{port}", region="us-east-1", access_key_id="key", secret_access_key="secret",
        retry_delay_s_first=0.5, request_retries_max=20,
    )  # fmt: skip
    server.kill()
    server.wait()


@pytest.mark.interop
async def test_a_server_that_checks_and_writes_in_two_steps_is_refused(
    s3s_fs: ObjectStoreSettings, runtime: Runtime
) -> None:
    with pytest.raises(StorageUnsuitableError):
        await probe_log("s3://races/log", s3s_fs, runtime)
