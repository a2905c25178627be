"""What every `CoordinationStore` has to do: one suite over the simulated ZooKeeper and over real servers."""

from __future__ import annotations

import asyncio

import pytest

from penstock.model.errors import InvalidArgumentError
from penstock.model.errors.coordination import (
    CoordinationUnavailableError,
    EphemeralParentError,
    NodeError,
    NodeExistsError,
    NodeNotEmptyError,
    NodeVersionError,
    NoSuchNodeError,
    SessionExpiredError,
)
from penstock.runtime.coordination import (
    CONTENT_BYTES_MAX,
    CheckNode,
    CoordinationSettings,
    CoordinationStore,
    CreateNode,
    DeleteNode,
    NodeChange,
    Session,
    SetNode,
    ensure_node,
)
from support.coordination_backends import BACKENDS, WAIT_S, Backend, make_backend, wait_for_session, wait_until


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each implementation in turn."""
    return make_backend(request)


async def exists(store: CoordinationStore, path: str) -> bool:
    """Return whether there is a node."""
    try:
        await store.get(path)
    except NoSuchNodeError:
        return False
    return True


async def test_a_node_is_read_as_it_was_written(backend: Backend) -> None:
    """Its version counts its changes, its zxid grows, and a persistent node has no owner."""
    store = await backend.open()
    assert await store.create("/a", b"one") == "/a"
    first = await store.get("/a")
    assert (first.content, first.version, first.owner) == (b"one", 0, 0)
    assert await store.set("/a", b"two") == 1
    assert await store.set("/a", b"three", 1) == 2
    third = await store.get("/a")
    assert (third.content, third.version) == (b"three", 2)
    assert third.zxid > first.zxid
    assert third.created_zxid == first.created_zxid == first.zxid
    await store.delete("/a", 2)
    assert not await exists(store, "/a")
    await store.close()


async def test_changes_that_do_not_fit_are_refused_and_change_nothing(backend: Backend) -> None:
    """Each by an error of its own, which names the node."""
    store = await backend.open()
    await store.create("/a", b"content")
    await store.create("/a/child")
    await store.create("/short", is_ephemeral=True)
    for request, kind in (
        (store.get("/none"), NoSuchNodeError),
        (store.children("/none"), NoSuchNodeError),
        (store.set("/none", b""), NoSuchNodeError),
        (store.delete("/none"), NoSuchNodeError),
        (store.create("/none/child"), NoSuchNodeError),
        (store.create("/a"), NodeExistsError),
        (store.set("/a", b"other", 1), NodeVersionError),
        (store.delete("/a/child", 1), NodeVersionError),
        (store.delete("/a"), NodeNotEmptyError),
        (store.create("/short/child"), EphemeralParentError),
    ):
        with pytest.raises(kind) as caught:
            await request
        assert isinstance(caught.value, NodeError)
        assert caught.value.path in str(caught.value)
    assert (await store.get("/a")).content == b"content"
    assert (await store.children("/a")).names == {"child"}
    await store.close()


async def test_paths_and_lengths_are_checked(backend: Backend) -> None:
    """Before anything is sent."""
    store = await backend.open()
    before = store.request_count
    for path in ("a", "", "/a/", "//a", "/a/../b", "/nul\0"):
        with pytest.raises(InvalidArgumentError):
            await store.create(path)
    with pytest.raises(InvalidArgumentError, match=str(CONTENT_BYTES_MAX)):
        await store.create("/a", b"x" * (CONTENT_BYTES_MAX + 1))
    assert store.request_count == before
    await store.close()


async def test_the_zxid_of_children_grows_when_one_comes_or_goes(backend: Backend) -> None:
    """It does not with their contents."""
    store = await backend.open()
    await store.create("/a")
    zxids = [(await store.children("/a")).zxid]
    await store.create("/a/one")
    zxids.append((await store.children("/a")).zxid)
    await store.set("/a/one", b"content")
    assert (await store.children("/a")).zxid == zxids[-1]
    await store.delete("/a/one")
    after = await store.children("/a")
    zxids.append(after.zxid)
    assert zxids == sorted(set(zxids))
    assert after.names == frozenset()
    await store.close()


async def test_sequential_names_are_unique_and_grow(backend: Backend) -> None:
    """Also when several sessions create at once, and after a deletion."""
    first, second = await backend.open(), await backend.open()
    await first.create("/line")
    made = await asyncio.gather(
        *(store.create("/line/n-", is_sequential=True, is_ephemeral=True) for store in (first, second) * 5)
    )
    assert len(set(made)) == 10
    assert {path.removeprefix("/line/") for path in made} == (await first.children("/line")).names
    await first.delete(max(made))
    last = await second.create("/line/n-", is_sequential=True)
    assert last > max(made)
    assert last.removeprefix("/line/n-").isdecimal()
    assert len(last) == len("/line/n-") + 10
    await first.close()
    await second.close()


async def test_ephemeral_nodes_end_with_their_session(backend: Backend) -> None:
    """Another session can wait for that. Persistent nodes stay."""
    first, second = await backend.open(), await backend.open()
    await first.create("/mine", b"x", is_ephemeral=True)
    await first.create("/stays")
    await ensure_node(first, "/stays")
    assert (await first.get("/mine")).owner == first.session_id != second.session_id

    async def is_seen() -> bool:
        return await exists(second, "/mine")

    await wait_until(is_seen)
    gone = asyncio.ensure_future(second.changed("/mine", await second.get("/mine")))
    await first.close()
    await asyncio.wait_for(gone, WAIT_S)
    assert not await exists(second, "/mine")
    assert await exists(second, "/stays")
    assert first.session is Session.EXPIRED
    with pytest.raises(SessionExpiredError):
        await first.get("/stays")
    await first.close()
    await second.close()


async def test_several_changes_are_made_as_one(backend: Backend) -> None:
    """As when a parent deletes the nodes of a dead child, which belong to that child's session."""
    first, second = await backend.open(), await backend.open()
    await first.create("/hosts")
    await first.create("/ends")
    await first.create("/hosts/a", is_ephemeral=True)
    await second.multi([DeleteNode("/hosts/a"), CreateNode("/ends/a", b"proof"), SetNode("/hosts", b"x", 0)])
    assert (await second.children("/hosts")).names == frozenset()
    assert (await second.get("/ends/a")).content == b"proof"
    assert (await second.get("/hosts")).version == 1
    await second.multi([])
    await first.close()
    await second.close()


