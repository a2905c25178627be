"""The table of docs/formats.md, "All formats", states the versions that the code writes and reads, of each format.

If a test here fails because a version was added: write it into the table, and keep reading the versions before it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import penstock
from penstock.administration.storage_backup import BACKUP_FORMAT_VERSION
from penstock.client.groups import group_packing, group_state
from penstock.controller.metadata import codec
from penstock.jobs import ledgered_copy, parquet_directory
from penstock.model import cluster_nodes, stream_cuts
from penstock.rpc import additions_pb2
from penstock.segmentstore.container import metadata
from penstock.segmentstore.container.btree import footer, pages
from penstock.segmentstore.container.log import image, operations
from penstock.segmentstore.container.tables import entries
from penstock.segmentstore.container.tables.index import TableMark
from penstock.segmentstore.tier1 import disabled_reason, frame_format, log_records, made_logs
from penstock.segmentstore.tier1.bookkeeper import entry_format, log_record
from penstock.segmentstore.tier1.object_log import container_record, journal_format, server_claim
from penstock.segmentstore.tier2 import adoption_records, clean_end, garbage_records, records, storage_identity
from penstock.server import data_directory
from penstock.spark import ledger, offsets
from penstock.wire import chunk_layouts, connection, statistics

SOURCES = Path(penstock.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "formats.md"

#: By the name in the table: the version that is written, and those that are read.
FORMATS: dict[str, tuple[int, set[int]]] = {
    "`penstock.toml`": (data_directory.FORMAT_VERSION, {data_directory.FORMAT_VERSION}),
    "`logs/<container>`": (made_logs.FORMAT_VERSION, {made_logs.FORMAT_VERSION}),
    "`log.disabled`": (disabled_reason.FORMAT_VERSION, {disabled_reason.FORMAT_VERSION}),
    "`log.epoch` (the log version)": (
        log_records.EPOCH_VERSION, {log_records._EPOCH_VERSION_WITHOUT_CLUSTER, log_records.EPOCH_VERSION},
    ),
    "`log.truncation`": (log_records._TRUNCATION_VERSION, {log_records._TRUNCATION_VERSION}),
    "Headers of log files": (frame_format.FORMAT_VERSION, set(frame_format._FILE_HEADERS)),
    "Container frames": (operations.FORMAT_VERSION, {operations.FORMAT_VERSION}),
    "Checkpoints": (metadata.SNAPSHOT_VERSION, set(metadata._SNAPSHOT_VERSIONS)),
    "Segment records in checkpoints": (metadata.RECORD_VERSION, {metadata.RECORD_VERSION}),
    "Table entries": (entries.ENTRY_FORMAT_VERSION, {entries.ENTRY_FORMAT_VERSION}),
    "Index pages": (pages.PAGE_FORMAT_VERSION, {pages.PAGE_FORMAT_VERSION}),
    "Index footers": (footer.FOOTER_FORMAT_VERSION, {footer.FOOTER_FORMAT_VERSION}),
    "Headers of indexes of tables": (TableMark._FORMAT_VERSION, {TableMark._FORMAT_VERSION}),
    "Segment and chunk records": (records.RECORD_FORMAT_VERSION, {records.RECORD_FORMAT_VERSION}),
    "Garbage and leases": (garbage_records._FORMAT_VERSION, {garbage_records._FORMAT_VERSION}),
    "Marks of adoptions": (adoption_records._FORMAT_VERSION, {adoption_records._FORMAT_VERSION}),
    "Notes of a clean end": (clean_end._FORMAT_VERSION, {clean_end._FORMAT_VERSION}),
    "Images": (image.IMAGE_FORMAT_VERSION, {image.IMAGE_FORMAT_VERSION}),
    "Journal objects in a bucket": (journal_format.FORMAT_VERSION, {journal_format.FORMAT_VERSION}),
    "Container records in a bucket": (container_record.FORMAT_VERSION, {container_record.FORMAT_VERSION}),
    "`identity` and `server` of a log in a bucket": (server_claim.FORMAT_VERSION, {server_claim.FORMAT_VERSION}),
    "Records of logs in BookKeeper": (log_record.FORMAT_VERSION, {log_record.FORMAT_VERSION}),
    "Entries of ledgers": (entry_format.FORMAT_VERSION, {entry_format.FORMAT_VERSION}),
    "`penstock-storage.toml`": (storage_identity.LAYOUT_VERSION, {storage_identity.LAYOUT_VERSION}),
    "Controller records, as fields": (codec.VERSION_FIELDS, {codec.VERSION_FIELDS}),
    "Controller records, packed": (codec.VERSION_PACKED, {codec.VERSION_FIELDS, codec.VERSION_PACKED}),
    "Nodes of a cluster": (cluster_nodes.NODE_VERSION, {cluster_nodes.NODE_VERSION}),
    "Reader groups of the Python client": (
        group_state.FORMAT_VERSION, {group_state._VERSION_WITHOUT_HEARTBEATS, group_state.FORMAT_VERSION},
    ),
    "Packed reader groups": (group_packing._FORMAT, {group_packing._FORMAT}),
    "Backups": (BACKUP_FORMAT_VERSION, {BACKUP_FORMAT_VERSION}),
    "Ledger of a sink": (ledger.FORMAT_VERSION, {ledger.FORMAT_VERSION, ledger.PARTS_VERSION}),
    "Ledger of a sink, long rows": (ledger.PARTS_VERSION, {ledger.FORMAT_VERSION, ledger.PARTS_VERSION}),
    "Notes of jobs": (ledgered_copy.NOTE_VERSION, {ledgered_copy.NOTE_VERSION}),
    "Exports to Parquet": (parquet_directory.FORMAT_VERSION, {parquet_directory.FORMAT_VERSION}),
    "Offsets of queries, stream cuts as text": (offsets.OFFSET_VERSION, {stream_cuts._FORMAT_VERSION}),
    "Offsets of queries of several streams": (
        offsets.SEVERAL_VERSION, {offsets.OFFSET_VERSION, offsets.SEVERAL_VERSION},
    ),
    "Wire protocol (Pravega's numbers)": (
        connection.WIRE_VERSION, set(range(connection.WIRE_VERSION_OLDEST, connection.WIRE_VERSION + 1)),
    ),
    "Payloads of statistics": (statistics.VERSION, {statistics.VERSION}),
    "Payloads of chunk layouts": (chunk_layouts.VERSION, {chunk_layouts.VERSION}),
    "gRPC additions (`penstock.controller.v1`)": (
        int(additions_pb2.DESCRIPTOR.package.removeprefix("penstock.controller.v")), {1},
    ),
}  # fmt: skip

#: Modules with a constant that is a format's version and is not imported above by that name, and why.
OTHER_CONSTANTS = {
    "client/transport/wire_segments.py LOCATE_OFFSET_VERSION": "a request that Pravega added in this wire version",
    "spark/java.py JAVA_VERSION_MIN": "of Java",
    "model/segments.py VERSION_ABSENT": "of a key in a table",
    "model/errors/segments.py _VERSION_ABSENT": "of a key in a table",
    "runtime/coordination.py ANY_VERSION": "of a node",
    "controller/transactions/work.py VERSION_UNKNOWN": "of a key in a table",
    "controller/work/sweeper.py _NO_VERSION": "of a key in a table",
    "runtime/directory_objects.py _VERSION_BYTES": "a length",
}
#: Constants whose formats are in `FORMATS`, by module.
CONSTANTS = {
    "administration/storage_backup.py BACKUP_FORMAT_VERSION",
    "client/groups/group_state.py FORMAT_VERSION",
    "client/groups/group_state.py _VERSION_WITHOUT_HEARTBEATS",
    "controller/metadata/codec.py VERSION_FIELDS",
    "controller/metadata/codec.py VERSION_PACKED",
    "jobs/ledgered_copy.py NOTE_VERSION",
    "jobs/parquet_directory.py FORMAT_VERSION",
    "model/cluster_nodes.py NODE_VERSION",
    "model/stream_cuts.py _FORMAT_VERSION",
    "segmentstore/container/btree/footer.py FOOTER_FORMAT_VERSION",
    "segmentstore/container/btree/pages.py PAGE_FORMAT_VERSION",
    "segmentstore/container/log/image.py IMAGE_FORMAT_VERSION",
    "segmentstore/container/log/operations.py FORMAT_VERSION",
    "segmentstore/container/metadata.py RECORD_VERSION",
    "segmentstore/container/metadata.py SNAPSHOT_VERSION",
    "segmentstore/container/tables/entries.py ENTRY_FORMAT_VERSION",
    "segmentstore/container/tables/index.py _FORMAT_VERSION",
    "segmentstore/tier1/bookkeeper/entry_format.py FORMAT_VERSION",
    "segmentstore/tier1/bookkeeper/log_record.py FORMAT_VERSION",
    "segmentstore/tier1/disabled_reason.py FORMAT_VERSION",
    "segmentstore/tier1/frame_format.py FORMAT_VERSION",
    "segmentstore/tier1/frame_format.py _VERSION_WITHOUT_CLUSTER",
    "segmentstore/tier1/log_records.py EPOCH_VERSION",
    "segmentstore/tier1/log_records.py _EPOCH_VERSION_WITHOUT_CLUSTER",
    "segmentstore/tier1/log_records.py _TRUNCATION_VERSION",
    "segmentstore/tier1/made_logs.py FORMAT_VERSION",
    "segmentstore/tier1/object_log/container_record.py FORMAT_VERSION",
    "segmentstore/tier1/object_log/journal_format.py FORMAT_VERSION",
    "segmentstore/tier1/object_log/server_claim.py FORMAT_VERSION",
    "segmentstore/tier2/adoption_records.py _FORMAT_VERSION",
    "segmentstore/tier2/clean_end.py _FORMAT_VERSION",
    "segmentstore/tier2/garbage_records.py _FORMAT_VERSION",
    "segmentstore/tier2/records.py RECORD_FORMAT_VERSION",
    "segmentstore/tier2/storage_identity.py LAYOUT_VERSION",
    "server/data_directory.py FORMAT_VERSION",
    "spark/ledger.py FORMAT_VERSION",
    "spark/ledger.py PARTS_VERSION",
    "spark/offsets.py OFFSET_VERSION",
    "spark/offsets.py SEVERAL_VERSION",
    "wire/chunk_layouts.py VERSION",
    "wire/connection.py WIRE_VERSION",
    "wire/connection.py WIRE_VERSION_OLDEST",
    "wire/statistics.py VERSION",
}


def table() -> dict[str, tuple[int, set[int]]]:
    """Return the rows of the table: what is written and what is read, by format."""
    text = PAGE.read_text().partition("### All formats\n")[2].partition("\nWithout a version of their own:")[0]
    found: dict[str, tuple[int, set[int]]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("|") or cells[0].strip() == "Format" or cells[0].startswith("---"):
            continue
        name, written, read = cells[:3]
        assert name not in found, f"{name} has two rows"
        found[name] = int(written), numbers(read)
    return found


def numbers(text: str) -> set[int]:
    """Return the numbers of a cell: "1", "3, 4" or "5 to 17"."""
    if (span := re.fullmatch(r"(\d+) to (\d+)", text)) is not None:
        return set(range(int(span[1]), int(span[2]) + 1))
    return {int(each) for each in text.split(",")}


def version_constants() -> set[str]:
    """Return the constants of the sources that have "VERSION" in their names and whole numbers as values."""
    found: set[str] = set()
    for path in SOURCES.rglob("*.py"):
        if "_pb2" in path.name:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            for target in targets_of(node):
                if not isinstance(target, ast.Name) or not re.fullmatch(r"[A-Z_]*VERSION[A-Z_]*", target.id):
                    continue
                if is_whole(getattr(node, "value", None)):
                    found.add(f"{path.relative_to(SOURCES)} {target.id}")
    return found


def targets_of(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.AnnAssign):
        return [node.target]
    return node.targets if isinstance(node, ast.Assign) else []


def is_whole(value: ast.expr | None) -> bool:
    if isinstance(value, ast.UnaryOp):
        value = value.operand
    return isinstance(value, ast.Constant) and type(value.value) is int


def test_the_table_states_what_the_code_writes_and_reads() -> None:
    assert table() == FORMATS


def test_each_version_in_the_sources_is_that_of_a_format_in_the_table() -> None:
    """A new constant is a new format: it gets a row, or a reason why it is none."""
    assert version_constants() == CONSTANTS | OTHER_CONSTANTS.keys()


def test_each_written_version_is_read() -> None:
    for name, (written, read) in FORMATS.items():
        assert written in read, name
        assert max(read) == written or "Ledger of a sink" in name, f"{name}: a version is read that is never written"
