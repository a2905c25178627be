"""Check that no living reader of a group is declared dead."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.client.groups.group_state import GroupState
from penstock.client.groups.membership import GroupMembership
from penstock_simulation.mutations.mutation import watched_in_simulation


@contextmanager
def expulsions(found: Callable[[str], None]) -> Iterator[None]:
    """Report to `found` each reader that works and is no longer in the record of its group, in this context."""
    original = GroupMembership._follow

    @functools.wraps(original)
    def follow(self: GroupMembership, state: GroupState) -> None:
        if self._is_joined and self._name not in state.readers:
            found(f"reader {self._name} of group {self._record.name} works, and was declared dead")
        original(self, state)

    with watched_in_simulation(GroupMembership, "_follow", follow):
        yield
