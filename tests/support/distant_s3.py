"""`DistantS3`: an S3 server for measurements that costs this machine little CPU, as a service elsewhere would.

versitygw needs about 6 ms of CPU for each MB that it stores (two checksums, a temporary file), more than Penstock
itself, and a proxy that adds a delay needs another 2 ms. Beside client and server on two cores this limits the
throughput of what is measured. This server keeps bodies in memory as they arrive, without a checksum, and those above
4 GiB in files. It adds the delay itself: an answer is sent `delay_s` after its request has arrived whole, however many
others wait. Credentials are not checked.

The kernel needs 0.5 to 2.3 ms for each MB of memory that a body is the first to use. With `pool_bytes` so much more is
touched before the server starts, in huge pages where the system has them, and used for bodies.

It creates only what does not exist (If-None-Match), replaces on condition (If-Match), and keeps the user-defined
metadata. What it stores is lost when it ends. With a quota it answers as a full bucket does: `set_quota`.

    python distant_s3.py ADDRESS:PORT DIRECTORY DELAY_S [POOL_BYTES]
"""

from __future__ import annotations

import asyncio
import itertools
import mmap
import os
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import ClassVar, cast
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

if __name__ != "__main__":
    from support.namespaces import Host
    from support.s3_server import S3Server

    class DistantS3(S3Server):
        """See the module. `delay_s` is added to each request; `pool_bytes` are prepared for bodies."""

        name: ClassVar[str] = "distant S3"

        def __init__(
            self, directory: Path, host: Host | None = None, *, delay_s: float = 0.0, pool_bytes: int = 0
        ) -> None:
            super().__init__(directory, host, program=Path(sys.executable))
            self.delay_s = delay_s
            self.pool_bytes = pool_bytes

        @property
        def is_atomic(self) -> bool:
            """See `S3Server.is_atomic`. Always."""
            return True

        def set_quota(self, byte_count: int | None, *, status: int = 507, code: str = "QuotaExceeded") -> None:
            """Refuse bodies, with this answer, that the buckets together have no room for; None: take all again."""
            query = f"bytes={-1 if byte_count is None else byte_count}&status={status}&code={code}"
            request = urllib.request.Request(f"{self.endpoint}/?quota&{query}", method="POST")
            with urllib.request.urlopen(request, timeout=10):
                pass

        def _options(self, port: int) -> list[str]:
            return [__file__, f"{self.address}:{port}", str(self.directory / "data"), str(self.delay_s),
                    str(self.pool_bytes)]  # fmt: skip


_HEAD_BYTES_MAX = 64 * 1024
_PAGE_LENGTH_MAX = 1000
_MEMORY_BYTES_MAX = 4 << 30
_PIECE_BYTES = 1 << 20
_TAG_PREFIX = "x-amz-meta-"
_REASONS = {200: "OK", 204: "No Content", 206: "Partial Content", 404: "Not Found", 412: "Precondition Failed",
            416: "Range Not Satisfiable", 403: "Forbidden", 507: "Insufficient Storage"}  # fmt: skip
_EMPTY_VERSIONING = b"<VersioningConfiguration xmlns='http://s3.amazonaws.com/doc/2006-03-01/'/>"


