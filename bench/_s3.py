"""A bucket on versitygw, the S3 server that the tests build: for commands that measure long-term storage there."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from support.s3_server import S3Server, S3UnavailableError

if TYPE_CHECKING:
    from obstore.store import S3Store

__all__ = ["BUCKET", "S3Server", "S3UnavailableError", "raw_store", "read_ranges", "s3_bucket"]

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
