"""``penstock retention``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failure import exit_on_error
from penstock.cli.options import URI, AsJson, Stream, Uri
from penstock.cli.output import tell

if TYPE_CHECKING:
    from penstock.client.controller.retention import RecordedCut, RetentionExplanation, StreamPlace

retention: typer.Typer = typer.Typer(name="retention")


@retention.callback()
def _group() -> None:
    """Keep ``penstock retention explain`` when it is the only command of the group."""


@retention.command()
def explain(
    stream: Stream,
    svg: Annotated[
        Path | None,
        typer.Option(help="Draw head, cuts, subscribers and tail to this SVG file.", dir_okay=False),
    ] = None,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Show what retention would delete from a stream now and why, which subscriber holds its head, and its cuts."""
    from penstock.cli.retention_map import explanation_lines, explanation_svg
    from penstock.cli.session import connected
    from penstock.model.errors import InvalidArgumentError

    with exit_on_error(as_json=as_json), connected(uri) as session:
        found = session.call(session.client.explain_retention(stream))
        fields, lines = _fields(found), explanation_lines(found)
        if svg is not None:
            try:
                svg.write_text(explanation_svg(found), encoding="utf-8")
            except OSError as error:
                raise InvalidArgumentError(f"cannot write {svg}: {error.strerror or error}") from error
            fields["svg"] = str(svg)
            lines += ["", f"drawn in {svg}"]
    tell("retention", fields, lines, as_json=as_json)


def _fields(found: RetentionExplanation) -> dict[str, object]:
    policy = found.policy
    return {
        "stream": found.stream,
        "policy": None
        if policy is None
        else {
            "kind": policy.kind.name.lower(),
            "min": policy.min_limit,
            "max": policy.max_limit if policy.has_max else None,
        },
        "is_sealed": found.is_sealed,
        "is_enabled": found.is_enabled,
        "row": found.row or None,
        "bytes": found.kept_bytes,
        "bytes_to_cut": found.cut_bytes,
        "head": _place(found.head),
        "tail": _place(found.tail),
        "new_head": _place(found.chosen),
        "bound": _place(found.bound),
        "min_cut": _cut(found.min_cut),
        "max_cut": _cut(found.max_cut),
        "cut_count": found.cut_count,
        "cuts": [_cut(each) for each in found.cuts],
        "is_cut_due": found.is_cut_due,
        "subscriber_count": found.subscriber_count,
        "subscribers": [
            {
                "subscriber": one.name,
                "has_published": one.has_published,
                "is_last": one.is_last,
                "unread_bytes": found.tail.size_bytes - one.place.size_bytes,
                **(_place(one.place) or {}),
            }
            for one in found.subscribers
        ],
        "interval_s": found.interval_s,
        "next_scan_s": found.next_scan_s,
    }


def _place(found: StreamPlace | None) -> dict[str, object] | None:
    return None if found is None else {"cut": found.cut.to_text(), "size_bytes": found.size_bytes}


def _cut(found: RecordedCut | None) -> dict[str, object] | None:
    return None if found is None else {"age_s": found.age_s, "size_bytes": found.size_bytes}
