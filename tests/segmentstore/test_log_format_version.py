"""All formats of a container have one version together, that of `log.epoch`: an earlier version refuses a log by it.

If a test here fails because a kind or a version was added: raise `EPOCH_VERSION`, keep reading the versions before, add
the new version to the table here and to docs/formats.md, "Compatibility", and a data directory to tests/data.
"""

from __future__ import annotations

from penstock.segmentstore.container import metadata
from penstock.segmentstore.container.btree.footer import FOOTER_FORMAT_VERSION
from penstock.segmentstore.container.btree.pages import PAGE_FORMAT_VERSION
from penstock.segmentstore.container.log import operations
from penstock.segmentstore.container.log.image import IMAGE_FORMAT_VERSION
from penstock.segmentstore.container.tables.entries import ENTRY_FORMAT_VERSION
from penstock.segmentstore.tier1 import frame_format
from penstock.segmentstore.tier1.frame_format import FrameKind
from penstock.segmentstore.tier1.log_records import EPOCH_VERSION
from penstock.segmentstore.tier2 import adoption_records, garbage_records, records
from penstock.segmentstore.tier2.records import RecordStatus

#: What a log of a version, and all that it leads to, may hold.
FORMATS = {
    4: {
        "file header": 2,
        "kinds of frames": {1, 2, 3},
        "container frame": 1,
        "operations": {1, 2, 3, 4, 6, 7, *range(10, 21)},
        "checkpoint": 2,
        "segment record": 1,
        "chunk records": (2, {1, 2, 3}, 31),
        "garbage, leases": (1, {16, 17}),
        "adoptions": (1, {18}),
        "table entry": 1,
        "index page, footer": (1, 1),
        "image": 1,
    }
}


def test_a_log_holds_nothing_that_the_version_of_its_epoch_record_does_not_announce() -> None:
    assert FORMATS[EPOCH_VERSION] == {
        "file header": frame_format.FORMAT_VERSION,
        "kinds of frames": {int(kind) for kind in FrameKind},
        "container frame": operations.FORMAT_VERSION,
        "operations": {operations.APPEND_TYPE, *operations._RARE},
        "checkpoint": metadata.SNAPSHOT_VERSION,
        "segment record": metadata.RECORD_VERSION,
        "chunk records": (
            records.RECORD_FORMAT_VERSION,
            {records._KIND_SEGMENT, records._KIND_CHUNK, records._KIND_MERGED_RUN},
            int(~RecordStatus(0)),
        ),
        "garbage, leases": (
            garbage_records._FORMAT_VERSION,
            {garbage_records._KIND_TASK, garbage_records._KIND_LEASE},
        ),
        "adoptions": (adoption_records._FORMAT_VERSION, {adoption_records._KIND_ADOPTED}),
        "table entry": ENTRY_FORMAT_VERSION,
        "index page, footer": (PAGE_FORMAT_VERSION, FOOTER_FORMAT_VERSION),
        "image": IMAGE_FORMAT_VERSION,
    }


#: Format version of the log files, by log version. Each log version has a format version of files of its own: the
#: header of each file is read before a log is claimed, so no frame that needs a later version is missed.
FILE_VERSIONS = {3: 1, 4: 2}


def test_each_log_version_has_a_format_version_of_log_files_of_its_own() -> None:
    assert max(FILE_VERSIONS) == EPOCH_VERSION
    assert FILE_VERSIONS[EPOCH_VERSION] == frame_format.FORMAT_VERSION
    assert len(set(FILE_VERSIONS.values())) == len(FILE_VERSIONS)
    assert sorted(FILE_VERSIONS.values()) == [FILE_VERSIONS[version] for version in sorted(FILE_VERSIONS)]
