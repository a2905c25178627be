"""`HostFiles`: the security files of each machine of a simulated cluster, to which an administrator copies changes.

They are in a real temporary directory, because processes of a cluster read their files by themselves, as
`penstock.security.server_security` does. A change reaches one machine after another, at drawn times, whether its
processes run or not. Sizes and times of the files are those of the seed: real time has no influence.
"""

from __future__ import annotations

import base64
import os
import random
import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from penstock.security.secrets_directory import SecurityPaths, security_paths, write_file
from penstock.security.settings import SecuritySettings
from penstock_simulation.simulated.security import SecurityFiles, SimulatedSecuritySettings

#: Longest time until a change has been copied to a machine.
COPY_S_MAX = 2.0
_MODE = 0o600
_NS_PER_VERSION = 1_000_000_000


class HostFiles:
    """See the module. `later` calls a function after some seconds."""

    def __init__(
        self,
        files: SecurityFiles,
        settings: SimulatedSecuritySettings,
        hosts: Sequence[str],
        rng: random.Random,
        later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._files = files
        self._settings = settings
        self._rng = rng
        self._later = later
        self._directory = Path(tempfile.mkdtemp(prefix="penstock-simulated-"))
        weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        #: The version that each machine has.
        self._versions: dict[str, int] = {}
        for host in hosts:
            self._copy(host)
        files.changed = self._copy_later

    def settings_of(self, host: str) -> tuple[SecuritySettings, str]:
        """Return the settings of the processes of a machine, and their data directory."""
        security = SecuritySettings(
            auth="on",
            token_ttl_s=self._settings.token_ttl_s,
            reload_interval_s=self._settings.reload_interval_s,
        )
        return security, str(self._directory / host)

    def have(self, version: int) -> bool:
        """Return whether each machine has this version, or a later one."""
        return all(found >= version for found in self._versions.values())

    def _paths(self, host: str) -> SecurityPaths:
        return security_paths(*self.settings_of(host))

    def _copy_later(self) -> None:
        for host in self._versions:
            self._later(self._rng.uniform(0.0, COPY_S_MAX), partial(self._copy, host))

    def _copy(self, host: str) -> None:
        files, paths = self._files, self._paths(host)
        self._versions[host] = files.version
        # A file of keys has lines.
        keys = b"".join(base64.b64encode(key) + b"\n" for key in files.keys)
        for path, content in ((paths.accounts, files.accounts.encode()), (paths.token_keys, keys)):
            write_file(path, content, _MODE)
            os.utime(path, ns=(files.version * _NS_PER_VERSION,) * 2)
