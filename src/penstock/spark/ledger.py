"""`Ledger`: records the transactions of a batch of a sink before the first of them is committed.

A key-value table per scope, `spark-ledger`. Each sink of an application has one row there, which names the transactions
of its latest batch, the parts of that row if it is too long for one value, and an announcement for each transaction
that was begun and may have to be aborted by a later driver. All of them are in one partition. Bytes:
``docs/formats.md``; purpose: ``docs/exactly-once.md``.
"""

from __future__ import annotations

import hashlib
import json
import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from penstock.model.errors import (
    CorruptionError,
    LaterVersionError,
    MetadataConflictError,
    OutcomeUnknownError,
    TableConditionError,
)
from penstock.spark.ledger_parts import ROW_LENGTH_MAX, BodyReference, batch_of_part, first_part_key

if TYPE_CHECKING:
    from penstock import Client as SyncClient
    from penstock.aio import Client, Table

LEDGER_NAME = "spark-ledger"
#: A row's key begins with a SHA-256 of this length: that of the sink's identity.
KEY_LENGTH = 32
#: Batch and transaction of an announcement; zeros for the row itself.
SECONDARY_KEY_LENGTH = 24
PARTITION_COUNT = 4
FORMAT_VERSION = 1
#: Version of a row whose body is stored in parts.
PARTS_VERSION = 2
#: Maximum number of reads of a row in parts when other drivers replace it meanwhile.
READS_MAX = 8

_SECONDARY = struct.Struct(">Q16s")
_ROW_KEY = bytes(SECONDARY_KEY_LENGTH)


class BatchState(Enum):
    """The state of a row's batch."""

    #: No batch yet.
    NONE = "none"
    #: Its transactions have to be committed, by any driver.
    INTENT = "intent"
    #: All of them are committed.
    DONE = "done"