class _Pool:
    """Memory of long bodies, in pieces of whole MiB, which are used again."""

    def __init__(self, byte_count: int) -> None:
        self._view = memoryview(b"")
        if byte_count:
            memory = mmap.mmap(-1, byte_count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                memory.madvise(mmap.MADV_HUGEPAGE)
            self._view = memoryview(memory)
            zeros = bytes(_PIECE_BYTES)
            for start in range(0, byte_count - _PIECE_BYTES, _PIECE_BYTES):
                self._view[start : start + _PIECE_BYTES] = zeros
        self._end = 0
        self._free: dict[int, list[int]] = {}
        self._starts: dict[int, tuple[int, int]] = {}

    def take(self, length: int) -> bytearray | memoryview:
        """Return memory for a body; outside of the pool if it is short, or the pool is full."""
        size = -(-length // _PIECE_BYTES) * _PIECE_BYTES
        free = self._free.get(size)
        if length < _PIECE_BYTES or (not free and self._end + size > len(self._view)):
            return bytearray(length)
        if free:
            start = free.pop()
        else:
            start, self._end = self._end, self._end + size
        found = self._view[start : start + length]
        self._starts[id(found)] = start, size
        return found

    def give_back(self, body: bytearray | memoryview) -> None:
        """Use the memory of a body again."""
        if isinstance(body, memoryview):
            start, size = self._starts.pop(id(body))
            self._free.setdefault(size, []).append(start)


@dataclass(frozen=True)
class _Object:
    #: Its bytes, or the file that has them.
    body: bytearray | memoryview | Path
    length: int
    e_tag: str
    tags: Mapping[str, str]


@dataclass
class _Answer:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    #: Of a HEAD, whose answer has no body.
    length: int | None = None


def _refusal(status: int, code: str) -> _Answer:
    return _Answer(status, f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode())


class _Buckets:
    """The objects of all buckets, by bucket and key."""

    def __init__(self, directory: Path, pool_bytes: int) -> None:
        self.pool = _Pool(pool_bytes)
        self._memory_bytes_max = _MEMORY_BYTES_MAX + pool_bytes
        self._directory = directory
        self._objects: dict[tuple[str, str], _Object] = {}
        self._count = itertools.count(1)
        self._byte_count = 0
        self._memory_byte_count = 0
        self._quota: tuple[int, int, str] | None = None
        #: Whether an object has the body of the present request.
        self._is_kept = False

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytearray | memoryview) -> _Answer:
        """Carry out one request. `body` is from the pool, and belongs to this object from now on."""
        answer = self._carry_out(method, target, headers, body)
        if not self._is_kept:
            self.pool.give_back(body)
        self._is_kept = False
        return answer

    def _carry_out(self, method: str, target: str, headers: Mapping[str, str], body: bytearray | memoryview) -> _Answer:
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        if bucket == "healthz":
            return _Answer(200)
        if "quota" in query:
            limit = int(query["bytes"])
            self._quota = None if limit < 0 else (limit, int(query["status"]), query["code"])
            return _Answer(200)
        if not (self._directory / bucket).is_dir():
            return _refusal(404, "NoSuchBucket")
        match method:
            case "PUT":
                return self._put(bucket, key, headers, body)
            case "POST" if "delete" in query:
                return self._delete_many(bucket, body)
            case "DELETE":
                self._drop(bucket, key)
                return _Answer(204)
            case "GET" if "lifecycle" in query:
                return _refusal(404, "NoSuchLifecycleConfiguration")
            case "GET" if "versioning" in query:
                return _Answer(200, _EMPTY_VERSIONING)
            case "GET" if not key:
                return self._list(bucket, query)
            case "GET" | "HEAD":
                return self._get(bucket, key, headers, is_head=method == "HEAD")
        return _refusal(501, "NotImplemented")

    def _put(self, bucket: str, key: str, headers: Mapping[str, str], body: bytearray | memoryview) -> _Answer:
        found = self._objects.get((bucket, key))
        if (headers.get("if-none-match") == "*" and found is not None) or (
            "if-match" in headers and (found is None or headers["if-match"] != found.e_tag)
        ):
            return _refusal(412, "PreconditionFailed")
        if self._quota is not None and self._byte_count + len(body) > self._quota[0]:
            return _refusal(self._quota[1], self._quota[2])
        number = next(self._count)
        self._drop(bucket, key)
        stored: bytearray | memoryview | Path = body
        if self._memory_byte_count + len(body) > self._memory_bytes_max:
            stored = self._directory / bucket / str(number)
            stored.write_bytes(body)
        else:
            self._memory_byte_count += len(body)
            self._is_kept = True
        tags = {name: value for name, value in headers.items() if name.startswith(_TAG_PREFIX)}
        self._objects[bucket, key] = _Object(stored, len(body), f'"{number:032x}"', tags)
        self._byte_count += len(body)
        return _Answer(200, headers={"ETag": f'"{number:032x}"'})

    def _drop(self, bucket: str, key: str) -> None:
        found = self._objects.pop((bucket, key), None)
        if found is not None:
            self._byte_count -= found.length
            if isinstance(found.body, Path):
                found.body.unlink()
            else:
                self._memory_byte_count -= found.length
                self.pool.give_back(found.body)

    def _delete_many(self, bucket: str, body: bytearray | memoryview) -> _Answer:
        keys = [each.text or "" for each in ElementTree.fromstring(bytes(body)).iter() if each.tag.endswith("Key")]
        for key in keys:
            self._drop(bucket, key)
        deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        return _Answer(200, f"<?xml version='1.0'?><DeleteResult>{deleted}</DeleteResult>".encode())

    def _get(self, bucket: str, key: str, headers: Mapping[str, str], *, is_head: bool) -> _Answer:
        found = self._objects.get((bucket, key))
        if found is None:
            return _refusal(404, "NoSuchKey") if not is_head else _Answer(404, length=0)
        about = {"ETag": found.e_tag, "Last-Modified": formatdate(0, usegmt=True), **found.tags}
        if is_head:
            return _Answer(200, headers=about, length=found.length)
        first, end = 0, found.length
        if wanted := headers.get("range"):
            low, _, high = wanted.removeprefix("bytes=").partition("-")
            first, end = int(low), min(int(high) + 1, found.length) if high else found.length
            if first >= found.length:
                return _refusal(416, "InvalidRange")
            about["Content-Range"] = f"bytes {first}-{end - 1}/{found.length}"
        if isinstance(found.body, Path):
            with found.body.open("rb") as file:
                body = os.pread(file.fileno(), end - first, first)
        else:
            body = bytes(memoryview(found.body)[first:end])
        return _Answer(206 if wanted else 200, body, about)

    def _list(self, bucket: str, query: Mapping[str, str]) -> _Answer:
        prefix = query.get("prefix", "")
        after = max(query.get("start-after", ""), query.get("continuation-token", ""))
        keys = sorted(key for place, key in self._objects if place == bucket and key.startswith(prefix) and key > after)
        page = keys[:_PAGE_LENGTH_MAX]
        lines = [f"<Name>{bucket}</Name><KeyCount>{len(page)}</KeyCount>"]
        for key in page:
            found = self._objects[bucket, key]
            lines.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>1970-01-01T00:00:00.000Z</LastModified>"
                f"<ETag>{escape(found.e_tag)}</ETag><Size>{found.length}</Size></Contents>"
            )
        is_more = len(keys) > len(page)
        lines.append(f"<IsTruncated>{'true' if is_more else 'false'}</IsTruncated>")
        if is_more:
            lines.append(f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>")
        return _Answer(200, f"<?xml version='1.0'?><ListBucketResult>{''.join(lines)}</ListBucketResult>".encode())


class _Connection(asyncio.BufferedProtocol):
    """One connection: one request at a time; a body is received where it stays."""

    def __init__(self, buckets: _Buckets, delay_s: float) -> None:
        self._buckets = buckets
        self._delay_s = delay_s
        self._transport: asyncio.Transport | None = None
        self._head = bytearray(_HEAD_BYTES_MAX)
        self._head_length = 0
        #: Of the request whose body is being received.
        self._request: tuple[str, str, Mapping[str, str]] | None = None
        self._body: bytearray | memoryview = bytearray()
        self._body_length = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass.

    def connection_lost(self, exc: Exception | None) -> None:
        if self._request is not None:
            self._buckets.pool.give_back(self._body)
            self._request, self._body = None, bytearray()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._request is not None:
            return memoryview(self._body)[self._body_length :]
        return memoryview(self._head)[self._head_length :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._request is not None:
            self._body_length += nbytes
        else:
            self._head_length += nbytes
        self._advance()

    def _advance(self) -> None:
        if self._request is None:
            head, separator, rest = bytes(self._head[: self._head_length]).partition(b"\r\n\r\n")
            if not separator:
                return
            first, *lines = head.decode("latin-1").split("\r\n")
            method, target, _ = first.split(" ", 2)
            headers = {
                name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
            }
            self._request = method, target, headers
            self._body = self._buckets.pool.take(int(headers.get("content-length", "0")))
            self._body_length = len(rest)
            self._body[: len(rest)] = rest
            self._head_length = 0
        if self._body_length == len(self._body):
            request, body = self._request, self._body
            self._request, self._body = None, bytearray()
            answer = self._buckets.answer(*request, body)
            asyncio.get_running_loop().call_later(self._delay_s, self._send, answer)

    def _send(self, answer: _Answer) -> None:
        assert self._transport is not None
        if self._transport.is_closing():
            return
        length = len(answer.body) if answer.length is None else answer.length
        lines = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
        reason = _REASONS.get(answer.status, "Error")
        self._transport.write(
            f"HTTP/1.1 {answer.status} {reason}\r\n{lines}Content-Length: {length}\r\n\r\n".encode("latin-1")
        )
        if answer.body:
            self._transport.write(answer.body)


async def _serve(address: str, directory: Path, delay_s: float, pool_bytes: int) -> None:
    host, _, port = address.rpartition(":")
    buckets = _Buckets(directory, pool_bytes)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(buckets, delay_s), host, int(port))
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 0))
