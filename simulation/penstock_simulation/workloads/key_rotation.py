"""`KeyRotation`: an administrator who rotates the keys of tokens all the time, as the guide describes it.

A new key is added below the present one, put first, and the earlier key is removed after the tokens that it has signed
have expired. Each step begins when every process has read the previous one. No client may notice.
"""

from __future__ import annotations

import asyncio
import random

from penstock.security.tokens import LEEWAY_S
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.world import Workload, World

_POLL_S = 0.2


class KeyRotation(Workload):
    """See the module. Of a secured cluster only."""

    verifies_again = False

    def __init__(self, world: World, host: Host, name: str, rng: random.Random) -> None:
        super().__init__(world, host, name, rng)
        files, security = world.cluster.security_files, world.cluster.settings.security
        assert files is not None
        assert security is not None
        self._files = files
        self._ttl_s = security.token_ttl_s

    async def run(self) -> None:
        """See `Workload.run`."""
        while self.world.is_writing:
            old = self._files.keys[0]
            new = self._files.new_key()
            await self._step(old, new)
            await self._step(new, old)
            await asyncio.sleep(self._ttl_s + LEEWAY_S + self.rng.uniform(0.0, 2.0))
            await self._step(new)
            self.world.counts["rotations of keys"] += 1
            await self.rest(1.0)

    async def _step(self, *keys: bytes) -> None:
        """Write the keys, and wait until every process has read them."""
        self._files.set_keys(keys)
        version = self._files.version
        while not self.world.cluster.have_read(version):  # noqa: ASYNC110  # polled, as an administrator does
            await asyncio.sleep(_POLL_S)
