"""`WorkRegistry`: the functions that complete each kind of announced work, and the handling of work that cannot be."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.controller.errors import PERMANENT_ERRORS
from penstock.controller.metadata.given_up import GivenUpWork
from penstock.controller.metadata.pending_work import Order, Subject
from penstock.controller.metadata.work_claims import WorkClaim, WorkClaims
from penstock.model.errors import PenstockError

OrderT = TypeVar("OrderT", bound=Order)
#: Completes work that this controller owns, however much of it is done, and withdraws its announcement.
Resume = Callable[[WorkClaim, OrderT], Awaitable[None]]
#: Leaves the subject of work that was given up in a state in which other changes can be made.
GiveUp = Callable[[WorkClaim], Awaitable[None]]
_logger = logging.getLogger(__name__)


async def _nothing(announced: WorkClaim) -> None:
    """Change nothing."""


class WorkRegistry:
    """Kinds of work and the functions that complete them."""

    def __init__(self, claims: WorkClaims, given_up: GivenUpWork) -> None:
        self._claims = claims
        self._given_up = given_up
        self._resumes: dict[type[object], Callable[[WorkClaim], Awaitable[None]]] = {}
        self._give_ups: dict[type[object], GiveUp] = {}

    def register(self, kind: type[OrderT], resume: Resume[OrderT], *, give_up: GiveUp = _nothing) -> None:
        """Register `resume` to complete work of a kind; `give_up` cleans up after a permanent failure."""

        async def run(announced: WorkClaim) -> None:
            order = announced.work.order
            if not isinstance(order, kind):
                raise AssertionError(f"{announced.subject}: {announced.work.kind} is not of kind {kind.__name__}")
            await resume(announced, order)

        self._resumes[kind] = run
        self._give_ups[kind] = give_up

    @property
    def kinds(self) -> frozenset[type[object]]:
        """The kinds of work that can be completed."""
        return frozenset(self._resumes)

    async def finish(self, subject: Subject) -> bool | None:
        """Complete the work that is announced for `subject`, if any. The caller holds the subject's lock.

        After a permanent error the work is given up, so that it does not block the subject forever. Returns True if it
        was completed, False if it was given up, None if nothing is announced. Raises `WorkElsewhereError`.
        """
        announced = await self._claims.claim(subject)
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

    async def _give_up(self, announced: WorkClaim, error: PenstockError) -> None:
        await self._given_up.add(f"{announced.work.kind} of {announced.subject}", error)
        try:
            await self._give_ups[type(announced.work.order)](announced)
        except PERMANENT_ERRORS as second:
            # The claim must still be released: while it exists, the subject cannot be changed.
            await self._given_up.add(f"the removal of what {announced.work.kind} of {announced.subject} left", second)
        await self._claims.withdraw(announced)
