"""`ObstoreObjects` against a small HTTP server that answers as S3 does, or as it should not."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from obstore.exceptions import GenericError

from penstock.model.errors import (
    InvalidArgumentError,
    NoSuchObjectError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectRangeError,
    StorageBucketMissingError,
    StorageClockError,
    StorageCredentialsError,
    StorageError,
    StorageFullError,
    StorageNotRespondingError,
    StorageThrottledError,
    StorageUnreachableError,
)
from penstock.runtime.object_changes import change_object
from penstock.runtime.objects import ObjectPlace, ObjectStoreSettings, ObjectVersion, VersionedObject
from penstock.runtime.obstore_objects import ObstoreObjects, open_object_store, storage_error
from penstock.segmentstore.tier2.object_storage import ObjectChunkStorage

#: What a request is answered with: status, headers and body; None: the connection ends.
Answer = tuple[int, dict[str, str], bytes] | None
Respond = Callable[[str, str, dict[str, str], bytes], Answer]


@asynccontextmanager
async def served(
    respond: Respond, *, before: Callable[[], Awaitable[object]] | None = None, **settings: object
) -> AsyncIterator[ObstoreObjects]:
    """Yield a bucket of a server on loopback that answers each request (method, path, headers, body) by `respond`.

    `before` is awaited for each request, between it and the answer.
    """
    writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, path, _ = head[0].split(" ")
                headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if before is not None:
                    await before()
                answer = respond(method, path, headers, body)
                if answer is None:
                    return
                status, answered, content = answer
                lines = {"Content-Length": str(len(content)), **answered}
                fields = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
                writer.write(f"HTTP/1.1 {status} x\r\n{fields}\r\n".encode() + (b"" if method == "HEAD" else content))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield opened(port, **settings)
    finally:
        server.close()
        for writer in writers:
            writer.close()


async def never() -> None:
    """Answer nothing, for longer than any test."""
    await asyncio.sleep(3600.0)


def opened(port: int, **settings: object) -> ObstoreObjects:
    values = {
        "endpoint": f"http://127.0.0.1:{port}",
        "region": "us-east-1",
        "access_key_id": "a",
        "secret_access_key": "b",
        "retry_delay_s_first": 0.001,
        "retry_delay_s_max": 0.01,
        "request_retries_max": 1,
    }
    return open_object_store(ObjectPlace("s3", "bucket"), ObjectStoreSettings(**{**values, **settings}))  # type: ignore[arg-type]  # Of several types.


def refusal(status: int, code: str) -> Answer:
    """Return an error document of S3."""
    document = f"<Error><Code>{code}</Code><Message>m</Message></Error>"
    return status, {"Content-Type": "application/xml"}, document.encode()


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (403, "SignatureDoesNotMatch", StorageCredentialsError),
        (403, "InvalidAccessKeyId", StorageCredentialsError),
        (403, "AccessDenied", StorageCredentialsError),
        (400, "ExpiredToken", StorageCredentialsError),
        (401, "", StorageCredentialsError),
        (404, "XAdminUserNotFound", StorageCredentialsError),
        (403, "RequestTimeTooSkewed", StorageClockError),
        (404, "NoSuchBucket", StorageBucketMissingError),
        (301, "PermanentRedirect", StorageBucketMissingError),
        (400, "AuthorizationHeaderMalformed", StorageBucketMissingError),
        (503, "SlowDown", StorageThrottledError),
        (429, "TooManyRequests", StorageThrottledError),
        (507, "InsufficientStorage", StorageFullError),
        (500, "InternalError", StorageError),
        (400, "InvalidArgument", StorageError),
    ],
)
async def test_a_refusal_of_the_store_has_its_own_error(status: int, code: str, error: type[StorageError]) -> None:
    """For every call alike; and with words that say where, why, and what to do."""
    async with served(lambda *request: refusal(status, code)) as objects:
        for call in (
            lambda: objects.get("key"),
            lambda: objects.get_range("key", 0, 1),
            lambda: objects.put_new("key", b"abc", "tag"),
            lambda: anext(aiter(objects.list("folder"))),
        ):
            with pytest.raises(StorageError, match="s3://bucket") as raised:
                await call()
            assert type(raised.value) is error
            assert code in str(raised.value) or status == 301


@pytest.mark.parametrize(
    "said",
    [
        "Error performing PUT http://169.254.169.254/latest/api/token in 6ms - Server returned non-2xx status "
        "code: 403 Forbidden: denied",
        "Error performing token request: Error performing GET http://metadata.google.internal/computeMetadata - HTTP "
        "error: error sending request",
    ],
)
def test_a_machine_without_credentials_and_without_a_role_is_reported(said: str) -> None:
    """As obstore says it that has nothing and asks for the machine's role."""
    error = storage_error(GenericError(f"Generic error: {said}\n\nDebug source:\nGeneric {{}}"), "s3://bucket", "key")
    assert type(error) is StorageCredentialsError
    assert "no credentials for s3://bucket: set AWS_ACCESS_KEY_ID" in str(error)
    assert "Debug source" not in str(error)


