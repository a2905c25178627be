"""What every metadata store must do: the same cases for table segments and for memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.controller.metadata.segments_store import SegmentsMetadataStore
from penstock.controller.metadata.store import VERSION_ABSENT, VERSION_ANY, MetadataStore, Removal, Write
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import (
    ConnectionLostError,
    ContainerOfflineError,
    MetadataConflictError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    TableNotEmptyError,
)
from penstock_simulation.memory_segments import MemorySegments
from penstock_simulation.memory_store import MemoryMetadataStore

TABLE = "_system/_tables/some"


@pytest.fixture(params=["memory", "segments"])
async def store(request: pytest.FixtureRequest) -> MetadataStore:
    made = MemoryMetadataStore() if request.param == "memory" else SegmentsMetadataStore(MemorySegments())
    await made.create_table(TABLE)
    return made


async def test_table_is_created_once_and_dropped_once(store: MetadataStore) -> None:
    """Creating says whether the table is new, dropping whether there was one."""
    assert not await store.create_table(TABLE)
    assert await store.drop_table(TABLE)
    assert not await store.drop_table(TABLE)
    assert await store.create_table(TABLE)


async def test_rows_are_read_in_the_order_asked_and_absent_ones_are_none(store: MetadataStore) -> None:
    """A read of three keys, one of them absent, one with text that is not ASCII."""
    await store.put(TABLE, [Write("a", b"1"), Write("ü", b"2")])
    found = await store.get(TABLE, ["ü", "missing", "a"])
    assert [row and (row.key, row.value) for row in found] == [("ü", b"2"), None, ("a", b"1")]


async def test_versions_grow_with_every_write_and_are_returned(store: MetadataStore) -> None:
    """The version that a write returns is the one that a read shows; it never comes back after a removal."""
    (first,) = await store.put(TABLE, [Write("a", b"1")])
    (second,) = await store.put(TABLE, [Write("a", b"1")])
    (row,) = await store.get(TABLE, ["a"])
    assert 0 <= first < second == row.version  # type: ignore[union-attr]
    await store.remove(TABLE, [Removal("a")])
    (third,) = await store.put(TABLE, [Write("a", b"1")])
    assert third > second


async def test_batch_is_written_whole_or_not_at_all(store: MetadataStore) -> None:
    """S-015: one wrong condition among three leaves nothing written."""
    (version,) = await store.put(TABLE, [Write("a", b"old")])
    for wrong in (Write("a", b"x", version + 1000), Write("a", b"x", VERSION_ABSENT), Write("z", b"x", version)):
        with pytest.raises(MetadataConflictError):
            await store.put(TABLE, [Write("b", b"new"), wrong, Write("c", b"new")])
    assert [row and row.value for row in await store.get(TABLE, ["a", "b", "c", "z"])] == [b"old", None, None, None]
    versions = await store.put(TABLE, [Write("b", b"new", VERSION_ABSENT), Write("a", b"new", version)])
    assert len(versions) == 2


async def test_removal_is_conditional_and_whole(store: MetadataStore) -> None:
    """A removal with an old version removes nothing; a missing key is fine without a condition."""
    (old,) = await store.put(TABLE, [Write("a", b"1")])
    (version,) = await store.put(TABLE, [Write("a", b"2")])
    for wrong in (Removal("a", old), Removal("missing", version)):
        with pytest.raises(MetadataConflictError):
            await store.remove(TABLE, [Removal("a", VERSION_ANY), wrong])
    await store.remove(TABLE, [Removal("a", version), Removal("missing")])
    assert list(await store.get(TABLE, ["a"])) == [None]


@pytest.mark.parametrize("limit", [1, 3, 1000])
async def test_every_row_is_paged_through_exactly_once(store: MetadataStore, limit: int) -> None:
    """Ten rows in pages of some size; the last page is empty."""
    await store.put(TABLE, [Write(f"key-{number}", b"v") for number in range(10)])
    seen: list[str] = []
    token = b""
    while True:
        page = await store.rows(TABLE, limit=limit, token=token)
        if not page.rows:
            break
        seen += [row.key for row in page.rows]
        token = page.token
    assert sorted(seen) == sorted(f"key-{number}" for number in range(10))


async def test_removed_row_does_not_break_a_token(store: MetadataStore) -> None:
    """S-005: the row at which a page ended is removed before the next page is read."""
    await store.put(TABLE, [Write(key, b"v") for key in "abcd"])
    page = await store.rows(TABLE, limit=2)
    await store.remove(TABLE, [Removal(row.key) for row in page.rows])
    rest = await store.rows(TABLE, limit=10, token=page.token)
    assert {row.key for row in rest.rows} == set("abcd") - {row.key for row in page.rows}


async def test_pages_show_what_has_come_and_gone_since(store: MetadataStore) -> None:
    """Rows put or removed after an earlier read of the same pages, and those of a table created again."""

    async def keys() -> set[str]:
        return {row.key for row in (await store.rows(TABLE, limit=10)).rows}

    await store.put(TABLE, [Write("a", b"1"), Write("b", b"1")])
    assert await keys() == {"a", "b"}
    await store.put(TABLE, [Write("b", b"2"), Write("c", b"1")])
    assert await keys() == {"a", "b", "c"}
    assert {row.value for row in (await store.rows(TABLE, limit=10)).rows} == {b"1", b"2"}
    await store.remove(TABLE, [Removal("a")])
    assert await keys() == {"b", "c"}
    assert await store.drop_table(TABLE)
    assert await store.create_table(TABLE)
    assert await keys() == set()
    await store.put(TABLE, [Write("d", b"1")])
    assert await keys() == {"d"}


async def test_table_with_rows_is_kept_when_it_must_be_empty(store: MetadataStore) -> None:
    """Dropping a table on the condition that it is empty, with a row and without."""
    await store.put(TABLE, [Write("a", b"1")])
    with pytest.raises(TableNotEmptyError):
        await store.drop_table(TABLE, must_be_empty=True)
    await store.remove(TABLE, [Removal("a")])
    assert await store.drop_table(TABLE, must_be_empty=True)


async def test_missing_table_is_an_error_of_its_own(store: MetadataStore) -> None:
    """Every call but create and drop says that the table is missing, not that the row is."""
    for call in (
        store.get("_system/_tables/no", ["a"]),
        store.put("_system/_tables/no", [Write("a", b"1")]),
        store.remove("_system/_tables/no", [Removal("a")]),
        store.rows("_system/_tables/no", limit=1),
    ):
        with pytest.raises(NoSuchSegmentError):
            await call


async def test_one_of_many_concurrent_creators_wins(store: MetadataStore) -> None:
    """Twenty writers create the same key at once: one succeeds, the others get an error that it exists."""
    results = await asyncio.gather(
        *(store.put(TABLE, [Write("a", b"%d" % number, VERSION_ABSENT)]) for number in range(20)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, MetadataConflictError) for result in results) == 19


class _Flaky:
    """Raises each of `errors` once before it passes `table_put` and `table_get` on."""

    def __init__(self, store: MemorySegments, errors: list[Exception]) -> None:
        self._store = store
        self._errors = errors

    def __getattr__(self, name: str) -> object:
        async def forward(*arguments: object, **options: object) -> object:
            if self._errors:
                raise self._errors.pop(0)
            return await getattr(self._store, name)(*arguments, **options)

        return forward


SETTINGS = ControllerSettings(attempts_max=3, retry_delay_ms_first=0)


async def test_passing_faults_are_retried_and_lost_replies_of_conditional_writes_are_not() -> None:
    """S-016: an offline container is asked again; a conditional write whose reply is lost is reported as such."""
    memory = MemorySegments()
    await memory.create_table(TABLE)
    offline = [ContainerOfflineError(1), ContainerOfflineError(1)]
    store = SegmentsMetadataStore(_Flaky(memory, offline), SETTINGS)  # type: ignore[arg-type]  # a stand-in by name
    await store.put(TABLE, [Write("a", b"1", VERSION_ABSENT)])
    calls: tuple[tuple[Callable[[SegmentsMetadataStore], Awaitable[object]], bool], ...] = (
        (lambda lost: lost.put(TABLE, [Write("a", b"2")]), True),
        (lambda lost: lost.get(TABLE, ["a"]), True),
        (lambda lost: lost.put(TABLE, [Write("b", b"2", VERSION_ABSENT)]), False),
        (lambda lost: lost.remove(TABLE, [Removal("a", 1)]), False),
    )
    for call, is_repeated in calls:
        lost = SegmentsMetadataStore(_Flaky(memory, [OutcomeUnknownError("lost")]), SETTINGS)  # type: ignore[arg-type]  # ditto
        if is_repeated:
            await call(lost)
        else:
            with pytest.raises(OutcomeUnknownError):
                await call(lost)


async def test_retries_are_bounded() -> None:
    """S-016: after the last attempt the fault itself is raised."""
    errors = [ContainerOfflineError(1)] * 3
    store = SegmentsMetadataStore(_Flaky(MemorySegments(), list(errors)), SETTINGS)  # type: ignore[arg-type]  # ditto
    with pytest.raises(ContainerOfflineError):
        await store.get(TABLE, ["a"])


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.create_table(TABLE),
        lambda store: store.drop_table(TABLE),
        lambda store: store.drop_table(TABLE, must_be_empty=True),
        lambda store: store.get(TABLE, ["a"]),
        lambda store: store.put(TABLE, [Write("a", b"1", VERSION_ABSENT)]),
        lambda store: store.put(TABLE, [Write("a", b"1", 0)]),
        lambda store: store.put(TABLE, [Write("a", b"1")]),
        lambda store: store.remove(TABLE, [Removal("a")]),
        lambda store: store.remove(TABLE, [Removal("a", 0)]),
        lambda store: store.rows(TABLE, limit=1),
    ],
    ids=["create table", "drop table", "drop empty table", "get", "create", "update", "put", "remove", "remove version",
         "list"],
)  # fmt: skip
@pytest.mark.parametrize("is_there", [False, True])
async def test_a_lost_connection_is_reported_as_such_by_every_call(
    call: Callable[[MetadataStore], Awaitable[object]], is_there: bool
) -> None:
    """S-014: neither as a missing table nor as a missing row or a conflict, whether they are there or not."""
    memory = MemorySegments()
    if is_there:
        await memory.create_table(TABLE)
    lost = [ConnectionLostError("cut off")] * SETTINGS.attempts_max
    store = SegmentsMetadataStore(_Flaky(memory, list(lost)), SETTINGS)  # type: ignore[arg-type]  # a stand-in by name
    with pytest.raises(ConnectionLostError):
        await call(store)
