"""Planted bugs in the promises of the Python client. It once had, or nearly had, each of these bugs."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from types import TracebackType

from penstock.client.client import Client
from penstock.client.common import deadline
from penstock.client.common.life_cycle import Life, LifeCycle
from penstock.client.groups.group_liveness import Liveness
from penstock.client.groups.membership import GroupMembership
from penstock.client.groups.reader import Reader
from penstock.client.transactions.transaction import Transaction, _Fate
from penstock.client.writing.event_writer import EventWriter
from penstock_simulation.mutations.mutation import Mutation, patched
from penstock_simulation.workloads.plans import PlanSettings
from penstock_simulation.workloads.profile import Profile
from penstock_simulation.workloads.users import End, Fate, UserHabits

#: Faults are shorter than the reader timeout, so that no live reader is declared dead. The limits of the clients are at
#: times even shorter.
USERS = Profile(
    name="users",
    plan=PlanSettings(
        duration_s=20.0,
        lasts_s_max=3.0,
        mean_gap_s_min=2.0,
        mean_gap_s_max=6.0,
        kinds=("Crash", "CrashAtDiskCall", "Partition", "Reset", "SlowLink", "Pause", "ClockJump"),
        swizzle_rate=0.0,
        crash_loop_rate=0.0,
        zombie_rate=0.0,
    ),
    workloads=("events", "user writers", "users"),
    share=1.0,
    takeover_gap_s=0.0,
    writing_s=24.0,
    store_count_max=2,
    refused_rate=0.0,
    memory_flip_rate=0.0,
    scale_rate=0.0,
)
"""Everything that users do and that befalls them."""


@contextmanager
def _commit_what_is_left() -> Iterator[None]:
    commit = Transaction._commit

    async def commit_again(self: Transaction) -> None:
        if self._fate is _Fate.DOOMED and self._doomed_by is not None:
            self._fate = _Fate.COMMITTING  # The flush was already attempted.
        await commit(self)

    with patched(Transaction, "_commit", commit_again):
        yield


@contextmanager
def _keep_leases_for_ever() -> Iterator[None]:
    async def finish(self: Transaction) -> None:
        """Leave the transaction as it is."""

    async def release(self: Transaction) -> None:
        """Keep the task that renews the lease."""

    async def decide_nothing(self: Transaction) -> None:
        """Report the transaction as aborted."""

    with (
        patched(Transaction, "_finish", finish),
        patched(Transaction, "_release", release),
        patched(Transaction, "_abort", decide_nothing),
    ):
        yield


@contextmanager
def _take_events_while_closing() -> Iterator[None]:
    start_end = LifeCycle._start_end

    def start_end_gently(self: LifeCycle, timeout_s: float | None) -> object:
        ending = start_end(self, timeout_s)
        if self._life is Life.CLOSING:
            self._is_refusing = False
        return ending

    with patched(EventWriter, "_start_end", start_end_gently), patched(EventWriter, "_check_open", lambda self: None):
        yield


def _forget_children() -> AbstractContextManager[None]:
    async def finish_all(self: LifeCycle, timeout_s: float) -> list[BaseException]:
        return []

    return patched(Client, "_finish_all", finish_all)


def _leave_acks_unsettled() -> AbstractContextManager[None]:
    return patched(EventWriter, "_settle", lambda self: None)


class _NoDeadline:
    """A context variable that keeps no value."""

    def get(self) -> None:
        """Return None."""

    def set(self, value: object) -> None:
        """Discard the value."""

    def reset(self, token: object) -> None:
        """Do nothing."""


def _let_each_layer_have_the_whole_time() -> AbstractContextManager[None]:
    return patched(deadline, "_CURRENT", _NoDeadline())


@contextmanager
def _count_a_failure_as_done() -> Iterator[None]:
    async def leave(
        self: Reader, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(is_done=True)

    with patched(Reader, "__aexit__", leave), patched(Reader, "note_exception", lambda self: None):
        yield


@contextmanager
def _keep_what_was_given_away() -> Iterator[None]:
    drop = GroupMembership._drop

    def drop_all(self: GroupMembership) -> None:
        for source in list(self.open_segments.values()):
            drop(self, source)

    with patched(GroupMembership, "_drop", lambda self, source: None), patched(GroupMembership, "_drop_all", drop_all):
        yield


def _declare_the_living_dead() -> AbstractContextManager[None]:
    original = Liveness.silent

    def silent(self: Liveness[Hashable], lasts_s: float, but: Collection[str] = ()) -> dict[str, Hashable]:
        return original(self, 1.0, but)

    return patched(Liveness, "silent", silent)


#: The only store is unavailable for longer than all timeouts of its readers, which it affects at the same time.
LONG_OUTAGES = replace(
    USERS,
    name="long outages",
    plan=PlanSettings(
        duration_s=60.0,
        lasts_s_max=50.0,
        mean_gap_s_min=15.0,
        mean_gap_s_max=30.0,
        kinds=("Crash", "Pause"),
        swizzle_rate=0.0,
        crash_loop_rate=0.0,
        zombie_rate=0.0,
    ),
    writing_s=80.0,
    store_count_max=1,
    workloads=("events", "user writers", "users", "kept transactions"),
    habits=UserHabits(fates=(Fate.LEAVES,), cut_rate=0.0, limits_s=(2.0, 5.0), life_s_max=60.0, give_up_rate=0.0),
)
"""Outages longer than every time-out: no reader may be declared dead because of one."""

_WRITERS = replace(USERS, name="user writers", workloads=("events", "user writers"))


def _living(name: str, *fates: Fate, cut_rate: float = 0.0) -> Profile:
    return replace(USERS, name=name, habits=UserHabits(fates=fates, cut_rate=cut_rate))


def _ending(name: str, *ends: End) -> Profile:
    return replace(_WRITERS, name=name, habits=UserHabits(ends=ends))


USER_MUTATIONS = (
    Mutation(
        "commit what a failed flush left", "a transaction is seen whole or not at all",
        replace(_WRITERS, name="commits after outages", habits=UserHabits(cut_rate=0.0, limits_s=(0.3,))),
        _commit_what_is_left,
    ),
    Mutation(
        "keep the lease of a transaction that is given up", "no lease outlives its last user",
        replace(_WRITERS, name="transactions given up"), _keep_leases_for_ever,
    ),
    Mutation(
        "take events while a writer is closed", "a close that succeeds has stored all",
        _ending("closing while writing", End.CLOSES_WHILE_WRITING), _take_events_while_closing,
    ),
    Mutation(
        "close a client without its writers", "parents close their children",
        _ending("closing clients", End.CLOSES_THE_CLIENT), _forget_children,
    ),
    Mutation(
        "leave acknowledgements unsettled", "each acknowledgement settles",
        _ending("abandoning", End.ABANDONS, End.IS_CANCELLED), _leave_acks_unsettled,
    ),
    Mutation(
        "let each layer try for the whole time", "one deadline goes down through all retries",
        replace(_WRITERS, name="short limits"), _let_each_layer_have_the_whole_time,
    ),
    Mutation(
        "count an event as read though its user failed", "an exception never commits",
        _living("users that fail", Fate.FAILS), _count_a_failure_as_done,
    ),
    Mutation(
        "keep reading what was given away", "a reader reads what the record says",
        _living("users that come and go", Fate.LEAVES, Fate.KILLED), _keep_what_was_given_away,
    ),
    Mutation(
        "take readers for dead too soon", "an event comes again only after a crash",
        _living("users that live long", Fate.LEAVES), _declare_the_living_dead,
    ),
)  # fmt: skip
"""Bugs of this kind."""
