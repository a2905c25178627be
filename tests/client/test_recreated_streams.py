"""Reader groups of a stream that was deleted, and created again under the same name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock.client.client import Client
from penstock.client.groups.reader import Reader
from penstock.client.settings import ClientSettings
from penstock.model.errors import NoSuchStreamError
from penstock.model.policies import Scaling
from penstock.server.settings import StandaloneSettings
from penstock.server.standalone import Standalone

FAST = {
    "position_interval_s": 0.05, "reader_group_refresh_s": 0.02, "reader_group_stream_refresh_s": 0.05,
    "reader_timeout_s": 0.5, "statistics_extent_age_s": 0.01,
}  # fmt: skip
A, B = "retail/a", "retail/b"


@asynccontextmanager
async def served() -> AsyncIterator[Client]:
    """A client of a real server: segment numbers must continue as the real controller has them continue."""
    server = Standalone(StandaloneSettings(is_memory=True, host="127.0.0.1", controller_port=0, segment_store_port=0))
    await server.start()
    try:
        async with Client(server.controller_uri, ClientSettings(**FAST)) as client:  # type: ignore[arg-type]
            yield client
    finally:
        await server.stop()


async def create(client: Client, stream: str, count: int = 4, segments: int = 2) -> None:
    await client.create_stream(stream, scaling=Scaling.fixed(segments))
    async with client.event_writer(stream) as writer:
        for number in range(count):
            await writer.write(f"{stream} {number}".encode(), routing_key=str(number))


async def recreate(client: Client, stream: str, *, with_scope: bool = False) -> None:
    await client.seal_stream(stream)
    await client.delete_stream(stream)
    if with_scope:
        await client.delete_scope("retail")
    await create(client, stream)


async def read(reader: Reader, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            event = await reader.read(5)
            assert event is not None
            found.append(event.data)
    return found


async def read_on(reader: Reader) -> None:
    async with asyncio.timeout(60):
        while True:
            await reader.read(1)
            assert not reader.is_finished


async def expect_report(reader: Reader, group: str = "retail/audit") -> None:
    """Read until the reader reports the recreated stream. An end, or silence, fails."""
    while True:
        with pytest.raises(NoSuchStreamError) as caught:
            await read_on(reader)
        # What the reader has found between the deletion and the creation is reported once.
        if not any(text in str(caught.value) for text in ("does not exist", "is not completely created")):
            break
    assert f"{A} was deleted, and created again" in str(caught.value)
    assert group in str(caught.value)


async def test_a_reader_at_the_tail_reports_a_recreated_stream_each_time() -> None:
    async with served() as client:
        await create(client, A)
        async with client.reader_group("audit", [A]) as group, group.reader("r") as reader:
            await read(reader, 4)
            await recreate(client, A)
            await expect_report(reader)
            await expect_report(reader)


async def test_a_reader_of_a_group_with_an_end_reports_a_recreated_stream() -> None:
    """The end of the group lies in a deleted segment, which counts as read to its end."""
    async with served() as client:
        await create(client, A)
        group = await client.reader_group("audit", [A], until="latest")
        await recreate(client, A)
        async with group, group.reader("r") as reader:
            await expect_report(reader)


async def test_a_reader_still_gets_the_events_of_other_streams() -> None:
    async with served() as client:
        await create(client, A)
        await create(client, B)
        async with client.reader_group("audit", [A, B]) as group, group.reader("r") as reader:
            await read(reader, 8)
            async with client.event_writer(A) as writer:
                await writer.write(b"in hand", routing_key="k")
            # Until the next read this event is not processed, so its segment is not finished before the deletion.
            assert await read(reader, 1) == [b"in hand"]
            await recreate(client, A)
            await expect_report(reader)
            async with client.event_writer(B) as writer:
                await writer.write(b"more", routing_key="k")
            async with asyncio.timeout(60):
                while True:
                    try:
                        event = await reader.read(1)
                    except NoSuchStreamError:
                        continue
                    if event is not None:
                        break
            assert event.data == b"more"
            # The way out that the error names.
            await group.remove_streams([A])
            await group.add_streams([A])
            again: list[bytes] = []
            async with asyncio.timeout(60):
                while len(again) < 4:
                    try:
                        event = await reader.read(1)
                    except NoSuchStreamError:
                        continue  # From before the change.
                    if event is not None:
                        again.append(event.data)
            assert sorted(again) == [b"retail/a %d" % number for number in range(4)]


@pytest.mark.parametrize("is_finished", [False, True])
async def test_opening_a_group_reports_a_recreated_stream(is_finished: bool) -> None:
    """Also a group that had read the deleted stream to its end, whose record has no segment left to read."""
    async with served() as client:
        await create(client, A)
        async with client.reader_group("audit", [A]) as group, group.reader("r") as reader:
            await read(reader, 4)
            if is_finished:
                await client.seal_stream(A)
                async with asyncio.timeout(60):
                    while not reader.is_finished:
                        assert await reader.read(1) is None
        await recreate(client, A) if not is_finished else await recreate_sealed(client, A)
        with pytest.raises(NoSuchStreamError, match="created again"):
            await client.reader_group("audit", [A])
        # Without streams it opens, so that its streams can be changed; a reader reports.
        async with client.reader_group("retail/audit") as group:
            if is_finished:
                with pytest.raises(NoSuchStreamError, match="created again"):
                    await group.reader("r")
            else:
                async with group.reader("r") as reader:
                    await expect_report(reader)
        await client.delete_reader_group("retail/audit")
        async with client.reader_group("audit", [A]) as group, group.reader("r") as reader:
            assert len(await read(reader, 4)) == 4


async def recreate_sealed(client: Client, stream: str) -> None:
    await client.delete_stream(stream)
    await create(client, stream)


async def test_a_group_of_a_stream_whose_scope_was_deleted_too_reports_it() -> None:
    """Segment numbers of a name continue after its scope was deleted."""
    async with served() as client:
        await create(client, A)
        await client.create_scope("audits")
        group = await client.reader_group("audits/audit", [A])
        await recreate(client, A, with_scope=True)
        async with group, group.reader("r") as reader:
            await expect_report(reader, "audits/audit")


async def test_a_group_of_a_stream_that_was_truncated_after_scaling_opens() -> None:
    """None of the segments that the group knows exists, yet the stream is the same."""
    async with served() as client:
        await create(client, A, segments=1)
        async with client.reader_group("audit", [A]) as group, group.reader("r") as reader:
            await read(reader, 4)
        await client.scale_stream(A, seal=[0], key_ranges=[(0.0, 0.5), (0.5, 1.0)])
        await client.truncate_stream(await client.tail(A))
        async with client.reader_group("audit", [A]) as group, group.reader("r") as reader:
            reader.skip_truncated = True
            async with client.event_writer(A) as writer:
                await writer.write(b"more", routing_key="k")
            assert await read(reader, 1) == [b"more"]


@pytest.mark.parametrize("is_finished", [False, True])
async def test_lag_and_statistics_show_a_recreated_stream(is_finished: bool) -> None:
    async with served() as client:
        await create(client, A)
        await create(client, B)
        async with client.reader_group("audit", [A, B]) as group, group.reader("r") as reader:
            await read(reader, 8)
            if is_finished:
                await client.seal_stream(A)
                await client.seal_stream(B)
                async with asyncio.timeout(60):
                    while not reader.is_finished:
                        assert await reader.read(1) is None
        async with client.reader_group("retail/audit") as group:
            found = await group.describe()
            assert (found.is_finished, list(found.recreated)) == (is_finished, [])
            lag = (await client.statistics(groups=["retail/audit"])).groups["retail/audit"]
            assert (lag.is_finished, list(lag.recreated), lag.problem) == (is_finished, [], None)
            await recreate(client, A) if not is_finished else await recreate_sealed(client, A)
            assert (await group.describe()).recreated == [A]
            with pytest.raises(NoSuchStreamError, match=f"{A} was deleted, and created again"):
                await group.unread_bytes()
        async with asyncio.timeout(60):
            while True:
                lag = (await client.statistics(groups=["retail/audit"])).groups["retail/audit"]
                if lag.recreated:
                    break
                await asyncio.sleep(0.05)
        assert (lag.is_finished, list(lag.recreated)) == (is_finished, [A])
