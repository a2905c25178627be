"""`Ledger`: which transactions a batch of a sink consists of, on record before the first of them commits.

A key-value table per scope, `spark-ledger`. Each sink of an application has one row there, which says how its latest
batch is made up, and an announcement for each transaction that was begun and may have to be ended by somebody else. All
of them are in one partition. Bytes: ``docs/formats.md``; what it is for: ``docs/exactly-once.md``.
"""

from __future__ import annotations

import hashlib
import json
import struct
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from penstock.model.errors import CorruptionError, MetadataConflictError, OutcomeUnknownError, TableConditionError

if TYPE_CHECKING:
    from penstock import Client as SyncClient
    from penstock.aio import Client, Table

LEDGER_NAME = "spark-ledger"
#: A row's key begins with the SHA-256 of what the row is about.
KEY_LENGTH = 32
#: Batch and transaction of an announcement; zeros for the row itself.
SECONDARY_KEY_LENGTH = 24
PARTITION_COUNT = 4
FORMAT_VERSION = 1

_SECONDARY = struct.Struct(">Q16s")
_ROW_KEY = bytes(SECONDARY_KEY_LENGTH)


class BatchState(Enum):
    """How far the batch of a row is."""

    #: No batch yet.
    NONE = "none"
    #: Its transactions are to commit, whoever does it.
    INTENT = "intent"
    #: All of them have.
    DONE = "done"


@dataclass(frozen=True, slots=True)
class SinkIdentity:
    """Which sink of which application: batches are counted for each by itself.

    Attributes:
        app: option `appId`, or `jobId`, or the id of the streaming query.
        target: what it writes to, ``scope/stream``.
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
        note: what its writer wants to find with it, where nobody else keeps that; of the Spark sink nothing.
        changed_ms: when the row was written, in milliseconds since 1970 by the driver's clock. Nothing goes by it.
    """

    sink: SinkIdentity
    batch: int = -1
    state: BatchState = BatchState.NONE
    transactions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    changed_ms: int = 0
    note: str = ""

    def encode(self) -> bytes:
        """Return the row as it is stored."""
        noted = {"note": self.note} if self.note else {}
        return json.dumps(
            {
                "v": FORMAT_VERSION,
                "app": self.sink.app,
                "target": self.sink.target,
                "batch": self.batch,
                "state": self.state.value,
                "transactions": {stream: list(ids) for stream, ids in self.transactions.items()},
                "changed_ms": self.changed_ms,
                **noted,
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def decode(cls, data: bytes, source: str) -> LedgerRow:
        """Return the row that was stored. Raises `CorruptionError`, which names `source`."""
        try:
            fields = json.loads(data)
            if fields["v"] != FORMAT_VERSION:
                raise CorruptionError(source, 0, f"version {fields['v']} is not known here: use a newer Penstock")
            return cls(
                SinkIdentity(str(fields["app"]), str(fields["target"])),
                int(fields["batch"]),
                BatchState(fields["state"]),
                {str(stream): tuple(map(str, ids)) for stream, ids in fields["transactions"].items()},
                int(fields["changed_ms"]),
                str(fields.get("note", "")),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptionError(source, 0, f"not a row of a ledger: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Announcement:
    """A transaction that a task has begun for a batch."""

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
        """Open the ledger of a sink, in its target's scope. Raises `NoSuchTableError`: `create_ledger` makes it."""
        return cls(await client.table(ledger_table(sink.target)), sink)

    async def close(self) -> None:
        """Let the table go."""
        await self._table.close()

    async def look(self) -> tuple[LedgerRow, int]:
        """Return the row, and its version for `replace`."""
        entry = await self._table.entry(self._primary + _ROW_KEY)
        if entry is None:
            return LedgerRow(self.sink), -1
        row = LedgerRow.decode(entry.value, f"{self._table.name}, row of {self.sink}")
        if row.sink != self.sink:
            raise CorruptionError(self._table.name, 0, f"the row of {self.sink} is about {row.sink}")
        return row, entry.version

    async def replace(self, row: LedgerRow, version: int) -> int:
        """Write the row, if it still has `version`; return its new one.

        Raises:
            MetadataConflictError: somebody else has written it.
            OutcomeUnknownError: no answer: it is written, or not, or will be as long as it has `version`.
        """
        key, value = self._primary + _ROW_KEY, row.encode()
        try:
            if version == -1:
                return await self._table.insert(key, value)
            return await self._table.put(key, value, version=version)
        except TableConditionError as error:
            raise MetadataConflictError(f"the ledger's row of {self.sink} was written by somebody else") from error
        except OutcomeUnknownError:
            found = await self._table.entry(key)
            if found is not None and found.value == value:
                return found.version
            if (-1 if found is None else found.version) != version:
                raise MetadataConflictError(f"the ledger's row of {self.sink} was written by somebody else") from None
            raise

    async def fence(self, now_ms: int) -> LedgerRow:
        """Give the row a new version, so that no write of before can still come; return it.

        Raises as `replace`.
        """
        row, version = await self.look()
        await self.replace(replace(row, changed_ms=now_ms), version)
        return row

    async def announce(self, announcement: Announcement) -> None:
        """Note a transaction before anything is written into it."""
        await self._table.put(self._primary + announcement.secondary_key, announcement.stream.encode())

    async def announced(self, batch_max: int) -> list[Announcement]:
        """Return what was begun for batches up to `batch_max` and not ended since, as far as it is known here."""
        found = []
        async for entry in self._table.scan(primary=self._primary):
            secondary = entry.key[KEY_LENGTH:]
            if secondary == _ROW_KEY:
                continue
            batch, transaction = _SECONDARY.unpack(secondary)
            if batch > batch_max:
                break
            found.append(Announcement(batch, entry.value.decode(), transaction.hex()))
        return found

    async def forget(self, announcements: Iterable[Announcement]) -> None:
        """Remove announcements of what has ended."""
        keys = [self._primary + each.secondary_key for each in announcements]
        if keys:
            await self._table.remove_many(keys)


def ledger_table(target: str) -> str:
    """Return the table (``scope/table``) that the ledger of `target`'s scope is."""
    return f"{target.split('/')[0]}/{LEDGER_NAME}"


def ledger_rows(client: SyncClient, scope: str) -> list[LedgerRow]:
    """Return the rows of a scope's ledger, one for each sink. Raises `NoSuchTableError`: it has none."""
    with client.table(f"{scope}/{LEDGER_NAME}") as table:
        return [
            LedgerRow.decode(entry.value, f"{table.name}, row {entry.key.hex()}")
            for entry in table.scan()
            if entry.key[KEY_LENGTH:] == _ROW_KEY
        ]


async def create_ledger(client: Client, target: str) -> None:
    """Create the ledger of `target`'s scope, if it has none. Raises `TableExistsError`: that name is taken."""
    await client.create_table(
        ledger_table(target), key_length=KEY_LENGTH, secondary_key_length=SECONDARY_KEY_LENGTH,
        partition_count=PARTITION_COUNT, exist_ok=True,
    )  # fmt: skip
