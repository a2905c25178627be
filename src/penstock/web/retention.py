"""What retention would delete of a stream over REST, and why."""

from __future__ import annotations

from penstock.client.controller import retention
from penstock.web import replies
from penstock.web.models import retention_shown
from penstock.web.routes import Reply, Request, Route


async def explain(request: Request) -> Reply:
    """Return what the next retention pass would delete of a stream, and why."""
    found = await request.client.explain_retention(request.stream)
    return Reply(content=replies.Retention(
        policy=retention_shown(found.policy),
        isEnabled=found.is_enabled,
        isSealed=found.is_sealed,
        row=found.row,
        reason=retention.REASONS.get(found.row, found.row),
        keptBytes=found.kept_bytes,
        bytesToDelete=found.cut_bytes,
        head=_shown(found.head),
        tail=_shown(found.tail),
        newHead=_place(found.chosen),
        bound=_place(found.bound),
        minimumCut=_cut(found.min_cut),
        maximumCut=_cut(found.max_cut),
        cuts=[replies.RecordedCut(each.age_s, each.size_bytes) for each in found.cuts],
        cutCount=found.cut_count,
        isCutDue=found.is_cut_due,
        subscribers=[_subscriber(each, found.tail.size_bytes) for each in found.subscribers],
        subscriberCount=found.subscriber_count,
        intervalSeconds=found.interval_s,
        nextPassSeconds=found.next_scan_s,
    ))  # fmt: skip


def _shown(place: retention.StreamPlace) -> replies.StreamPlace:
    return replies.StreamPlace(
        {str(segment): offset for segment, offset in sorted(place.cut.positions.items())}, place.size_bytes
    )


def _place(place: retention.StreamPlace | None) -> replies.StreamPlace | None:
    return None if place is None else _shown(place)


def _cut(cut: retention.RecordedCut | None) -> replies.RecordedCut | None:
    return None if cut is None else replies.RecordedCut(cut.age_s, cut.size_bytes)


def _subscriber(found: retention.RetentionSubscriber, tail_bytes: int) -> replies.RetentionSubscriber:
    return replies.RetentionSubscriber(
        found.name, _shown(found.place), tail_bytes - found.place.size_bytes, found.has_published, found.is_last
    )


ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "/v1/scopes/{scope}/streams/{stream}/retention",
        "Return what retention would delete of a stream, and why.",
        explain,
        reply=(replies.Retention,),
        needs="READ on the stream",
    ),
)
