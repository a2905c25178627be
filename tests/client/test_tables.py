"""Key-value tables: conditions, lost replies, scans across partitions, watches, and keys as applications see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client.client import Client
from penstock.client.tables.table_keys import BytesKeys, Entry, TextKeys, TextPairKeys
from penstock.client.tables.table_segments import TableSegments
from penstock.client.tables.tables import Table
from penstock.model.errors import (
    ClosedError,
    ConnectionLostError,
    InvalidArgumentError,
    InvalidNameError,
    MetadataConflictError,
    NoSuchTableError,
    OutcomeUnknownError,
    SerializationError,
    TableConditionError,
    TableExistsError,
    TableKeyMissingError,
    TableKeyVersionError,
)
from penstock.model.segments import VERSION_ANY, TableRemoval, TableUpdate
from penstock.model.tables import TableConfig
from penstock.serializers import JsonSerializer
from support.containers import until

if TYPE_CHECKING:
    from client.conftest import Cluster

TABLE = "retail/prices"


async def opened(
    client: Client,
    partition_count: int = 3,
    keys: TextPairKeys | BytesKeys | None = None,
    values: JsonSerializer | None = None,
    **shape: int,
) -> Table[Any, Any]:
    await client.create_table(TABLE, **({"key_length": 8} | shape), partition_count=partition_count, exist_ok=True)
    return await client.table(TABLE, keys=keys or TextKeys(), values=values)


async def everything(pages: AsyncIterator[Any]) -> list[str | bytes]:
    return [item async for item in pages]


# -- creation ---------------------------------------------------------------------------------------------------


async def test_tables_are_made_listed_and_deleted(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_table(TABLE, key_length=8, secondary_key_length=4, partition_count=2)
        await client.create_table("retail/stock", key_length=1)
        assert await everything(client.tables("retail")) == ["prices", "stock"]
        assert await client.table_config(TABLE) == TableConfig(8, 4, 2)
        await client.delete_table(TABLE)
        with pytest.raises(NoSuchTableError):
            await client.delete_table(TABLE)
        with pytest.raises(NoSuchTableError):
            await client.table(TABLE)
        assert await everything(client.tables("retail")) == ["stock"]


async def test_a_table_that_exists_is_fine_only_in_the_same_shape(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_table(TABLE, key_length=8)
        await client.create_table(TABLE, key_length=8, exist_ok=True)
        with pytest.raises(TableExistsError, match="exists already") as caught:
            await client.create_table(TABLE, key_length=8)
        assert "exist_ok=True" in caught.value.__notes__[0]
        with pytest.raises(TableExistsError, match="another configuration"):
            await client.create_table(TABLE, key_length=9, exist_ok=True)


@pytest.mark.parametrize(
    "shape",
    [{"key_length": 0}, {"key_length": 8192, "secondary_key_length": 1}, {"key_length": 8, "partition_count": 0}],
)
async def test_an_invalid_shape_is_refused(cluster: Cluster, shape: dict[str, int]) -> None:
    async with cluster.client() as client:
        with pytest.raises(InvalidArgumentError):
            await client.create_table(TABLE, **shape)  # type: ignore[arg-type]


async def test_a_name_without_scope_is_refused(cluster: Cluster) -> None:
    async with cluster.client() as client:
        with pytest.raises(InvalidNameError, match="scope/table"):
            await client.create_table("prices", key_length=8)


# -- keys and values --------------------------------------------------------------------------------------------


async def test_a_stored_value_is_returned_by_get(cluster: Cluster) -> None:
    async with cluster.client() as client, await opened(client, values=JsonSerializer()) as table:
        version = await table.put("apple", {"cents": 120})
        assert await table.get("apple") == {"cents": 120}
        assert await table.entry("apple") == Entry("apple", {"cents": 120}, version)
        assert await table.get("pear") is None
        assert await table.get("pear", 7) == 7
        assert await table.contains("apple")
        assert not await table.contains("pear")
        assert await table.get_many(["pear", "apple"]) == [None, Entry("apple", {"cents": 120}, version)]
        assert await table.count() == 1
        await table.remove("apple")
        await table.remove("apple")
        assert await table.entry("apple") is None


def test_texts_are_filled_up_and_come_back() -> None:
    config = TableConfig(8)
    keys = TextKeys()
    assert keys.serialize("apple", config) == b"apple\0\0\0"
    assert keys.deserialize(b"apple\0\0\0", config) == "apple"
    names = ["b", "a", "ab", "a\x01"]
    assert sorted(names) == sorted(names, key=lambda name: keys.serialize(name, config))
    pair = TableConfig(4, 3)
    assert TextPairKeys().serialize(("ab", "c"), pair) == b"ab\0\0c\0\0"
    assert TextPairKeys().deserialize(b"ab\0\0c\0\0", pair) == ("ab", "c")


@pytest.mark.parametrize(
    ("keys", "key", "config"),
    [
        (TextKeys(), "too long", TableConfig(4)),
        (TextKeys(), "a\0", TableConfig(4)),
        (TextKeys(), b"\xff\0", TableConfig(4)),
        (TextKeys(), 5, TableConfig(4)),
        (TextKeys(), "a", TableConfig(4, 4)),
        (TextKeys(), "\ud800", TableConfig(4)),
        (TextPairKeys(), "ab", TableConfig(4, 4)),
        (BytesKeys(), "abcd", TableConfig(4)),
        (BytesKeys(), b"abc", TableConfig(4)),
    ],
)
def test_a_key_that_cannot_be_stored_is_refused(
    keys: TextKeys | TextPairKeys | BytesKeys, key: str | bytes | int, config: TableConfig
) -> None:
    with pytest.raises(SerializationError):
        keys.serialize(key, config)  # type: ignore[arg-type]


async def test_a_value_above_the_limit_is_refused_before_it_is_sent(cluster: Cluster) -> None:
    async with cluster.client() as client, await opened(client) as table:
        await table.put("long", bytes(1024 * 1024 - 8192))
        cluster.store.received.clear()
        with pytest.raises(InvalidArgumentError, match="the limit is"):
            await table.put("longer", bytes(1024 * 1024 - 8192 + 1))
        assert cluster.store.received == []


async def test_many_values_of_maximum_length_are_read_in_several_replies(cluster: Cluster) -> None:
    async with cluster.client() as client, await opened(client, partition_count=1) as table:
        names = [f"k{number}" for number in range(17)]
        await table.put_many({name: bytes(1024 * 1024 - 8192) for name in names})
        assert [entry.key for entry in await table.get_many(names)] == names  # type: ignore[union-attr]


# -- conditions -------------------------------------------------------------------------------------------------


async def test_a_failed_condition_changes_nothing(cluster: Cluster) -> None:
    async with cluster.client() as client, await opened(client) as table:
        first = await table.insert("apple", b"1")
        with pytest.raises(TableKeyVersionError):
            await table.insert("apple", b"2")
        second = await table.put("apple", b"2", version=first)
        assert second > first
        with pytest.raises(TableKeyVersionError) as refused:
            await table.put("apple", b"3", version=first)
        assert refused.value.key == b"apple\0\0\0"
        assert refused.value.expected == first
        with pytest.raises(TableKeyMissingError):
            await table.put("pear", b"3", version=first)
        with pytest.raises(TableConditionError):
            await table.remove("apple", version=first)
        assert await table.get("apple") == b"2"
        await table.remove("apple", version=second)
        with pytest.raises(InvalidArgumentError, match="version -2"):
            await table.put("apple", b"", version=-2)


async def test_a_batch_of_changes_is_atomic(cluster: Cluster) -> None:
    async with cluster.client() as client:
        table = await opened(client, keys=TextPairKeys(), key_length=8, secondary_key_length=4)
        versions = await table.put_many({("cart", "a"): b"1", ("cart", "b"): b"2"}, as_one=True)
        changes = [Entry(("cart", "a"), b"3", versions[0]), Entry(("cart", "b"), b"4", versions[0])]
        with pytest.raises(TableKeyVersionError):
            await table.put_many(changes, as_one=True)
        assert [entry.value for entry in await table.get_many([("cart", "a"), ("cart", "b")])] == [b"1", b"2"]  # type: ignore[union-attr]
        with pytest.raises(TableKeyVersionError):
            await table.remove_many(changes, as_one=True)
        assert await table.count() == 2
        await table.remove_many([("cart", "a"), ("cart", "b")], as_one=True)
        assert await table.count() == 0


async def test_keys_of_several_partitions_cannot_be_changed_atomically(cluster: Cluster) -> None:
    async with cluster.client() as client, await opened(client) as table:
        with pytest.raises(InvalidArgumentError, match="keys of one partition"):
            await table.put_many({f"k{number}": b"" for number in range(20)}, as_one=True)
        assert await table.count() == 0
        with pytest.raises(InvalidArgumentError, match="keys of one partition"):
            await table.put_many([("k", b"1"), ("k", b"2")], as_one=True)


async def test_many_puts_are_sent_in_requests_of_bounded_size(cluster: Cluster) -> None:
    async with cluster.client(table_batch_bytes_max=1000) as client, await opened(client) as table:
        cluster.store.received.clear()
        versions = await table.put_many((f"k{number}", bytes(90)) for number in range(100))
        assert cluster.store.received.count("UpdateTableEntries") >= 12
        entries = await table.get_many(f"k{number}" for number in range(100))
        assert [entry.version for entry in entries] == versions  # type: ignore[union-attr]
        # The same key twice: the latter counts.
        await table.put_many([("k1", b"a"), ("k1", b"b")])
        assert await table.get("k1") == b"b"


# -- lost replies -----------------------------------------------------------------------------------------------


async def test_a_put_on_a_version_is_sent_again_when_it_was_not_done(cluster: Cluster) -> None:
    async with cluster.client() as client, await opened(client) as table:
        version = await table.insert("apple", b"1")
        cluster.store.faults["drop_before_table_put"] = 1
        newer = await table.put("apple", b"2", version=version)
        assert await table.entry("apple") == Entry("apple", b"2", newer)


async def test_a_conditional_put_with_a_lost_reply_has_an_unknown_outcome(cluster: Cluster) -> None:
    """It was done; sent again, it is refused. To call that a refusal would be a lie, and success a guess."""
    async with cluster.client() as client, await opened(client) as table:
        version = await table.insert("apple", b"1")
        cluster.store.faults["drop_after_table_put"] = 1
        with pytest.raises(OutcomeUnknownError, match="read the key to check"):
            await table.put("apple", b"2", version=version)
        assert await table.get("apple") == b"2"
        version = (await table.entry("apple")).version  # type: ignore[union-attr]
        cluster.store.faults["drop_after_table_remove"] = 1
        with pytest.raises(OutcomeUnknownError):
            await table.remove("apple", version=version)
        assert await table.entry("apple") is None


@pytest.mark.parametrize("change", ["insert", "put", "remove"])
async def test_an_unconditional_change_is_sent_once(cluster: Cluster, change: str) -> None:
    """A second copy could arrive after others have removed or replaced the key, and undo that."""
    async with cluster.client() as client, await opened(client) as table:
        cluster.store.faults["drop_before_table_put" if change != "remove" else "drop_after_table_remove"] = 1
        cluster.store.received.clear()
        with pytest.raises(OutcomeUnknownError, match="its only attempt got no answer"):
            await (table.remove("apple") if change == "remove" else getattr(table, change)("apple", b"1"))
        sent = [name for name in cluster.store.received if name in ("UpdateTableEntries", "RemoveTableKeys")]
        assert len(sent) == 1


async def test_unsent_changes_are_sent_when_the_store_is_back(cluster: Cluster) -> None:
    async with cluster.client() as client, await opened(client) as table:
        await table.put("apple", b"0")
        cluster.store.refuses = True
        cluster.store.drop_all()
        await asyncio.sleep(0.05)  # Until the client has heard of it.
        putting = asyncio.create_task(table.put("apple", b"1"))
        await asyncio.sleep(0.1)
        cluster.store.refuses = False
        await putting
        assert await table.get("apple") == b"1"


async def test_an_update_ends_with_its_deadline(cluster: Cluster) -> None:
    async with cluster.client(retry_time_max_s=0.2) as client, await opened(client) as table:
        version = await table.insert("apple", b"1")
        cluster.store.faults["drop_before_table_put"] = 1000
        with pytest.raises(OutcomeUnknownError):
            await table.put("apple", b"2", version=version)
        cluster.store.faults.clear()


# -- read-modify-write ------------------------------------------------------------------------------------------


async def test_updates_of_one_key_at_the_same_time_are_all_made(cluster: Cluster) -> None:
    async with cluster.client() as client, await opened(client, values=JsonSerializer()) as table:
        updates = [table.update("visits", lambda count: count + 1, default=0) for _ in range(20)]
        entries = await asyncio.gather(*updates)
        assert sorted(entry.value for entry in entries) == list(range(1, 21))
        assert await table.get("visits") == 20


async def test_an_update_of_a_missing_key_needs_a_default(cluster: Cluster) -> None:
    async with cluster.client() as client, await opened(client) as table:
        with pytest.raises(TableKeyMissingError):
            await table.update("visits", lambda value: value)


async def test_a_popped_value_is_removed_and_returned_to_one_caller(cluster: Cluster) -> None:
    """Of many who pop at the same moment one gets the value, the others their default."""
    async with cluster.client() as client, await opened(client) as table:
        await table.put("apple", b"1")
        popped = await asyncio.gather(*(table.pop("apple", b"none") for _ in range(5)))
        assert sorted(popped) == [b"1", *[b"none"] * 4]  # type: ignore[type-var]
        assert await table.pop("apple") is None
        assert await table.entry("apple") is None


async def test_a_pop_that_always_loses_is_given_up(cluster: Cluster) -> None:
    """The key stays, with what the others made of it."""
    async with cluster.client(table_update_count_max=3) as client, await opened(client) as table:
        await table.put("apple", b"1")
        store = cluster.store.segments
        remove, put = store.table_remove, store.table_put

        async def lose(segment: str, removals: list[TableRemoval], **options: Any) -> Any:
            await put(segment, [TableUpdate(removal.key, b"other", VERSION_ANY) for removal in removals])
            return await remove(segment, removals, **options)

        store.table_remove = lose  # type: ignore[assignment, method-assign]
        with pytest.raises(MetadataConflictError, match="3 attempts in a row to remove"):
            await table.pop("apple")
        store.table_remove = remove  # type: ignore[method-assign]
        assert await table.get("apple") == b"other"


async def test_an_update_that_always_loses_is_given_up(cluster: Cluster) -> None:
    async with cluster.client(table_update_count_max=3) as client, await opened(client) as table:
        await table.insert("visits", b"0")
        other = await client.table(TABLE, keys=TextKeys())
        store = cluster.store.segments
        put = store.table_put

        async def lose(segment: str, updates: list[TableUpdate], **options: Any) -> Any:
            await put(segment, [type(update)(update.key, b"other") for update in updates])
            return await put(segment, updates, **options)

        store.table_put = lose  # type: ignore[assignment, method-assign]
        with pytest.raises(MetadataConflictError, match="3 attempts"):
            await table.update("visits", lambda value: value + b"1")
        store.table_put = put  # type: ignore[method-assign]
        assert await other.get("visits") == b"other"


# -- scans ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition_count", [1, 4])
async def test_a_scan_is_in_the_order_of_keys_across_partitions(cluster: Cluster, partition_count: int) -> None:
    async with cluster.client(table_page_entry_count=7) as client:
        table = await opened(client, partition_count)
        names = [f"k{number:03}" for number in range(100)]
        await table.put_many({name: name.encode() for name in reversed(names)})
        assert [entry.key async for entry in table.scan()] == names
        assert await everything(table.keys()) == names
        assert [value async for _, value in table.items()] == [name.encode() for name in names]
        assert [key async for key in table.keys(prefix="k05")] == names[50:60]
        assert [key async for key in table.keys(start="k010", end="k020")] == names[10:20]
        assert [key async for key in table.keys(prefix="k01", start="k015")] == names[15:20]
        assert [key async for key in table.keys(start="k020", end="k010")] == []
        assert [key async for key in table.keys(prefix="x")] == []
        with pytest.raises(InvalidArgumentError, match="no key begins with"):
            [key async for key in table.keys(prefix="123456789")]
        pages = [len(page) async for page in table.scan_pages()]
        assert sum(pages) == 100


async def test_a_scan_left_early_leaves_no_work_behind(cluster: Cluster) -> None:
    async with cluster.client(table_page_entry_count=5) as client, await opened(client, 2) as table:
        await table.put_many({f"k{number:03}": b"" for number in range(100)})
        scan = table.scan_pages()
        for _ in range(4):
            await anext(scan)
        await scan.aclose()  # type: ignore[attr-defined]
        for _ in range(20):
            await asyncio.sleep(0)
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("scan ")]


async def test_a_scan_of_one_first_part_reads_one_partition(cluster: Cluster) -> None:
    async with cluster.client() as client:
        table = await opened(client, 4, TextPairKeys(), key_length=8, secondary_key_length=4)
        await table.put_many({(f"cart{first}", str(second)): b"" for first in range(5) for second in range(5)})
        cluster.store.received.clear()
        assert [key async for key in table.keys(primary="cart3")] == [("cart3", str(second)) for second in range(5)]
        assert [key async for key in table.keys(primary="cart3", prefix="2")] == [("cart3", "2")]
        assert cluster.store.received.count("ReadTableKeys") <= 4
        assert len([key async for key in table.keys(prefix="cart")]) == 25


async def test_keys_at_the_ends_of_the_range_are_scanned(cluster: Cluster) -> None:
    async with cluster.client() as client:
        table = await opened(client, 1, BytesKeys(), key_length=2)
        await table.put_many({b"\0\0": b"", b"\xff\xff": b"", b"\xff\xfe": b""})
        assert await everything(table.keys()) == [b"\0\0", b"\xff\xfe", b"\xff\xff"]
        assert [key async for key in table.keys(end=b"\0\0")] == []
        assert [key async for key in table.keys(prefix=b"\xff")] == [b"\xff\xfe", b"\xff\xff"]


# -- watches ----------------------------------------------------------------------------------------------------


async def test_a_watch_yields_existing_entries_and_then_changes(cluster: Cluster) -> None:
    async with cluster.client(table_watch_interval_s=0.01) as client, await opened(client) as table:
        await table.put_many({"apple": b"1", "pear": b"2"})
        changes = table.watch()
        first = {change.key: change.entry.value for change in [await anext(changes), await anext(changes)]}  # type: ignore[union-attr]
        assert first == {"apple": b"1", "pear": b"2"}
        await table.put("pear", b"3")
        change = await anext(changes)
        assert (change.key, change.entry.value) == ("pear", b"3")  # type: ignore[union-attr]
        await table.remove("apple")
        change = await anext(changes)
        assert (change.key, change.entry) == ("apple", None)
        later = table.watch(prefix="p", from_now=True)
        cluster.store.received.clear()
        coming: asyncio.Task[Any] = asyncio.create_task(anext(later))  # type: ignore[arg-type]
        # It has recorded what is there, and polls: several rounds of requests for the lengths of all segments.
        await until(lambda: cluster.store.received.count("GetTableSegmentInfo") > 30)
        await table.put("apple", b"4")
        await table.put("plum", b"5")
        assert (await coming).key == "plum"


async def test_a_watch_continues_after_an_outage(cluster: Cluster) -> None:
    async with cluster.client(table_watch_interval_s=0.01, retry_time_max_s=0.1) as client:
        table = await opened(client, 1)
        await table.put("apple", b"1")
        changes = table.watch()
        assert (await anext(changes)).key == "apple"
        cluster.store.refuses = True
        cluster.store.drop_all()
        with pytest.raises(ConnectionLostError):
            await anext(changes)
        cluster.store.refuses = False
        await table.put("apple", b"2")
        assert (await anext(changes)).entry.value == b"2"  # type: ignore[union-attr]


async def test_a_cancelled_poll_of_a_watch_loses_no_change(cluster: Cluster) -> None:
    async with cluster.client(table_watch_interval_s=0.01) as client, await opened(client, 1) as table:
        changes = table.watch()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(changes)
        await table.put_many({f"k{number}": b"" for number in range(5)})
        seen = {(await anext(changes)).key for _ in range(5)}
        assert seen == {f"k{number}" for number in range(5)}


async def test_a_watch_remembers_a_bounded_number_of_keys(cluster: Cluster) -> None:
    async with cluster.client(table_watch_key_count_max=3) as client, await opened(client) as table:
        await table.put_many({f"k{number}": b"" for number in range(4)})
        changes = table.watch()
        with pytest.raises(InvalidArgumentError, match="table_watch_key_count_max"):
            [await anext(changes) for _ in range(4)]


# -- life -------------------------------------------------------------------------------------------------------


async def test_a_deleted_table_is_a_missing_table(cluster: Cluster) -> None:
    async with cluster.client() as client, await opened(client) as table:
        await client.delete_table(TABLE)
        for call in (
            table.get("a"), table.put("a", b""), table.remove("a"), table.count(), table.contains("a"),
            anext(table.keys()), anext(table.watch()), table.put_many({f"k{n}": b"" for n in range(9)}),
        ):  # fmt: skip
            with pytest.raises(NoSuchTableError):
                await call


async def test_a_closed_table_refuses(cluster: Cluster) -> None:
    async with cluster.client() as client:
        table = await opened(client)
        changes = table.watch()
        await table.close()
        for call in (table.get("a"), table.put("a", b""), anext(table.scan()), anext(changes)):
            with pytest.raises(ClosedError):
                await call
        with pytest.raises(ClosedError):
            table.watch()
        other = await client.table(TABLE)
    assert other.is_closed


async def test_a_call_without_keys_makes_no_request(cluster: Cluster) -> None:
    async with cluster.client() as client, await opened(client) as table:
        cluster.store.received.clear()
        assert await table.get_many([]) == []
        assert await table.put_many({}) == []
        await table.remove_many([])
        assert cluster.store.received == []


def test_a_table_with_a_wrong_number_of_segments_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="2 partitions"):
        TableSegments(None, TABLE, TableConfig(8, 0, 2), [])  # type: ignore[arg-type]
