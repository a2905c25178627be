"""`LogOwner`: the identity under which a process opens logs, and which others may still be alive."""

from __future__ import annotations

from collections.abc import Callable

#: Length of a token in bytes.
TOKEN_LENGTH = 16


class LogOwner:
    """A process that opens logs. `token` (16 bytes) is unique among all processes, past ones included.

    `may_live` returns whether the process of another token may still run. By default none does: the holder of a data
    directory's exclusive lock can rely on that. `check_held` raises if the process no longer holds that lock, and then
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
        """Note that the incarnation of that epoch has stopped answering."""
        self._given_up[container_id] = max(epoch, self._given_up.get(container_id, 0))

    def may_answer(self, container_id: int, epoch: int, token: bytes) -> bool:
        """Return whether the incarnation of that epoch, opened by the owner of `token`, may still answer reads."""
        if token == self.token:
            return self._given_up.get(container_id, 0) < epoch
        return self._may_live(token)
