"""The blocking `SharedState`. Generated from `penstock.client.state.shared_state`: do not edit.

`python -m penstock_tools.generate_sync` regenerates it; see ``docs/sync-client.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic

from penstock.client.state import shared_state as aio
from penstock.client.state.revisioned_stream import Revision
from penstock.client.state.shared_state import State, Update
from penstock.client.state.state_watch import StateChange
from penstock.client.sync.handle import Handle


class SharedState(Handle[aio.SharedState[State, Update]], Generic[State, Update]):
    """See the module. Made by `Client.shared_state`. Concurrent calls are serialized.

    `value` is this client's copy: the newest state as of the last fetch or write here. States are never changed in
    place: `apply`, and the steps that methods take, return new ones.

    A change is made exactly once, even if replies are lost. `OutcomeUnknownError` means that the time expired before
    the outcome was known; `fetch` shows the outcome.
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
        """The place of `value` in the stream."""
        return self._part.revision

    def fetch(self) -> State:
        """Fetch the entries of other clients, and return the newest state."""
        return self._portal.call(self._part.fetch())

    def watch(self, *, from_now: bool = False) -> Iterator[StateChange[State]]:
        """Iterate over new states, each once; the current state comes first, unless `from_now`.

        It waits for the stream to grow, and fetches the entries of other clients as `fetch` does, so `value` follows. A
        slow consumer gets the newest state: intermediate states may be missed, the last one is not. Several iterations
        may be active at once. A state equal to the previous one is returned too if it was written.

        It may be cancelled anywhere, and continued after an error: nothing is lost. It ends when the stream is sealed.
        Raises `ClosedError` if this is closed meanwhile, and the errors of `fetch`.
        """
        return self._portal.iterate(self._part.watch(from_now=from_now))

    def replace(self, step: Callable[[State], State]) -> State:
        """Atomically replace the newest state by the result of `step` for it; return the new state.

        `step` may be called more than once. The whole state is written: suitable for small states.

        Raises `MetadataConflictError` after `shared_state_update_count_max` lost races, `OutcomeUnknownError`.
        """
        return self._portal.call(self._part.replace(step))

    def update(self, make: Callable[[State], Sequence[Update]]) -> State:
        """Atomically write the updates that `make` returns for the newest state; return the next state.

        All of them or none are written. `make` may be called more than once; it returns none if no update is needed.

        Raises `MetadataConflictError` after `shared_state_update_count_max` lost races, `OutcomeUnknownError`.
        """
        return self._portal.call(self._part.update(make))

    def compare_and_set(self, revision: Revision, state: State) -> bool:
        """Replace the state if `revision` is that of the newest one; return whether it was. Otherwise fetch."""
        return self._portal.call(self._part.compare_and_set(revision, state))

    def post(self, *updates: Update) -> None:
        """Write updates unconditionally; `value` contains them after the next fetch.

        For updates that are valid in every state, such as "add 1". Stored once. Raises `OutcomeUnknownError`.
        """
        self._portal.call(self._part.post(*updates))

    def compact(self) -> None:
        """Write the newest state whole, for clients that start later, and delete the entries before the previous one.

        A client whose last fetch is older starts from the whole state too. Call this after many updates.
        """
        self._portal.call(self._part.compact())
