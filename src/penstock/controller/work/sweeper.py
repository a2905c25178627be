"""`Sweeper`: keeps a controller a member, and makes it finish the work of departed members.

Order at the start: join; read the members; sweep; then sweep again with every member that departs. A controller that
has lost its membership joins again under another name, and sweeps: its own earlier work then belongs to a departed
member. It also sweeps periodically: a delayed request of a departed controller may announce work after the last sweep.

Source: controller-internals 13.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from penstock.controller.errors import MembershipLostError
from penstock.controller.metadata.pending_work import Subject
from penstock.controller.metadata.work_claims import WorkClaims
from penstock.controller.ownership.coordinator import Coordinator, Members, Membership
from penstock.controller.ownership.peers import Peers
from penstock.controller.retry import delay_s
from penstock.controller.settings import ControllerSettings
from penstock.controller.tasks import BackgroundTasks
from penstock.controller.work.background_work import BackgroundWork
from penstock.model.errors import PenstockError

_logger = logging.getLogger(__name__)
#: Members never have this version: waiting for a change from it returns at once.
_NO_VERSION = -1


class Sweeper:
    """Finishes work that has no live owner.

    `watches` owns the permanent tasks; `peers` is updated with the members seen; `new_name` returns a unique name;
    `finish_later` and `take_over` start background work, on a subject and on transactions.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        claims: WorkClaims,
        background: BackgroundWork,
        watches: BackgroundTasks,
        settings: ControllerSettings,
        peers: Peers,
        *,
        new_name: Callable[[], Awaitable[str]],
        finish_later: Callable[[Subject], None],
        take_over: Callable[[], None],
    ) -> None:
        self._coordinator = coordinator
        self._claims = claims
        self._background = background
        self._watches = watches
        self._settings = settings
        self._peers = peers
        self._new_name = new_name
        self._finish_later = finish_later
        self._take_over = take_over
        self._membership: Membership | None = None
        self._search: asyncio.Task[None] | None = None
        self._is_search_due = False

    async def join(self) -> None:
        """Become a member. Call it before anything is announced."""
        await self._join()

    async def start(self) -> None:
        """Begin to finish left-over work, now and whenever a member departs. Raises `MembershipLostError`."""
        membership = self._membership or await self._join()
        members = await membership.members()
        self._peers.update(membership, members.names)
        self._watches.start("watch over controllers", self._keep_watch(membership, members))
        self._watches.start("periodic search for unfinished work", self._sweep_periodically())
        self._sweep()

    async def leave(self) -> None:
        """End the membership. Call it after all work has stopped: the other members take over the rest."""
        if self._membership is not None:
            await self._membership.leave()

    async def _join(self) -> Membership:
        membership = await self._coordinator.join(await self._new_name())
        self._membership = membership
        self._claims.enter(membership)
        return membership

    async def _keep_watch(self, joined: Membership, seen: Members) -> None:
        membership: Membership | None = joined
        members: Members | None = seen
        attempt = 1
        while True:
            try:
                if membership is None or membership.is_over:
                    membership, members = await self._join(), None
                found = await membership.changed(_NO_VERSION if members is None else members.version)
                self._peers.update(membership, found.names)
                gone = frozenset() if members is None else members.names - found.names
                if gone:
                    _logger.info("controllers have left: %s", ", ".join(sorted(gone)))
                if gone or members is None:
                    self._sweep()
                members, attempt = found, 1
                continue
            except MembershipLostError as error:
                _logger.warning("%s; joining again (attempt %d)", error, attempt)
                membership = None
            except PenstockError as error:
                _logger.warning("the coordinator cannot be reached (attempt %d): %s", attempt, error)
            await asyncio.sleep(delay_s(self._settings, attempt))
            attempt += 1

    async def _sweep_periodically(self) -> None:
        loop = asyncio.get_running_loop()
        transactions_s = loop.time() + self._settings.transaction_sweep_interval_s
        while True:
            await asyncio.sleep(self._settings.sweep_interval_s)
            if self._membership is None or self._membership.is_over:
                continue  # It sweeps as soon as it is a member again.
            if loop.time() >= transactions_s:
                transactions_s = loop.time() + self._settings.transaction_sweep_interval_s
                self._take_over()
            if self._search is None or self._search.done():
                self._search_orphans()

    def _sweep(self) -> None:
        """Start a search for work without an owner; if one is running, another follows it."""
        self._take_over()
        self._search_orphans()

    def _search_orphans(self) -> None:
        self._is_search_due = True
        if self._search is None or self._search.done():
            self._search = self._background.start("search for unfinished work", self._find_orphans)

    async def _find_orphans(self) -> None:
        while self._is_search_due:
            # Before the search begins: work added meanwhile is for the next search.
            self._is_search_due = False
            try:
                async for subject in self._claims.orphans():
                    # No faster than the work is processed.
                    await self._background.room()
                    self._finish_later(subject)
            except PenstockError:
                self._is_search_due = True
                raise