@dataclass(frozen=True, slots=True)
class SinkIdentity:
    """A sink of an application: batches are counted separately for each.

    Attributes:
        app: option `appId`, or `jobId`, or the id of the streaming query.
        target: the written stream, ``scope/stream``.
    """

    app: str
    target: str

    @property
    def key(self) -> bytes:
        """The first part of its keys in the ledger."""
        return hashlib.sha256(f"{self.app}\0{self.target}".encode()).digest()

    def __str__(self) -> str:
        return f"{self.app!r} writing to {self.target}"


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """The latest batch of a sink.

    Attributes:
        batch: its number, from 0; -1: none yet.
        transactions: stream (``scope/stream``) -> ids of its transactions in that stream.
        note: data of its writer; empty for the Spark sink.
        changed_ms: when the row was written, in milliseconds since 1970 by the driver's clock. Only for people.
        query: id of the streaming query that wrote the batch; empty: unknown, or no streaming query.
    """

    sink: SinkIdentity
    batch: int = -1
    state: BatchState = BatchState.NONE
    transactions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    changed_ms: int = 0
    note: str = ""
    query: str = ""

    def encode(self) -> bytes:
        """Return the value stored under the row's key: the row, or a reference to its parts if it is long."""
        return self.encode_with_parts()[0]

    def encode_with_parts(self) -> tuple[bytes, dict[bytes, bytes]]:
        """Return the value of the row's key, and the parts by the second parts of their keys; none if it is short."""
        head: dict[str, object] = {
            "v": FORMAT_VERSION,
            "app": self.sink.app,
            "target": self.sink.target,
            "batch": self.batch,
            "state": self.state.value,
            "changed_ms": self.changed_ms,
        }
        if self.query:
            head["query"] = self.query
        body: dict[str, object] = {"transactions": {stream: list(ids) for stream, ids in self.transactions.items()}}
        if self.note:
            body["note"] = self.note
        whole = _json({**head, **body})
        if len(whole) <= ROW_LENGTH_MAX:
            return whole, {}
        data = _json(body)
        reference = BodyReference.of(self.batch, data)
        head["v"] = PARTS_VERSION
        head["body"] = [reference.sha256, reference.length_bytes, reference.part_length_bytes]
        return _json(head), dict(zip(reference.keys, reference.parts(data), strict=True))

    @classmethod
    def decode(cls, data: bytes, source: str, parts: Sequence[bytes] = ()) -> LedgerRow:
        """Decode a stored row; `parts` are the parts of its body if `body_of` returns a reference.

        Raises `CorruptionError`, `LaterVersionError`, which name `source`.
        """
        try:
            fields = json.loads(data)
            if fields["v"] > PARTS_VERSION:
                raise LaterVersionError(source, found=int(fields["v"]), known=PARTS_VERSION)
            if fields["v"] < FORMAT_VERSION:
                raise ValueError(f"version {fields['v']}")
            reference = body_of(data, source)
            body = fields if reference is None else json.loads(reference.joined(parts, source))
            return cls(
                SinkIdentity(str(fields["app"]), str(fields["target"])),
                int(fields["batch"]),
                BatchState(fields["state"]),
                {str(stream): tuple(map(str, ids)) for stream, ids in body["transactions"].items()},
                int(fields["changed_ms"]),
                str(body.get("note", "")),
                str(fields.get("query", "")),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptionError(source, 0, f"not a row of a ledger: {error!r}") from error


def body_of(data: bytes, source: str) -> BodyReference | None:
    """Return the reference to a stored row's parts; None: the row is stored whole. Raises `CorruptionError`."""
    try:
        fields = json.loads(data)
        if fields["v"] != PARTS_VERSION:
            return None
        sha256, length_bytes, part_length_bytes = fields["body"]
        bytes.fromhex(sha256)
        reference = BodyReference(int(fields["batch"]), sha256, int(length_bytes), int(part_length_bytes))
        if min(reference.batch, reference.length_bytes, reference.part_length_bytes - 1) < 0:
            raise ValueError(fields["body"])
        return reference
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(source, 0, f"not a row of a ledger: {error!r}") from error


@dataclass(frozen=True, slots=True)
class BegunTransaction:
    """A transaction begun by a task for a batch."""

    batch: int
    stream: str
    transaction: str

    @property
    def secondary_key(self) -> bytes:
        """The second part of its key."""
        return _SECONDARY.pack(self.batch, uuid.UUID(self.transaction).bytes)


class Ledger:
    """The row and the announcements of one sink."""

    def __init__(self, table: Table[bytes, bytes], sink: SinkIdentity) -> None:
        self.sink = sink
        self._table = table
        self._primary = sink.key

    @classmethod
    async def open(cls, client: Client, sink: SinkIdentity) -> Ledger:
        """Open the ledger of a sink, in its target's scope. Raises `NoSuchTableError`: `create_ledger` creates it."""
        return cls(await client.table(ledger_table(sink.target)), sink)

    async def close(self) -> None:
        """Close the table."""
        await self._table.close()

    async def read(self) -> tuple[LedgerRow, int]:
        """Return the row, and its version for `replace`.

        Raises:
            CorruptionError: the row, or a part of it, is damaged or missing.
            MetadataConflictError: other drivers replaced the row `READS_MAX` times while its parts were read.
        """
        found = await _read_row(self._table, self._primary + _ROW_KEY, str(self.sink))
        if found is None:
            return LedgerRow(self.sink), -1
        row, version = found
        if row.sink != self.sink:
            raise CorruptionError(self._table.name, 0, f"the row of {self.sink} is about {row.sink}")
        return row, version

    async def replace(self, row: LedgerRow, version: int) -> int:
        """Write the row, if it still has `version`; return its new one.

        Raises:
            MetadataConflictError: another driver has written it.
            OutcomeUnknownError: no answer: it is written, or not, or will be as long as it has `version`.
        """
        key = self._primary + _ROW_KEY
        value, parts = row.encode_with_parts()
        await self._store_parts(parts)
        try:
            if version == -1:
                return await self._table.insert(key, value)
            return await self._table.put(key, value, version=version)
        except TableConditionError as error:
            raise MetadataConflictError(f"the ledger's row of {self.sink} was written by another driver") from error
        except OutcomeUnknownError:
            found = await self._table.entry(key)
            if found is not None and found.value == value:
                return found.version
            if (-1 if found is None else found.version) != version:
                raise MetadataConflictError(f"the ledger's row of {self.sink} was written by another driver") from None
            raise

    async def _store_parts(self, parts: Mapping[bytes, bytes]) -> None:
        """Store the parts of a row that is not written yet. Until it is written, they belong to no row.

        Raises `OutcomeUnknownError`: a part may be missing.
        """
        for secondary, part in parts.items():
            key = self._primary + secondary
            found = await self._table.entry(key)
            if found is not None and found.value == part:
                continue
            try:
                await self._table.put(key, part)
            except OutcomeUnknownError:
                found = await self._table.entry(key)
                if found is None or found.value != part:
                    raise

    async def fence(self, now_ms: int) -> LedgerRow:
        """Give the row a new version, so that no earlier write can still succeed; return the row.

        Raises as `replace`.
        """
        row, version = await self.read()
        await self.replace(replace(row, changed_ms=now_ms), version)
        return row

    async def announce(self, announcement: BegunTransaction) -> None:
        """Record a transaction before anything is written into it."""
        await self._table.put(self._primary + announcement.secondary_key, announcement.stream.encode())

    async def announced(self, batch_max: int) -> list[BegunTransaction]:
        """Return the announcements of batches up to `batch_max` that were not removed."""
        found = []
        end = self._primary + _SECONDARY.pack(batch_max + 1, bytes(16))
        async for entry in self._table.scan(primary=self._primary, end=end):
            secondary = entry.key[KEY_LENGTH:]
            if secondary == _ROW_KEY:
                continue
            batch, transaction = _SECONDARY.unpack(secondary)
            found.append(BegunTransaction(batch, entry.value.decode(), transaction.hex()))
        return found

    async def forget(self, announcements: Iterable[BegunTransaction]) -> None:
        """Remove announcements of transactions that have ended."""
        keys = [self._primary + each.secondary_key for each in announcements]
        if keys:
            await self._table.remove_many(keys)

    async def forget_parts(self, row: LedgerRow) -> None:
        """Remove the parts of rows up to `row`'s batch, except those of `row`.

        Only after the transactions that `row` names are committed: no other row of its batch can be written then.
        """
        kept, left = row.encode_with_parts()[1], []
        async for key in self._table.keys(primary=self._primary, start=self._primary + first_part_key()):
            batch = batch_of_part(key[KEY_LENGTH:])
            if batch is None or batch > row.batch:
                break
            if key[KEY_LENGTH:] not in kept:
                left.append(key)
        if left:
            await self._table.remove_many(left)


async def _read_row(table: Table[bytes, bytes], key: bytes, about: str) -> tuple[LedgerRow, int] | None:
    """Return a row with its version; None: there is none. Raises as `Ledger.read`, with `about` in the text."""
    source = f"{table.name}, row of {about}"
    entry = await table.entry(key)
    for _ in range(READS_MAX):
        if entry is None:
            return None
        reference = body_of(entry.value, source)
        keys = [] if reference is None else reference.keys
        found = [await table.entry(key[:KEY_LENGTH] + each) for each in keys]
        parts = [each.value for each in found if each is not None]
        if len(parts) == len(keys):
            return LedgerRow.decode(entry.value, source, parts), entry.version
        # A driver that replaces the row removes the parts of the row before.
        later = await table.entry(key)
        if later is not None and later.version == entry.version:
            raise CorruptionError(source, 0, f"{len(keys) - len(parts)} of its {len(keys)} parts are missing")
        entry = later
    raise MetadataConflictError(f"the ledger's row of {about} was replaced {READS_MAX} times while it was read")


async def scope_rows(client: Client, scope: str, rows_max: int) -> tuple[list[LedgerRow], list[str]]:
    """Return the rows of a scope's ledger, at most `rows_max`, and what is wrong with those that cannot be read.

    Raises `NoSuchTableError`: the scope has no ledger.
    """
    rows: list[LedgerRow] = []
    problems: list[str] = []
    async with client.table(f"{scope}/{LEDGER_NAME}") as table:
        async for key in table.keys():
            if key[KEY_LENGTH:] != _ROW_KEY:
                continue
            try:
                found = await _read_row(table, key, key[:KEY_LENGTH].hex())
            except (CorruptionError, LaterVersionError, MetadataConflictError) as error:
                problems.append(str(error))
                continue
            if found is not None:
                rows.append(found[0])
            if len(rows) == rows_max:
                break
    return rows, problems


def ledger_table(target: str) -> str:
    """Return the table (``scope/table``) of the ledger for `target`'s scope."""
    return f"{target.split('/')[0]}/{LEDGER_NAME}"


def ledger_rows(client: SyncClient, scope: str) -> list[LedgerRow]:
    """Return the rows of a scope's ledger, one for each sink.

    Raises:
        NoSuchTableError: the scope has no ledger.
        CorruptionError: a row is damaged, or parts of one are missing; a row that a driver replaces meanwhile is read
            again first.
    """
    with client.table(f"{scope}/{LEDGER_NAME}") as table:
        rows: list[LedgerRow] = []
        row_keys = [key for page in table.key_pages() for key in page if key[KEY_LENGTH:] == _ROW_KEY]
        for key in row_keys:
            source = f"{table.name}, row {key.hex()}"
            for at in range(READS_MAX):
                entry = table.entry(key)
                if entry is None:
                    break
                reference = body_of(entry.value, source)
                keys = [] if reference is None else [key[:KEY_LENGTH] + each for each in reference.keys]
                found = [table.entry(each) for each in keys]
                parts = [each.value for each in found if each is not None]
                if len(parts) == len(keys) or at == READS_MAX - 1:
                    rows.append(LedgerRow.decode(entry.value, source, parts))
                    break
        return rows


async def create_ledger(client: Client, target: str) -> None:
    """Create the ledger of `target`'s scope, if it has none. Raises `TableExistsError`: the name is in use."""
    await client.create_table(
        ledger_table(target), key_length=KEY_LENGTH, secondary_key_length=SECONDARY_KEY_LENGTH,
        partition_count=PARTITION_COUNT, exist_ok=True,
    )  # fmt: skip


def _json(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()
