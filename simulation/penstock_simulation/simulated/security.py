"""The security of a simulated cluster: accounts and token keys, and what each process has read of them.

`SecurityFiles` are the files that an administrator changes, the same on all hosts. `ProcessSecurity` belongs to one
process: it reads the files at its start and then at intervals, as `penstock.security.server_security` does, so the
processes have different states for a while. Everything made from the files is production code. There is no TLS.
The machines of a cluster of several have files of their own, see `host_files`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.controller.grpc.guard import CallGuard
from penstock.model.permissions import Permission
from penstock.security.access_list import AccessEntry, AccessList
from penstock.security.accounts import Account, Accounts, format_accounts, parse_accounts
from penstock.security.authenticator import AuthenticationSettings, Authenticator
from penstock.security.passwords import SALT_LENGTH, hash_password
from penstock.security.sessions import Sessions
from penstock.security.tokens import MasterTokens, TokenKeys, TokenSigner, TokenVerifier
from penstock.segmentstore.token_access import TokenAccess
from penstock_simulation.simulated.host import Host

#: The account of all workloads that do not test accounts.
WORKER = "worker"
WORKER_PASSWORD = "of the worker"
_KEY_LENGTH = 64
#: Hashing is not what is tested.
_ITERATIONS = 2
#: Failed logins that are answered at once: workloads fail on purpose.
_FAILURES_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class SimulatedSecuritySettings:
    """How long tokens are valid, and how often a process reads the files."""

    token_ttl_s: int = 6
    reload_interval_s: float = 2.0


class SecurityFiles:
    """See the module.

    Attributes:
        version: counts the changes.
        accounts: the text of the accounts file.
        keys: of tokens; the first one signs.
        changed: called after each change.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._accounts: dict[str, Account] = {}
        self.changed: Callable[[], None] | None = None
        self.version: int = 0
        self.accounts: str = ""
        self.keys: tuple[bytes, ...] = (self.new_key(),)
        self.set_account(WORKER, WORKER_PASSWORD, [AccessEntry("prn::*", Permission.READ_UPDATE)])

    def new_key(self) -> bytes:
        """Return a random key."""
        return self._rng.randbytes(_KEY_LENGTH)

    def set_account(self, name: str, password: str, entries: Sequence[AccessEntry]) -> None:
        """Add an account, or replace it."""
        hashed = hash_password(password, self._rng.randbytes(SALT_LENGTH), _ITERATIONS)
        self._accounts[name] = Account(name, hashed, AccessList(tuple(entries)))
        self._write()

    def remove_account(self, name: str) -> None:
        """Remove an account, if it exists."""
        self._accounts.pop(name, None)
        self._write()

    def set_keys(self, keys: Sequence[bytes]) -> None:
        """Replace the keys."""
        self.keys = tuple(keys)
        self._count_change()

    def _write(self) -> None:
        self.accounts = format_accounts(list(self._accounts.values()))
        self._count_change()

    def _count_change(self) -> None:
        self.version += 1
        if self.changed is not None:
            self.changed()


class ProcessSecurity:
    """See the module. Make it in the process of `host`; `follow` begins to read changes.

    Attributes:
        version: of the files that were read.
        tokens: of this process for its own requests to segment stores.
    """

    def __init__(self, host: Host, files: SecurityFiles, settings: SimulatedSecuritySettings) -> None:
        runtime = host.runtime

        def wall_clock_s() -> float:
            return runtime.wall_clock_ms() / 1000

        def random_bytes(length: int) -> bytes:
            return runtime.rng.randbytes(length)

        self._files = files
        self._interval_s = settings.reload_interval_s
        self._rng = runtime.rng
        keys = TokenKeys(files.keys)
        self._verifier = TokenVerifier(keys, wall_clock_s)
        self._wall_clock_s = wall_clock_s
        self._signer = TokenSigner(keys, settings.token_ttl_s, wall_clock_s)
        self._sessions = Sessions(keys, wall_clock_s)
        self._authenticator = Authenticator(
            Accounts(), runtime.work, random_bytes, AuthenticationSettings(failures_max=_FAILURES_MAX),
            sessions=self._sessions,
        )  # fmt: skip
        self.tokens: MasterTokens = MasterTokens(self._signer)
        self.version: int = 0
        self._read()
        self._task: asyncio.Task[None] | None = None

    def token_access(self) -> TokenAccess:
        """Return the check of the requests to a segment store."""
        return TokenAccess(self._verifier, self._wall_clock_s)

    def guard(self) -> CallGuard:
        """Return the check of the callers of a controller."""
        return CallGuard(self._authenticator, self._signer)

    def follow(self) -> None:
        """Begin to read changes."""
        self._task = asyncio.get_running_loop().create_task(self._follow())

    def stop(self) -> None:
        """Read no further changes, and accept no more passwords."""
        if self._task is not None:
            self._task.cancel()
        self._authenticator.close()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s * self._rng.uniform(0.5, 1.0))
            if self.version != self._files.version:
                self._read()

    def _read(self) -> None:
        files, keys = self._files, TokenKeys(self._files.keys)
        self._authenticator.replace_accounts(parse_accounts(files.accounts))
        for part in (self._signer, self._sessions, self._verifier):
            part.replace_keys(keys)
        self.version = files.version
