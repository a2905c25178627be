"""Requests to buckets are counted for each process and bucket, over all clients of it."""

from __future__ import annotations

import random

import pytest

from penstock.model.errors import ObjectExistsError
from penstock.runtime.object_requests import ObjectRequests, RequestCounts
from penstock.runtime.objects import ObjectPlace, ObjectStore, ObjectStoreSettings
from penstock_simulation.simulated.objects import SimulatedBucket, SimulatedObjects


async def test_every_request_counts_with_its_bytes_also_one_that_fails() -> None:
    requests, bucket = ObjectRequests(), SimulatedBucket()

    def open_store(place: ObjectPlace, settings: ObjectStoreSettings) -> ObjectStore:
        return SimulatedObjects(bucket, random.Random(1))

    opened = requests.counting(open_store)
    log, chunks = (opened(ObjectPlace("s3", "simulated"), ObjectStoreSettings()) for _ in range(2))
    assert (log.place, log.key_part_bytes_max) == ("s3://simulated", 255)
    await log.put_new("a", b"12345", "tag")
    with pytest.raises(ObjectExistsError):
        await chunks.put_new("a", memoryview(b"123"), "tag")
    found = await log.get_versioned("a")
    await log.put_if("a", b"1234567", found.version)
    assert await chunks.get("a") == b"1234567"
    assert await chunks.get_range("a", 2, 3) == b"345"
    await log.head("a")
    for number in range(25):
        await log.put_new(f"b/{number:02d}", b"", "tag")
    names = [info.key for page in [page async for page in log.list("b")] for info in page]
    assert len(names) == 25
    await log.delete("a")
    await log.delete_many(names)
    await log.delete_many([f"c/{number}" for number in range(1_001)])
    await log.close()
    # Two creations, a replacement, 25 empty ones, and a list of three pages.
    assert requests.by_bucket == {"s3://simulated": RequestCounts(2 + 1 + 25 + 3, 4, 4, 5 + 3 + 7, 5 + 7 + 3)}
