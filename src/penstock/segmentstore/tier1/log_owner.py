"""`LogOwner`: in whose name a process opens logs, and which others may still be alive."""

from __future__ import annotations

from collections.abc import Callable

#: Length of a token in bytes.
TOKEN_LENGTH = 16


class LogOwner:
    """A process that opens logs. `token` (16 bytes) is its own and no other's, past ones included.

    `may_live` says of another process's token whether that process may still run. By default none does: whoever has the
    exclusive lock of a data directory knows that. `check_held` raises when it does not hold that lock any more: then it
    opens no log. It blocks, and is called in any thread.
    """

    def __init__(
        self,
        token: bytes,
        may_live: Callable[[bytes], bool] = lambda token: False,
        check_held: Callable[[], None] = lambda: None,
    ) -> None:
        self.token = token
        self.check_held = check_held
        self._may_live = may_live
        #: Container ids -> the last epoch that this process has given up.
        self._given_up: dict[int, int] = {}

    def give_up(self, container_id: int, epoch: int) -> None:
        """Note that the incarnation of that epoch answers nothing any more."""
        self._given_up[container_id] = max(epoch, self._given_up.get(container_id, 0))

    def may_answer(self, container_id: int, epoch: int, token: bytes) -> bool:
        """Say whether the incarnation of that epoch, opened in the name of `token`, may still answer reads."""
        if token == self.token:
            return self._given_up.get(container_id, 0) < epoch
        return self._may_live(token)