@pytest.mark.parametrize(
    ("refused", "kind"),
    [
        (CheckNode("/a", 7), NodeVersionError),
        (SetNode("/a", b"", 7), NodeVersionError),
        (CreateNode("/a"), NodeExistsError),
        (CreateNode("/new"), NodeExistsError),
        (DeleteNode("/none"), NoSuchNodeError),
    ],
    ids=str,
)
async def test_if_one_change_is_refused_none_is_made(
    backend: Backend, refused: NodeChange, kind: type[NodeError]
) -> None:
    """The error is that of the first refused change. A change sees those before it."""
    store = await backend.open()
    await store.create("/a", b"content")
    with pytest.raises(kind) as caught:
        await store.multi([CreateNode("/new"), SetNode("/a", b"other", 0), refused, DeleteNode("/other")])
    assert caught.value.path == refused.path
    assert not await exists(store, "/new")
    assert (await store.get("/a")).version == 0
    await store.close()


async def test_a_wait_ends_with_each_kind_of_change(backend: Backend) -> None:
    """Content, deletion, creation, children: by another session."""
    reader, writer = await backend.open(), await backend.open()
    await writer.create("/a", b"one")

    async def has_a() -> bool:
        return await exists(reader, "/a")

    await wait_until(has_a)
    for change in (writer.set("/a", b"two"), writer.delete("/a"), writer.create("/a")):
        seen = await reader.get("/a") if await exists(reader, "/a") else None
        waiting = asyncio.ensure_future(reader.changed("/a", seen))
        await change
        await asyncio.wait_for(waiting, WAIT_S)
    children = await reader.children("/a")
    waiting = asyncio.ensure_future(reader.changed("/a", children))
    await writer.create("/a/child")
    await asyncio.wait_for(waiting, WAIT_S)
    seen_children = await reader.children("/a")
    assert seen_children.names == {"child"}
    waiting = asyncio.ensure_future(reader.changed("/a", seen_children))
    await writer.delete("/a/child")
    await asyncio.wait_for(waiting, WAIT_S)
    await reader.close()
    await writer.close()


async def test_a_wait_for_what_was_missed_ends_at_once(backend: Backend) -> None:
    """A change between the read and the wait is not lost; without a change the wait continues."""
    store = await backend.open()
    await store.create("/a")
    seen, children = await store.get("/a"), await store.children("/a")
    await store.set("/a", b"x")
    await store.create("/a/child")
    await asyncio.wait_for(store.changed("/a", seen), WAIT_S)
    await asyncio.wait_for(store.changed("/a", children), WAIT_S)
    await asyncio.wait_for(store.changed("/a", None), WAIT_S)
    await asyncio.wait_for(store.changed("/none", children), WAIT_S)
    waiting = asyncio.ensure_future(store.changed("/a", await store.get("/a")))
    for _ in range(5):
        await store.get("/a")
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await store.close()


