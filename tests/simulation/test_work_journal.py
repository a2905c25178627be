"""What a `WorkJournal` finds, and what it must not find."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from penstock.controller.metadata.pending_work import DeleteStream, PendingWork, Subject, SubjectKind
from penstock.controller.metadata.work_claims import WorkClaim
from penstock_simulation.checks.work_journal import WorkJournal

BEGUN = PendingWork(
    subject=Subject(SubjectKind.STREAM, "scope", "stream"),
    order=DeleteStream(),
    life="life",
    owner="one",
    created_ms=0,
    work_id="work",
)


@dataclass(slots=True)
class Members:
    """Controllers that are members at the end."""

    names: frozenset[str]


def journal_with(*members: str) -> tuple[WorkJournal, list[str]]:
    found: list[str] = []
    journal = WorkJournal(found.append)
    journal.sessions = Members(frozenset(members))
    journal.announced(BEGUN)
    return journal, found


def taken_by(owner: str, attempt: int) -> PendingWork:
    return replace(BEGUN, owner=owner, attempt=attempt)


def test_work_that_was_taken_over_without_a_reply_ends_by_its_owner() -> None:
    """Seed 119: the reply to the take-over was lost; the row showed the new owner that it had succeeded."""
    journal, found = journal_with("two")
    journal.ended(WorkClaim(taken_by("two", 2), 7))
    assert found == []
    assert journal.counts["controllers: work ended for another controller"] == 1


@pytest.mark.parametrize("is_answered", [True, False])
def test_work_of_a_live_controller_must_not_be_taken_over(is_answered: bool) -> None:
    journal, found = journal_with("one", "two")
    if is_answered:
        journal.taken_over(taken_by("two", 2))
    journal.ended(WorkClaim(taken_by("two", 2), 7))
    assert len(found) == 1
    assert "took it over from one, which is alive" in found[0]


def test_the_answer_to_a_take_over_may_come_after_another_one_and_its_end() -> None:
    """Seed 1116 of clusters: a controller was suspended before the answer came, and resumed when all was over."""
    journal, found = journal_with("three")
    journal.taken_over(taken_by("three", 3))
    journal.ended(WorkClaim(taken_by("three", 3), 8))
    journal.taken_over(taken_by("two", 2))
    assert found == []


def test_work_must_not_be_taken_over_by_two_in_one_attempt() -> None:
    journal, found = journal_with("two", "three")
    journal.taken_over(taken_by("two", 2))
    journal.taken_over(taken_by("three", 2))
    assert any("three took it over from two, which is alive" in each for each in found)


def test_work_that_another_controller_has_taken_over_must_not_end_by_its_first_owner() -> None:
    journal, found = journal_with("two")
    journal.taken_over(taken_by("two", 2))
    journal.ended(WorkClaim(BEGUN, 7))
    assert len(found) == 1
    assert "one ended what two had taken over" in found[0]


def test_work_must_not_end_twice() -> None:
    journal, found = journal_with("two")
    journal.ended(WorkClaim(taken_by("two", 2), 7))
    journal.ended(WorkClaim(taken_by("two", 2), 7))
    assert len(found) == 1
    assert "ended twice" in found[0]
