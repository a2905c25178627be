"""`open_bucket_log`: checks a log in a bucket and its long-term storage before a server writes into either.

Order of a start:

1. The log's identity is read: a missing bucket, or credentials that are refused, end the start.
2. Lifecycle rules of the bucket are read, where the service has them and the credentials may read them.
3. The identity of long-term storage is read: that of another cluster ends the start.
4. If the log is new, a short probe checks that objects are created and replaced on condition, and the log's identity is
   created. Everything before this step only reads.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from dataclasses import dataclass

from penstock.model.errors import (
    StorageError,
    StorageIdentityError,
    StorageRefusedError,
)
from penstock.runtime.bucket_rules import read_bucket_rules
from penstock.runtime.objects import ObjectPlace
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier1.object_log.factory import ObjectLogFactory
from penstock.segmentstore.tier1.object_log.log_bucket import LogBucket
from penstock.segmentstore.tier1.object_log.server_claim import LogClusterIdentity, claim_identity, read_identity
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.storage_identity import StorageIdentity
from penstock.server.log_probe import ReadRules, demand_harmless, probe_log
from penstock.server.settings import StandaloneSettings

_log = logging.getLogger(__name__)

#: Races of each kind when a log is new. `penstock storage probe --log` makes more, and other checks.
_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class BucketLog:
    """An opened log in a bucket. `is_new`: this start has made it."""

    logs: ObjectLogFactory
    cluster_id: str
    is_new: bool


async def open_bucket_log(
    settings: StandaloneSettings, runtime: Runtime, chunks: ChunkStorage, *, read_rules: ReadRules = read_bucket_rules
) -> BucketLog:
    """Return the log in `settings.log`, created if it is new. `chunks`: its long-term storage, only read here.

    Raises:
        StorageRefusedError: the bucket, or the long-term storage of a new log, is missing or refuses the credentials.
        StorageUnsuitableError: the bucket cannot hold a log.
        StorageIdentityError: long-term storage belongs to another cluster than the log.
        InvalidArgumentError: the log was made with another number of containers.
        CorruptionError, LaterVersionError: the log's identity cannot be read.
    """
    place = ObjectPlace.parse(settings.log)
    objects = runtime.open_objects(place, settings.object_storage.store)
    try:
        bucket = LogBucket(objects, settings.object_log, prefix=place.prefix)
        found = await read_identity(bucket)
        rules = await runtime.work.run(read_rules, place, settings.object_storage.store)
        demand_harmless(rules, place)
        if rules.versioning == "Enabled":
            _log.warning(
                "%s has versioning enabled: deleted objects of the log stay as old versions and are paid for until a "
                "rule removes those",
                place,
            )
        await _check_long_term_storage(chunks, found, str(place))
        if found is None:
            await probe_log(
                settings.log, settings.object_storage.store, runtime, rounds=_ROUNDS, counts=False,
                read_rules=lambda place, settings: rules,
            )  # fmt: skip
        new_id = str(uuid.UUID(bytes=runtime.random_id(), version=4))
        identity = await claim_identity(bucket, runtime, new_id, settings.segment_store.container_count)
        logs = ObjectLogFactory(
            objects,
            runtime,
            settings.object_log,
            prefix=place.prefix,
            cluster_id=identity.cluster_id,
            container_count=identity.container_count,
            server=f"host {socket.gethostname()}, process {os.getpid()}",
        )
    except BaseException:
        await objects.close()
        raise
    return BucketLog(logs, identity.cluster_id, identity.cluster_id == new_id)


async def _check_long_term_storage(chunks: ChunkStorage, log: LogClusterIdentity | None, place: str) -> None:
    """Raise `StorageIdentityError` if storage belongs to another cluster than the log in `place`, None for a new one.

    Storage that does not answer is waited for later, with the same check.
    """
    try:
        found = await chunks.read_identity()
    except StorageRefusedError:
        if log is None:
            raise  # Otherwise the server of a cluster that has stored data waits until it is corrected.
        return
    except StorageError as error:
        _log.info("the identity of long-term storage is checked later: %s", error)
        return
    if found is None:
        return
    owner = StorageIdentity.decode(found, chunks.place).cluster_id
    if log is None or owner != log.cluster_id:
        whose = "is new" if log is None else f"belongs to cluster {log.cluster_id}"
        raise StorageIdentityError(
            chunks.place,
            f"it belongs to cluster {owner}, and the log in {place} {whose}. Name the log of that cluster with --log, "
            "or start without --log if its log is in a data directory; nothing was written",
        )
