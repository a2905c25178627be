"""What ``penstock log salvage`` prints of its report."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.cli.salvage_output import report_lines
from penstock.segmentstore.container.log.salvage_report import SalvageReport, SegmentLoss
from penstock.segmentstore.tier1.damaged_log import LostRange


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (
            1,
            (
                "are damaged, 1 frame",
                "and holds 1 operation",
                ", at least 1 event; the segment now ends at byte 5",
                "lost: 1 operation in damaged frames",
                "lost: 1 intact operation of kind merge, which depends on a lost one",
            ),
        ),
        (
            2,
            (
                "are damaged, 2 frames",
                "and holds 2 operations",
                ", at least 2 events; the segment now ends at byte 5",
                "lost: 2 operations in damaged frames",
                "lost: 2 intact operations of kind merge, which depend on lost ones",
            ),
        ),
    ],
)
def test_one_thing_and_several_are_printed_in_their_own_form(count: int, words: tuple[str, ...]) -> None:
    report = SalvageReport(
        0, lost=[LostRange("log-1", 0, 9, "frames are damaged", count)], lost_count=1, lost_operation_count=count,
        kept_operation_count=count, dropped=Counter(merge=count),
        segments={1: SegmentLoss(1, "shop/orders/0", 5, 9, event_count=count)}, base="log", is_truth_known=True,
    )  # fmt: skip
    lines = list(report_lines(report))
    for line, word in zip(lines, words, strict=True):
        assert line.endswith(word), line


def test_a_log_that_does_not_show_its_losses_says_so() -> None:
    report = SalvageReport(0, lost_count=1, lost_operation_count=None, base="log", is_truth_known=True)
    assert "lost: an unknown number of operations in damaged frames" in list(report_lines(report))
