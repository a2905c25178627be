"""The blocking `SharedState`. Generated from `penstock.client.shared_state`: do not edit.

`python -m penstock.client.generate_sync` makes it anew; see ``docs/sync-client.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic

from penstock.client import shared_state as aio
from penstock.client.revisioned_stream import Revision
from penstock.client.shared_state import State, Update
from penstock.client.state_watch import StateChange
from penstock.client.sync.handle import Handle


class SharedState(Handle[aio.SharedState[State, Update]], Generic[State, Update]):
    """See the module. Made by `Client.shared_state`. Calls at the same time take their turns.

    `value` is this client's copy: of the newest state when something was fetched or written here last. States are never
    changed in place: `apply`, and the steps that methods take, return new ones.

    A change is made once though replies be lost. `OutcomeUnknownError` means that the time was up before it was known;
    `fetch` shows what became of it.
    """

    @property
    def name(self) -> str:
        """The stream as ``scope/stream``."""
        return self._part.name

    @property
    def value(self) -> State:
        """This client's copy of the state."""
        return self._part.value

    @property
    def revision(self) -> Revision:
        """Where in the stream `value` is."""
        return self._part.revision

    def fetch(self) -> State:
        """Take in what others have written, and return the newest state."""
        return self._portal.call(self._part.fetch())

    def watch(self, *, from_now: bool = False) -> Iterator[StateChange[State]]:
        """Iterate over the states that come, each once; the one that is there is the first, unless `from_now`.

        It waits for the stream to grow, and takes in what others have written as `fetch` does, so `value` follows.
        Whoever is slow is told the newest state: what was in between may be left out, what lasts is not. Several
        may be under way at once. A state that is as before is told too if somebody has written it.

        It may be cancelled anywhere, and after an error, it may be asked again: nothing is lost. It ends when the
        stream is sealed. Raises `ClosedError` when this is closed meanwhile, and what `fetch` raises.
        """
        return self._portal.iterate(self._part.watch(from_now=from_now))

    def replace(self, step: Callable[[State], State]) -> State:
        """Replace the state by what `step` makes of the newest one, with no other change between; return it.

        `step` may be called more than once. The whole state is written: fit for small ones.

        Raises `MetadataConflictError` after `shared_state_update_count_max` lost races, `OutcomeUnknownError`.
        """
        return self._portal.call(self._part.replace(step))

    def update(self, make: Callable[[State], Sequence[Update]]) -> State:
        """Write the updates that `make` returns for the newest state, with no other change between; return the next.

        All of them or none are written. `make` may be called more than once; it returns none if nothing is to be done.

        Raises `MetadataConflictError` after `shared_state_update_count_max` lost races, `OutcomeUnknownError`.
        """
        return self._portal.call(self._part.update(make))

    def compare_and_set(self, revision: Revision, state: State) -> bool:
        """Replace the state if `revision` is that of the newest one; return whether it was. Fetches if not."""
        return self._portal.call(self._part.compare_and_set(revision, state))

    def post(self, *updates: Update) -> None:
        """Write updates whatever others do meanwhile; `value` has them once they are fetched.

        For updates that are right in every state, as "add 1". Stored once. Raises `OutcomeUnknownError`.
        """
        self._portal.call(self._part.post(*updates))

    def compact(self) -> None:
        """Write the newest state whole, for clients that begin later, and forget what was before the last time.

        Whoever fetched last before that begins with the whole state too. Do so when many updates were written.
        """
        self._portal.call(self._part.compact())
