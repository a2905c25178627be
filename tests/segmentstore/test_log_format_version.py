"""All formats of a log have one version together, that of `log.epoch`: an earlier version refuses the log by it alone.

If a test here fails because a kind or a version was added: raise `EPOCH_VERSION`, keep reading the versions before, add
the new version to the table, and to docs/formats.md, "Compatibility".
"""

from __future__ import annotations

from penstock.segmentstore.container.log import operations
from penstock.segmentstore.container.log.operations import APPEND_TYPE, FORMAT_VERSION
from penstock.segmentstore.container.metadata import SNAPSHOT_VERSION
from penstock.segmentstore.tier1 import frame_format
from penstock.segmentstore.tier1.frame_format import FrameKind
from penstock.segmentstore.tier1.log_records import EPOCH_VERSION

#: Version of `log.epoch`: versions of file header, container frame and checkpoint, kinds of frames and operations.
FORMATS = {4: (2, 1, 2, {1, 2, 3}, {1, 2, 3, 4, 6, 7, *range(10, 21)})}


def test_a_log_holds_nothing_that_the_version_of_its_epoch_record_does_not_announce() -> None:
    found = (
        frame_format.FORMAT_VERSION,
        FORMAT_VERSION,
        SNAPSHOT_VERSION,
        {int(kind) for kind in FrameKind},
        {APPEND_TYPE, *operations._RARE},
    )
    assert found == FORMATS[EPOCH_VERSION]
