"""Buckets for commands that measure: on versitygw, the S3 server that the tests build, and on `DistantS3`."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from support.distant_s3 import DistantS3
from support.s3_server import S3Server, S3UnavailableError

if TYPE_CHECKING:
    from obstore.store import S3Store

__all__ = ["BUCKET", "DistantS3", "S3Server", "S3UnavailableError", "puts", "raw_store", "read_ranges", "s3_bucket"]

BUCKET = "bench"


@contextmanager
def s3_bucket(directory: Path) -> Iterator[S3Server]:
    """Run the server on `directory`, with the bucket `BUCKET`. Raises `S3UnavailableError`, which says why."""
    # Absolute: where it keeps what it knows of objects is taken to be below its root otherwise.
    server = S3Server(directory.resolve()).start()
    try:
        server.make_bucket(BUCKET)
        yield server
    finally:
        server.kill()


def raw_store(server: S3Server, bucket: str = BUCKET) -> S3Store:
    """Return a bucket for obstore alone, with its defaults."""
    from obstore.store import S3Store

    there = server.settings
    return S3Store(
        bucket,
        endpoint=there.endpoint,
        region=there.region,
        access_key_id=there.access_key_id,
        secret_access_key=there.secret_access_key,
        client_options={"allow_http": True},
    )


async def read_ranges(
    server: S3Server, lengths: Mapping[str, int], range_bytes: int, *, lanes: int, bucket: str = BUCKET
) -> float:
    """Read objects by obstore alone, `lanes` ranges at a time; return the seconds that it took."""
    store = raw_store(server, bucket)
    ranges = iter(
        [
            (key, offset, min(range_bytes, length - offset))
            for key, length in lengths.items()
            for offset in range(0, length, range_bytes)
        ]
    )

    async def lane() -> None:
        for key, offset, length in ranges:
            await store.get_range_async(key, start=offset, length=length)

    begin_s = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(lanes)))
    return time.perf_counter() - begin_s


async def puts(server: S3Server, byte_count: int, seconds: float, *, lanes: int, bucket: str = BUCKET) -> float:
    """Create objects by obstore alone, `lanes` at a time; return MB/s."""
    store, content = raw_store(server, bucket), os.urandom(byte_count)
    begin_s = time.perf_counter()
    count = 0

    async def lane(number: int) -> None:
        nonlocal count
        while time.perf_counter() - begin_s < seconds:
            await store.put_async(f"plain/{number}/{count}", content, mode="create", use_multipart=False)
            count += 1

    await asyncio.gather(*(lane(number) for number in range(lanes)))
    return round(count * byte_count / (time.perf_counter() - begin_s) / 1e6, 1)
