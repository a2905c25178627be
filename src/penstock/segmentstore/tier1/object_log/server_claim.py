"""Which cluster a log in a bucket belongs to, and which server may open it: two small objects beside the records.

`ServerClaim` lets one server open all logs. A server that starts replaces the record of the server; from then on the
one before opens no log. The check comes after the read of a container's record and before its conditional change. So
if the change succeeds, no later server has opened that log: an earlier server never fences a later one, however their
starts interleave. The later one opens each log and so fences the earlier one.

The segment stores of a cluster share the log. `claim_for_cluster` records that; each log's own record then says which
of them has opened it last.

Formats: docs/formats.md, "Identity and server of a log in a bucket".
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    LogTakenOverError,
    NoSuchObjectError,
    ObjectChangedError,
)
from penstock.runtime.object_changes import change_object
from penstock.runtime.objects import VersionedObject
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier1.object_log.log_bucket import LogBucket
from penstock.segmentstore.tier1.owned_record import decode_record, encode_record

FORMAT_VERSION = 1
#: Objects of the whole log, below its prefix.
CLUSTER_OBJECT_NAMES = ("identity", "server")
_CHECKSUM_LENGTH = 8


@dataclass(frozen=True, slots=True)
class LogClusterIdentity:
    """The cluster of a log, and its number of containers. Written once."""

    cluster_id: str
    container_count: int

    def encode(self, nonce: bytes) -> bytes:
        """Return the content of the object."""
        return encode_record(
            FORMAT_VERSION, {"nonce": nonce.hex(), "cluster": self.cluster_id, "containers": self.container_count}
        )


async def read_identity(bucket: LogBucket) -> LogClusterIdentity | None:
    """Return the identity of a log; None if there is none. Raises as `claim_identity`."""
    found = await _read(bucket, "identity")
    if found is None:
        return None
    fields = decode_record(found.content, f"{bucket.place}/identity", FORMAT_VERSION)
    return LogClusterIdentity(str(fields["cluster"]), int(str(fields["containers"])))


async def claim_identity(
    bucket: LogBucket, runtime: Runtime, new_cluster_id: str, container_count: int
) -> LogClusterIdentity:
    """Return the identity of a log; create it with `new_cluster_id` if the log is new.

    Raises `InvalidArgumentError` for another number of containers, `CorruptionError`, `LaterVersionError`,
    `StorageRefusedError`.
    """
    identity = await read_identity(bucket)
    if identity is None:
        mine = LogClusterIdentity(new_cluster_id, container_count)
        try:
            await change_object(bucket.objects, _key(bucket, "identity"), mine.encode(runtime.random_id()), None)
        except ObjectChangedError:
            pass  # Another server has created it: read next.
        identity = await read_identity(bucket)
        if identity is None:
            raise CorruptionError(f"{bucket.place}/identity", 0, "it was created, and is missing now")
    if identity.container_count != container_count:
        raise InvalidArgumentError(
            f"{bucket.place} was made with {identity.container_count} containers and that number cannot change: start "
            f"with --containers {identity.container_count}, not {container_count}"
        )
    return identity


class ServerClaim:
    """The right of one server to open the logs. `description`: of this server, for messages of the one before it."""

    def __init__(self, bucket: LogBucket, runtime: Runtime, token: bytes, description: str) -> None:
        self._bucket = bucket
        self._runtime = runtime
        self._token = token
        self._description = description

    async def take(self) -> None:
        """Replace the record of the server: earlier servers open no log any more.

        Raises `InvalidArgumentError` if the log belongs to a cluster of several machines, `StorageRefusedError`.
        """
        fields = {"token": self._token.hex(), "server": self._description}
        while True:
            found = await _read(self._bucket, "server")
            if found is not None and (where := _cluster_of(self._bucket, found)):
                raise InvalidArgumentError(
                    f"the log in {self._bucket.place} belongs to the cluster in ZooKeeper at {where}: run penstock "
                    f"segment-store --zookeeper {where}. If that ZooKeeper has lost its data, make the cluster again "
                    "with penstock cluster init --adopt"
                )
            content = encode_record(FORMAT_VERSION, {"nonce": self._runtime.random_id().hex(), **fields})
            version = None if found is None else found.version
            try:
                await change_object(self._bucket.objects, _key(self._bucket, "server"), content, version)
            except ObjectChangedError:
                continue  # Another server has started at the same time: this one is later.
            return

    async def check(self) -> None:
        """Raise `LogTakenOverError` if a later server has started."""
        found = await _read(self._bucket, "server")
        fields = {} if found is None else decode_record(found.content, f"{self._bucket.place}/server", FORMAT_VERSION)
        if fields.get("token") != self._token.hex():
            raise LogTakenOverError(self._bucket.place, str(fields.get("server", "its record is missing")))


async def claim_for_cluster(bucket: LogBucket, runtime: Runtime, zookeeper: str) -> None:
    """Record that the segment stores of a cluster share the log. A single server that runs on it opens no log any more.

    A later start of a single server is refused, see `ServerClaim.take`. Raises `StorageRefusedError`.
    """
    while True:
        found = await _read(bucket, "server")
        if found is not None and _cluster_of(bucket, found) == zookeeper:
            return
        content = encode_record(FORMAT_VERSION, {
            "nonce": runtime.random_id().hex(), "token": "", "server": f"the cluster in ZooKeeper at {zookeeper}",
            "zookeeper": zookeeper,
        })  # fmt: skip
        version = None if found is None else found.version
        try:
            await change_object(bucket.objects, _key(bucket, "server"), content, version)
        except ObjectChangedError:
            continue  # Another process has changed it at the same time.
        return


def _cluster_of(bucket: LogBucket, record: VersionedObject) -> str:
    """Return where the cluster is that shares the log; empty: a single server has opened it last."""
    return str(decode_record(record.content, f"{bucket.place}/server", FORMAT_VERSION).get("zookeeper", ""))


def _key(bucket: LogBucket, name: str) -> str:
    return f"{bucket.prefix}/{name}" if bucket.prefix else name


async def _read(bucket: LogBucket, name: str) -> VersionedObject | None:
    key = _key(bucket, name)
    try:
        return await bucket.retried(
            f"a read of {key}", lambda: bucket.objects.get_versioned(key), gives_up_refused=True
        )
    except NoSuchObjectError:
        return None
