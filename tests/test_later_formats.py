"""Every stored format tells data of a later version from damage: `LaterVersionError`, not `CorruptionError`.

Each case has the bytes that this version writes, the same as a later version would write them (only its version or
kind changed, with the checksum that belongs to it), and how they are read.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import pytest

from penstock.administration.storage_backup import Backup
from penstock.client.groups.group_packing import pack_record, part_count, unpack_record
from penstock.client.groups.group_state import FORMAT_VERSION as GROUP_VERSION
from penstock.client.groups.group_state import GroupState
from penstock.controller.metadata.codec import decode as decode_controller_record
from penstock.controller.metadata.codec import encode as encode_controller_record
from penstock.controller.metadata.history_records import SealedSizes
from penstock.controller.metadata.records import StateRecord, StreamState
from penstock.jobs.parquet_directory import Manifest
from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError, InvalidArgumentError, LaterVersionError, StorageError
from penstock.model.stream_cuts import StreamCut
from penstock.segmentstore.container.btree.footer import decode_footer, empty_footer, encode_footer
from penstock.segmentstore.container.btree.pages import build_page, verify_page
from penstock.segmentstore.container.log.image import ContainerImage, ImageName
from penstock.segmentstore.container.tables.entries import encode_put, parse_entries
from penstock.segmentstore.container.tables.index import TableMark
from penstock.segmentstore.tier2.adoption_records import AdoptionMark
from penstock.segmentstore.tier2.garbage_records import (
    LEASE_PREFIX,
    TASK_PREFIX,
    CreationOrder,
    GarbageTask,
    LayoutLease,
    decode_lease,
    decode_task,
    encode_lease,
    encode_task,
)
from penstock.segmentstore.tier2.records import decode_record, empty_segment, encode_record
from penstock.segmentstore.tier2.storage_identity import StorageIdentity
from penstock.server.data_directory import Identity
from penstock.spark.ledger import BatchState, LedgerRow, SinkIdentity
from penstock.spark.offsets import from_offset

SEGMENT = empty_segment("s/t/0.#epoch.0", 0, epoch=1, chunk_length_max=1000, now_ms=0)
TASK = GarbageTask(CreationOrder(1, 2), 3, 0, ("chunk",))
LEASE = LayoutLease(CreationOrder(1, 2), 3, 4, "holder")
ADOPTION = AdoptionMark("s/old", "s/old", 5)
IMAGE = ImageName(0, 1, 1)
STATE = StateRecord(StreamState.ACTIVE)


@dataclass(frozen=True)
class Case:
    data: bytes
    later: bytes
    read: Callable[[bytes], object]
    #: What the message says, and what damage is here.
    version: str
    damage: type[Exception] = CorruptionError


def ended(data: bytes, at: int, value: int) -> bytes:
    """Change a byte of a record that ends with its checksum."""
    body = data[:at] + bytes([value]) + data[at + 1 : -4]
    return body + crc32c(body, 0).to_bytes(4)


def text(data: bytes, old: bytes, new: bytes) -> bytes:
    assert old in data
    body = data.rpartition(b"crc32c = ")[0].replace(old, new)
    return body + b'crc32c = "%08x"\n' % crc32c(body, 0)


def image() -> tuple[bytes, bytes]:
    data = b"".join(map(bytes, ContainerImage(IMAGE, 1, 0, [b"\x01frame"]).encode()))
    head = data[:8] + b"\0\2" + data[10:56]
    return data, head + crc32c(head, 0).to_bytes(4) + data[60:]


def backup() -> tuple[bytes, bytes]:
    data = Backup("cluster", 1, 0, "", ()).encode()
    fields = json.loads(data)["backup"] | {"format_version": 2}
    body = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    return data, json.dumps({"backup": fields, "crc32c": f"{crc32c(body, 0):08x}"}).encode()


def controller_record(record: object, version: int) -> tuple[bytes, bytes]:
    data = encode_controller_record(record)
    return data, bytes([version]) + crc32c(data[5:], crc32c(bytes([version]), 0)).to_bytes(4) + data[5:]


def ledger_row() -> tuple[bytes, bytes]:
    data = LedgerRow(SinkIdentity("a", "s/t"), 3, BatchState.INTENT, {}, 17).encode()
    return data, data.replace(b'"v":1', b'"v":3')


def manifest() -> tuple[bytes, bytes]:
    cut = StreamCut("s", "t", {0: 1})
    data = Manifest(1, "0" * 32, cut, cut, (), (), 0).encode()
    return data, data.replace(b'"v":1', b'"v":2')


def group_state() -> tuple[bytes, bytes]:
    data = GroupState([], {}).encode()
    fields = msgspec.json.decode(data) | {"version": GROUP_VERSION + 1, "streams": {"other": "fields"}}
    return data, msgspec.json.encode(fields)


def packed_group() -> tuple[bytes, bytes]:
    noise = b"".join(zlib.compress(str(number).encode()) for number in range(20_000))
    (data, *_) = pack_record(noise)
    assert data[0] == 1
    return data, b"\2" + data[1:]


SEGMENT_BYTES, TASK_BYTES, LEASE_BYTES = encode_record(SEGMENT), encode_task(TASK), encode_lease(LEASE)
PAGE, FOOTER = build_page(0, 9, [2], b"a!"), encode_footer(empty_footer(8, offset=0))
ENTRY, MARK = encode_put(b"key", b"value"), TableMark(1, 2, 3, 4).encode()
IDENTITY, PLACE = Identity("0b0e", 4).encode(), StorageIdentity("0b0e").encode()


def read_segment(data: bytes) -> object:
    return decode_record(SEGMENT.key, data)


def read_footer(data: bytes) -> object:
    return decode_footer("index", 0, data, start_offset=0, value_length=8)


CASES = {
    "data directory": Case(
        IDENTITY, text(IDENTITY, b"format_version = 1", b"format_version = 2"),
        lambda data: Identity.decode(data, "penstock.toml"), "penstock.toml .* format version 2, this version reads 1",
    ),
    "long-term storage": Case(
        PLACE, text(PLACE, b"layout_version = 1", b"layout_version = 2"),
        lambda data: StorageIdentity.decode(data, "/storage"), "/storage .* format version 2, this version reads 1",
        StorageError,
    ),
    "segment record": Case(SEGMENT_BYTES, ended(SEGMENT_BYTES, 0, 3), read_segment, "version 3, this version reads 2"),
    "kind of segment record": Case(SEGMENT_BYTES, ended(SEGMENT_BYTES, 1, 4), read_segment, "record kind 4, .* 1 to 3"),
    "garbage": Case(
        TASK_BYTES, ended(TASK_BYTES, 0, 2), lambda data: decode_task(TASK.place.key(TASK_PREFIX), data), "version 2"
    ),
    "lease": Case(
        LEASE_BYTES, ended(LEASE_BYTES, 0, 2), lambda data: decode_lease(LEASE.place.key(LEASE_PREFIX), data),
        "version 2",
    ),
    "adoption": Case(
        ADOPTION.encode(), ended(ADOPTION.encode(), 0, 2), lambda data: AdoptionMark.decode(ADOPTION.key, data),
        "version 2",
    ),
    "image": Case(*image(), lambda data: ContainerImage.decode(IMAGE, data), "snapshot0.*1 .* version 2"),
    "index page": Case(
        PAGE, ended(PAGE, 0, 2), lambda data: verify_page("index", 9, data, level=0), "page at byte 9 .* version 2"
    ),
    "index footer": Case(FOOTER, ended(FOOTER, 4, 2), read_footer, "segment index .* version 2"),
    "table entry": Case(
        ENTRY, b"\2" + ENTRY[1:], lambda data: list(parse_entries("table", data, 5)), "byte 5 of .* version 2"
    ),
    "header of a table's index": Case(MARK, b"\2" + MARK, lambda data: TableMark.decode("table", data), "version 2"),
    "controller record": Case(
        *controller_record(STATE, 2), lambda data: decode_controller_record(StateRecord, data, table="t", key="k"),
        "table t, key 'k' .* version 2, this version reads 1",
    ),
    "packed controller record": Case(
        *controller_record(SealedSizes({1: 2}), 3),
        lambda data: decode_controller_record(SealedSizes, data, table="t", key="k"), "version 3, .* 1 to 2",
    ),
    "backup": Case(*backup(), lambda data: Backup.decode(data, "backup.json"), "backup.json .* version 2"),
    "reader group": Case(
        *group_state(), GroupState.decode, f"state .* version {GROUP_VERSION + 1}, .* to {GROUP_VERSION}",
        InvalidArgumentError,
    ),
    "packed reader group": Case(
        *packed_group(), lambda data: unpack_record([data]), "packed format 2", InvalidArgumentError
    ),
    "parts of a reader group": Case(*packed_group(), part_count, "packed format 2", InvalidArgumentError),
    "ledger of a sink": Case(*ledger_row(), lambda data: LedgerRow.decode(data, "row"), "row .* version 3, .* 1 to 2"),
    "manifest of an export": Case(*manifest(), lambda data: Manifest.decode(data, "1.json"), "1.json .* version 2"),
    "offset of a query": Case(
        b'{"positions":{"0":1},"v":1}', b'{"positions":{"0":1},"v":2}',
        lambda data: from_offset(json.loads(data), "s", "t"), "offset of the query .* version 2", InvalidArgumentError,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_data_of_a_later_version_are_distinguished_from_damage(name: str) -> None:
    case = CASES[name]
    case.read(case.data)
    with pytest.raises(LaterVersionError, match=case.version) as refusal:
        case.read(case.later)
    assert "use the version that wrote it, or a later one" in str(refusal.value)
    assert not isinstance(refusal.value, CorruptionError)


#: Their values are compared with nothing else, or they are only told apart by their number of values.
WITHOUT_CHECKSUM = {
    "table entry",
    "header of a table's index",
    "parts of a reader group",
    "ledger of a sink",
    "offset of a query",
    "reader group",
}


@pytest.mark.parametrize("name", sorted(CASES.keys() - WITHOUT_CHECKSUM))
def test_damage_is_distinguished_from_data_of_a_later_version(name: str) -> None:
    """Also damage of bytes whose version is a later one."""
    case = CASES[name]
    for data in (case.data, case.later):
        damaged = data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 0xFF]) + data[len(data) // 2 + 1 :]
        with pytest.raises((case.damage, LaterVersionError)) as found:
            case.read(damaged)
        if data is case.data:
            assert not isinstance(found.value, LaterVersionError)
