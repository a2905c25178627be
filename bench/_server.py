"""`penstock standalone` as the commands here run it when they inspect its parts; people run `penstock`.

The same server with two additions, both off unless asked for: on SIGUSR1 it writes what its containers hold to the
file that BENCH_COUNTS names, and with BENCH_PROFILE it runs under cProfile and leaves the profile in that file.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import os
import signal

from penstock import cli
from penstock.cli import serve
from penstock.server import standalone

_COUNTS = os.environ.pop("BENCH_COUNTS", "")
_PROFILE = os.environ.pop("BENCH_PROFILE", "")


class ObservedStandalone(standalone.Standalone):
    """A server that tells how many segments it has in memory."""

    async def start(self) -> None:
        """See `Standalone.start`."""
        await super().start()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._write_counts)

    def _write_counts(self) -> None:
        counts = []
        containers = self.store.containers if self.store is not None else []
        for container in containers:
            state, catalog = container.state, container.catalog
            counts.append(
                {
                    "container": container.id,
                    "active_segments": state.metadata.active_count,
                    "unflushed_segments": len(state.unflushed),
                    "deactivated": catalog.deactivated_count,
                    "activated": catalog.activated_count,
                    "cache_mb": round(state.cache.used_bytes / 1e6, 1),
                    "checkpoint_mb": round(len(state.metadata.snapshot()) / 1e6, 2),
                }
            )
        with open(_COUNTS + ".new", "w") as file:
            json.dump(counts, file)
        os.replace(_COUNTS + ".new", _COUNTS)


def main() -> None:
    """Run the `penstock` command with this process's arguments."""
    if _COUNTS:
        setattr(serve, "Standalone", ObservedStandalone)  # noqa: B010  # not a name that the module gives away
    if not _PROFILE:
        cli.main()
        return
    profile = cProfile.Profile()
    try:
        profile.runcall(cli.main)
    finally:
        profile.dump_stats(_PROFILE)


if __name__ == "__main__":
    main()
