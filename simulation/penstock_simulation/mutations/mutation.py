"""`Mutation`, a planted bug: see `mutations`."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from inspect import getattr_static
from typing import Any

from penstock_simulation.simulated.loop import SimulatedLoop
from penstock_simulation.workloads.plans import PlanSettings
from penstock_simulation.workloads.profile import Profile


@dataclass(frozen=True, slots=True)
class Mutation:
    """A planted bug.

    Attributes:
        name: the bug, in a few words.
        breaks: the broken promise.
        profile: the scenarios that must find it are drawn from this.
        apply: the patch.
    """

    name: str
    breaks: str
    profile: Profile
    apply: Callable[[], AbstractContextManager[None]]


@contextmanager
def patched(owner: object, name: str, value: object) -> Iterator[None]:
    """Patch an attribute of a class or module. Afterwards it is restored, or inherited again."""
    is_own = name in vars(owner)
    before = getattr_static(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@contextmanager
def watched_in_simulation(owner: type, name: str, watching: Callable[..., Any]) -> Iterator[None]:
    """Replace a method by one that watches its calls, in simulated clusters only.

    A test process may also run real servers in other threads. Their calls say nothing about a simulated cluster.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*arguments: Any, **options: Any) -> Any:
        is_simulated = isinstance(asyncio.get_running_loop(), SimulatedLoop)
        return (watching if is_simulated else original)(*arguments, **options)

    with patched(owner, name, call):
        yield


def short_profile(
    name: str, *workloads: str, kinds: tuple[str, ...] = ("Crash", "CrashAtDiskCall"), gap_s: float = 2.0
) -> Profile:
    """Return a short profile: one store, few workloads, faults close together."""
    plan = PlanSettings(
        duration_s=12.0,
        lasts_s_max=2.0,
        mean_gap_s_min=gap_s / 2,
        mean_gap_s_max=gap_s,
        kinds=kinds,
        swizzle_rate=0.0,
        crash_loop_rate=0.0,
        zombie_rate=0.0,
    )
    return Profile(
        name=name, plan=plan, workloads=("events", *workloads), share=1.0, takeover_gap_s=0.0, writing_s=14.0,
        store_count_max=1, memory_flip_rate=0.0, scale_rate=0.0,
    )  # fmt: skip