async def test_an_error_about_one_object_is_no_failure_of_the_store() -> None:
    async with served(lambda *request: refusal(404, "NoSuchKey")) as objects:
        with pytest.raises(NoSuchObjectError):
            await objects.get("key")
        with pytest.raises(NoSuchObjectError):
            await objects.head("key")
    for status, code in ((412, "PreconditionFailed"), (409, "ConditionalRequestConflict"), (409, "ObjectParentIsFile")):
        async with served(lambda *request, answer=(status, code): refusal(*answer)) as objects:
            with pytest.raises(ObjectExistsError, match=code):
                await objects.put_new("key", b"abc", "tag")
    async with served(lambda *request: refusal(416, "InvalidRange")) as objects:
        with pytest.raises(ObjectRangeError):
            await objects.get_range("key", 3, 1)


async def test_a_creation_whose_reply_is_lost_is_sent_again_and_recognised() -> None:
    """The library sends it again by itself, and hears that there is one: itself. Seen by the tag, it is adopted."""
    stored: dict[str, tuple[bytes, str]] = {}
    requests: list[str] = []

    def respond(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        requests.append(method)
        if method == "PUT":
            assert headers["if-none-match"] == "*"
            if path in stored:
                return refusal(412, "PreconditionFailed")
            stored[path] = body, headers["x-amz-meta-penstocktag"]
            return None
        content, tag = stored[path]
        length = {"Content-Length": str(len(content)), "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
        return 200, {**length, "ETag": '"x"', "x-amz-meta-penstocktag": tag}, content

    async with served(respond) as objects:
        assert await ObjectChunkStorage(objects, random.Random(1)).create_with_content("s/0", [b"abc"]) == 3
        assert requests == ["PUT", "PUT", "HEAD"]
    assert [content for content, _ in stored.values()] == [b"abc"]


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_replacement_whose_reply_is_lost_is_recognised_by_its_content(lost: int) -> None:
    """By the library, which sends it again and gets a refusal, or by the caller after the library has given it up."""
    stored = {"content": b"first", "etag": '"1"'}
    requests: list[str] = []

    def respond(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        requests.append(method)
        if method == "PUT":
            if headers["if-match"] == stored["etag"]:
                stored.update(content=body, etag='"2"')
            elif requests.count("PUT") > lost:
                return refusal(412, "PreconditionFailed")
            return None
        fields = {"Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT", "ETag": str(stored["etag"])}
        return 200, fields, bytes(stored["content"])  # type: ignore[arg-type]  # Of two types.

    async with served(respond) as objects:
        found = await objects.get_versioned("key")
        assert found == VersionedObject(b"first", ObjectVersion('"1"'))
        assert await change_object(objects, "key", b"second", found.version) == ObjectVersion('"2"')
    assert stored["content"] == b"second"
    assert requests == ["GET", *["PUT"] * 2, "GET"]


async def test_a_replacement_that_is_refused_says_so_and_a_store_without_versions_is_an_error() -> None:
    for status, code in ((412, "PreconditionFailed"), (409, "ConditionalRequestConflict"), (404, "NoSuchKey")):
        async with served(lambda *request, answer=(status, code): refusal(*answer)) as objects:
            with pytest.raises(ObjectChangedError, match=code):
                await objects.put_if("key", b"abc", ObjectVersion('"1"'))
    plain = (200, {"Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}, b"abc")
    async with served(lambda *request: plain) as objects:
        with pytest.raises(StorageError, match=r"reports no version of key|ETag"):
            await objects.get_versioned("key")


async def test_a_store_that_does_not_answer_is_given_up_in_time() -> None:
    """By the limit of a request, and by that of a call with all its retries; the outcome is unknown."""
    for limit in ({"request_timeout_s": 0.2, "request_retries_max": 0}, {"call_timeout_s": 0.2}):
        async with served(lambda *request: None, before=never, **limit) as objects:
            for call in (lambda: objects.get("key"), lambda: objects.put_new("key", b"abc", "tag")):
                with pytest.raises(StorageNotRespondingError, match="may still take effect"):
                    await call()


async def test_an_unreachable_store_is_distinguished_from_a_broken_connection() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        objects = opened(unused.getsockname()[1])
        with pytest.raises(StorageUnreachableError, match="cannot be reached"):
            await objects.get("key")
    async with served(lambda *request: None) as objects:
        with pytest.raises(StorageUnreachableError, match="broke, with an unknown outcome"):
            await objects.put_new("key", b"abc", "tag")


@pytest.mark.parametrize("length", [2, 10])
async def test_a_short_object_is_an_error(length: int) -> None:
    """SS-210: it is whole or an error, never less than was asked for. What comes short is all only at its end."""

    def respond(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        fields = {"Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT", "ETag": '"x"'}
        if method == "HEAD":
            return 200, {**fields, "Content-Length": str(length)}, b""
        return 206, {**fields, "Content-Range": f"bytes 0-{min(length, 8) - 1}/{length}"}, b"ab"

    async with served(respond) as objects:
        if length == 2:
            assert await objects.get_range("key", 0, 8) == b"ab"
            return
        with pytest.raises(StorageError, match="2 of 8 bytes"):
            await objects.get_range("key", 0, 8)


async def test_cancelled_calls_end_at_once() -> None:
    async with served(lambda *request: None, before=never) as objects:
        call = asyncio.ensure_future(objects.put_new("key", b"abc", "tag"))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_no_more_calls_are_under_way_than_the_settings_say() -> None:
    """Counted by the server, which lets others in before it answers."""
    under_way = 0
    most = 0

    async def respond_late() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(20):
            await asyncio.sleep(0)
        under_way -= 1

    async with served(lambda *request: refusal(404, "NoSuchKey"), before=respond_late, reads_max=2) as objects:
        ends = await asyncio.gather(*(objects.get(f"key{number}") for number in range(10)), return_exceptions=True)
    assert {type(end) for end in ends} == {NoSuchObjectError}
    assert most <= 2


def test_google_and_azure_are_opened_by_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked of them before the first call; what they lack is said in words."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    assert open_object_store(ObjectPlace("az", "container"), ObjectStoreSettings()).place == "az://container"
    assert open_object_store(ObjectPlace("gs", "bucket"), ObjectStoreSettings()).place == "gs://bucket"
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
    with pytest.raises(InvalidArgumentError, match="az://container cannot be used: "):
        open_object_store(ObjectPlace("az", "container"), ObjectStoreSettings())


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(InvalidArgumentError, match=r"the extra 's3' of Penstock"):
        open_object_store(ObjectPlace("s3", "bucket"), ObjectStoreSettings())


@pytest.mark.parametrize(
    ("place", "variables"),
    [
        ("s3://bucket", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("gs://bucket", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://container", "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_credentials_are_requested_by_the_variables_of_their_service(place: str, variables: str) -> None:
    error = storage_error(GenericError("Error performing token request: Error performing GET"), place, "key")
    assert isinstance(error, StorageCredentialsError)
    assert f"no credentials for {place}: set {variables}, or give this machine a role" in str(error)


@pytest.mark.parametrize(
    ("url", "environment", "said"),
    [
        ("gs://b/p", {"GOOGLE_APPLICATION_CREDENTIALS": "/nowhere.json"}, "Unable to open service account file"),
        ("az://c/p", {}, "Account must be specified"),
        (
            "az://c/p", {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": "not a key!"},
            "Invalid Access Key",
        ),
    ],
)  # fmt: skip
def test_broken_credentials_of_google_and_azure_are_reported_at_once(
    url: str, environment: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidArgumentError, match=rf"{url} cannot be used: .*{said}.*its credentials come from"):
        open_object_store(ObjectPlace.parse(url), ObjectStoreSettings())


@pytest.mark.parametrize("url", ["gcs://bucket/prefix", "abfs://container/prefix", "wasb://container/prefix", "gs://"])
def test_other_forms_of_places_are_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a place in object storage"):
        ObjectPlace.parse(url)
