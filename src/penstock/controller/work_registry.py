"""`WorkRegistry`: which function brings which kind of announced work to its end, and what is done when none can."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.controller.errors import PERMANENT_ERRORS
from penstock.controller.metadata.announcements import Announcement, Announcements
from penstock.controller.metadata.given_up import GivenUpWork
from penstock.controller.metadata.pending_work import Order, Subject
from penstock.model.errors import PenstockError

OrderT = TypeVar("OrderT", bound=Order)
#: Brings work that this controller owns to its end, whatever of it is done, and withdraws its announcement.
Resume = Callable[[Announcement, OrderT], Awaitable[None]]
#: Leaves the subject of work that nobody can finish in a state in which other changes can be made.
GiveUp = Callable[[Announcement], Awaitable[None]]
_logger = logging.getLogger(__name__)


async def _nothing(announced: Announcement) -> None:
    """Leave all as it is."""


class WorkRegistry:
    """Kinds of work and the functions that finish them."""

    def __init__(self, announcements: Announcements, given_up: GivenUpWork) -> None:
        self._announcements = announcements
        self._given_up = given_up
        self._resumes: dict[type[object], Callable[[Announcement], Awaitable[None]]] = {}
        self._give_ups: dict[type[object], GiveUp] = {}

    def register(self, kind: type[OrderT], resume: Resume[OrderT], *, give_up: GiveUp = _nothing) -> None:
        """Have `resume` finish work of a kind; `give_up` clears up after what fails for good, before it is withdrawn.
        """

        async def run(announced: Announcement) -> None:
            order = announced.work.order
            if not isinstance(order, kind):
                raise AssertionError(f"{announced.subject}: {announced.work.kind} is not of kind {kind.__name__}")
            await resume(announced, order)

        self._resumes[kind] = run
        self._give_ups[kind] = give_up

    @property
    def kinds(self) -> frozenset[type[object]]:
        """The kinds of work that can be finished."""
        return frozenset(self._resumes)

    async def finish(self, subject: Subject) -> bool | None:
        """Bring what is announced for `subject` to its end, if something is. The caller holds the subject's lock.

        What fails in a way that no repetition can mend is given up, so that it does not block the subject for ever.
        Returns True when it was finished, False when it was given up, None when nothing is announced. Raises
        `WorkElsewhereError`.
        """
        announced = await self._announcements.claim(subject)
        if announced is None:
            return None
        _logger.info("finishing %s: %s", announced.work.kind, subject)
        kind = type(announced.work.order)
        try:
            await self._resumes[kind](announced)
        except PERMANENT_ERRORS as error:
            await self._give_up(announced, error)
            return False
        return True

    async def _give_up(self, announced: Announcement, error: PenstockError) -> None:
        await self._given_up.add(f"{announced.work.kind} of {announced.subject}", error)
        try:
            await self._give_ups[type(announced.work.order)](announced)
        except PERMANENT_ERRORS as second:
            # The announcement must go all the same: as long as it is there nothing else can be done with the subject.
            await self._given_up.add(f"the removal of what {announced.work.kind} of {announced.subject} left", second)
        await self._announcements.withdraw(announced)
