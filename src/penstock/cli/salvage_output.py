"""What commands print of a salvaged log: lines for people, and the fields of their JSON record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from penstock.cli.output import counted, tell, write_text

if TYPE_CHECKING:
    from penstock.administration.log_salvage import Salvaged
    from penstock.segmentstore.container.log.salvage_report import SalvageReport

#: Damaged ranges and segments that are printed for people; JSON has all of them.
_SHOWN_MAX = 50


@contextmanager
def refusal_reported(*, as_json: bool) -> Iterator[None]:
    """Print what was found of a log that cannot be salvaged, and raise the error again."""
    from penstock.administration.errors import LogNotSalvageableError

    try:
        yield
    except LogNotSalvageableError as error:
        if not as_json:
            write_text("".join(f"{line}\n" for line in report_lines(error.report)))
        raise


def tell_salvaged(container: int, salvaged: Salvaged, *, then: str, is_dry_run: bool, as_json: bool) -> None:
    """Print the result of a salvage. `then`: what follows it."""
    lines = salvage_lines(container, salvaged, then=then, is_dry_run=is_dry_run)
    fields: dict[str, object] = {"container": container, "is_dry_run": is_dry_run, **asdict(salvaged)}
    if salvaged.report is not None:
        fields["report"] = report_fields(salvaged.report)
    tell("log_salvage", fields, lines, as_json=as_json)


def salvage_lines(container: int, salvaged: Salvaged, *, then: str, is_dry_run: bool) -> Iterator[str]:
    """Return what people read of a salvage. `then`: what follows it."""
    yield from salvaged.problems
    if salvaged.report is not None:
        yield from report_lines(salvaged.report)
    if salvaged.image_problem:
        yield f"images in long-term storage were not used: {salvaged.image_problem}"
    if is_dry_run:
        yield "nothing was changed (--dry-run)"
        return
    if salvaged.report is None:
        yield "an earlier run wrote the new log and was interrupted; the new log is in place now"
    yield f"the new log of container {container} is in {salvaged.path}; {then}"
    if salvaged.damaged_path:
        yield f"the damaged log is kept in {salvaged.damaged_path}"


def report_lines(report: SalvageReport) -> Iterator[str]:
    """Return what people read of what was kept and lost."""
    for lost in report.lost[:_SHOWN_MAX]:
        where = f"{lost.file} {lost.unit} {lost.start} to {lost.end}" if lost.end else lost.file
        count = "" if lost.frame_count is None else f", {counted(lost.frame_count, 'frame')}"
        yield f"damaged: {where}: {lost.problem}{count}"
    if report.lost_count > _SHOWN_MAX:
        yield f"damaged: {report.lost_count - _SHOWN_MAX} more ranges, see --json"
    if not report.base:
        yield "lost: everything, because no complete checkpoint is intact"
        return
    begin = "its own first intact checkpoint" if report.base == "log" else report.base
    yield f"the new log begins with {begin} and holds {counted(report.kept_operation_count, 'operation')}"
    if report.loses_nothing:
        yield "lost: nothing"
        return
    for number, loss in enumerate(report.segments.values()):
        if number == _SHOWN_MAX:
            yield f"lost: parts of {len(report.segments) - number} more segments, see --json"
            break
        what = "the whole segment" if loss.is_whole else f"the segment now ends at byte {loss.start}"
        events = ("" if loss.is_exact else "at least ") + counted(loss.event_count, "event")
        yield f"lost: {loss.name} (id {loss.id}): bytes {loss.start} to {loss.end}, {events}; {what}"
    lost_count = report.lost_operation_count
    operations = "an unknown number of operations" if lost_count is None else counted(lost_count, "operation")
    yield f"lost: {operations} in damaged frames"
    for kind, dropped_count in sorted(report.dropped.items()):
        depends = "which depends on a lost one" if dropped_count == 1 else "which depend on lost ones"
        yield f"lost: {counted(dropped_count, 'intact operation')} of kind {kind}, {depends}"
    if not report.is_truth_known:
        yield (
            "the log has no complete checkpoint after the last damage: segments without later operations may have "
            "lost bytes at their ends, too"
        )


def report_fields(report: SalvageReport) -> dict[str, object]:
    """Return what programs read of what was kept and lost."""
    return {
        "base": report.base,
        "loses_nothing": report.loses_nothing,
        "is_truth_known": report.is_truth_known,
        "kept_operation_count": report.kept_operation_count,
        "lost_operation_count": report.lost_operation_count,
        "dropped": dict(sorted(report.dropped.items())),
        "damaged_count": report.lost_count,
        "damaged": [
            {
                "file": lost.file,
                "start": lost.start,
                "end": lost.end,
                "unit": lost.unit,
                "problem": lost.problem,
                "frame_count": lost.frame_count,
            }
            for lost in report.lost
        ],
        "segments": [
            {
                "id": loss.id,
                "name": loss.name,
                "start": loss.start,
                "end": loss.end,
                "event_count": loss.event_count,
                "is_exact": loss.is_exact,
                "is_whole": loss.is_whole,
            }
            for loss in report.segments.values()
        ],
    }
