"""`Election`: which of the controllers leads. The session with the lowest node in ``election`` does.

A node is sequential and ephemeral: it is created last in line and goes with its session. A candidate recognises its
nodes by their owner, so a creation without an answer needs no care: if it was made, the node is this session's.

A leader may be wrong: it may have been stopped for longer than its session, and another one leads. So it writes only on
versions that it has read.
"""

from __future__ import annotations

from penstock.model.cluster_nodes import ELECTION_PATH
from penstock.model.errors.coordination import CoordinationOutcomeUnknownError, NoSuchNodeError
from penstock.runtime.coordination import CoordinationStore, ensure_node


class Election:
    """A session's candidature. `content`: of its node, for people."""

    def __init__(self, store: CoordinationStore, content: bytes) -> None:
        self._store = store
        self._content = content

    async def win(self) -> None:
        """Wait until this session leads. Raises `CoordinationError`; call it again, or with another session."""
        await ensure_node(self._store, ELECTION_PATH)
        while True:
            line = await self._store.children(ELECTION_PATH)
            owners = [await self._owner(name) for name in sorted(line.names)]
            present = [owner for owner in owners if owner]
            if self._store.session_id not in present:
                await self._enter()
            elif present[0] == self._store.session_id:
                return
            else:
                await self._store.changed(ELECTION_PATH, line)

    async def withdraw(self) -> None:
        """Leave the line, so that the next candidate leads; `win` enters it again, at its end.

        Raises `CoordinationError`: the session may still be in the line.
        """
        line = await self._store.children(ELECTION_PATH)
        for name in sorted(line.names):
            if await self._owner(name) == self._store.session_id:
                try:
                    await self._store.delete(f"{ELECTION_PATH}/{name}")
                except NoSuchNodeError:
                    continue  # A deletion before it got no answer.

    async def _enter(self) -> None:
        try:
            await self._store.create(f"{ELECTION_PATH}/n-", self._content, is_ephemeral=True, is_sequential=True)
        except CoordinationOutcomeUnknownError:
            return  # The next list shows it, or not. A second node does no harm.

    async def _owner(self, name: str) -> int:
        try:
            return (await self._store.get(f"{ELECTION_PATH}/{name}")).owner
        except NoSuchNodeError:
            return 0