async def test_cancelled_waits_leave_nothing_behind(backend: Backend) -> None:
    """However many: the service keeps one watch for all of them."""
    store = await backend.open()
    await store.create("/a")
    seen = await store.get("/a")
    for _ in range(20):
        waits = [asyncio.ensure_future(store.changed("/a", seen)) for _ in range(3)]
        await store.get("/a")
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    assert len(store._watches) == 1  # type: ignore[attr-defined]
    waiting = asyncio.ensure_future(store.changed("/a", seen))
    await store.get("/a")
    await store.set("/a", b"x")
    await asyncio.wait_for(waiting, WAIT_S)
    assert len(store._watches) == 0  # type: ignore[attr-defined]
    await store.close()


async def test_of_several_that_change_a_version_one_succeeds(backend: Backend) -> None:
    """A counter by four sessions loses nothing."""
    stores = [await backend.open() for _ in range(4)]
    await stores[0].create("/count", b"0")

    async def count(store: CoordinationStore) -> None:
        done = 0
        while done < 5:
            try:
                node = await store.get("/count")
                await store.set("/count", b"%d" % (int(node.content) + 1), node.version)
                done += 1
            except (NodeVersionError, NoSuchNodeError):  # A server that lags.
                continue

    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(count(store) for store in stores))
    await stores[0].set("/count", (await stores[0].get("/count")).content)
    assert int((await stores[0].get("/count")).content) == 20
    await asyncio.gather(*(store.close() for store in stores))


async def test_an_expired_session_is_over(backend: Backend) -> None:
    """It finds out, its waits end, its nodes are gone, and it can do nothing; another session can be opened."""
    store, other = await backend.open(), await backend.open()
    await store.create("/mine", is_ephemeral=True)
    await store.create("/a")
    waiting = asyncio.ensure_future(store.changed("/a", await store.get("/a")))
    await store.get("/a")
    await backend.expire(store)
    with pytest.raises(SessionExpiredError):
        await asyncio.wait_for(waiting, WAIT_S)
    await wait_for_session(store, Session.EXPIRED)
    for request in (store.get("/a"), store.set("/a", b""), store.create("/b"), store.changed("/a", None)):
        with pytest.raises(SessionExpiredError):
            await request
    assert await store.session_changed(Session.EXPIRED) is Session.EXPIRED

    async def is_gone() -> bool:
        return not await exists(other, "/mine")

    await wait_until(is_gone)
    again = await backend.open()
    assert again.session_id not in (store.session_id, other.session_id)
    await again.create("/mine", is_ephemeral=True)
    await asyncio.gather(store.close(), other.close(), again.close())


async def test_a_session_outlives_its_connection(backend: Backend) -> None:
    """It is SUSPENDED and then CONNECTED, keeps its number and its nodes; waits end, as watches may be lost."""
    store = await backend.open()
    session_id = store.session_id
    await store.create("/mine", is_ephemeral=True)
    seen = await store.get("/mine")
    waiting = asyncio.ensure_future(store.changed("/mine", seen))
    await store.get("/mine")
    suspended = asyncio.ensure_future(store.session_changed(Session.CONNECTED))
    backend.interrupt(store)
    await asyncio.wait_for(suspended, WAIT_S)
    await wait_for_session(store, Session.CONNECTED)
    await asyncio.wait_for(waiting, WAIT_S)
    assert store.session_id == session_id
    assert await store.get("/mine") == seen
    assert await store.set("/mine", b"x") == 1
    await store.close()


async def test_an_idle_session_gives_signs_of_life(backend: Backend) -> None:
    """`heard_s` grows without any request of the caller."""
    settings = CoordinationSettings(session_timeout_s=3.0, request_timeout_s=30.0, open_timeout_s=60.0)
    store = await backend.open(settings)
    assert store.session_timeout_s == pytest.approx(3.0, abs=0.01)
    await store.get("/")
    before = store.heard_s

    async def is_heard() -> bool:
        return store.heard_s > before

    await wait_until(is_heard)
    assert store.session is Session.CONNECTED
    await store.close()


async def test_requests_in_progress_are_bounded(backend: Backend) -> None:
    """Further ones are refused, and nothing is done."""
    store = await backend.open(CoordinationSettings(session_timeout_s=30.0, request_timeout_s=30.0, requests_max=3))
    results = await asyncio.gather(*(store.create(f"/n{number}") for number in range(6)), return_exceptions=True)
    refused = [result for result in results if isinstance(result, CoordinationUnavailableError)]
    assert len(refused) == 3
    assert len((await store.children("/")).names & {f"n{number}" for number in range(6)}) == 3
    await store.close()
