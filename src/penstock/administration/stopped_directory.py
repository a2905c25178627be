"""`stopped_directory`: the data directory of a stopped server, locked for one command of an administrator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.model.errors import DataDirectoryInUseError
from penstock.runtime.runtime import Runtime
from penstock.server.data_directory import DataDirectory, Identity
from penstock.server.settings import StandaloneSettings


@asynccontextmanager
async def stopped_directory(
    settings: StandaloneSettings, runtime: Runtime, *, outcome: str = "nothing was changed"
) -> AsyncIterator[tuple[DataDirectory, Identity]]:
    """Hold the lock of `settings.data_dir` until the block ends. `outcome`: what is true if a server holds it.

    Raises:
        DataDirectoryInUseError: a server runs on the directory.
        DataDirectoryError: it is not a data directory.
        CorruptionError: its identity is damaged.
    """
    directory = DataDirectory(settings.data_dir, runtime)
    try:
        identity = await runtime.work.run(directory.open_existing)
    except DataDirectoryInUseError as error:
        raise DataDirectoryInUseError(
            f"{outcome}: a server runs on {directory.root}; stop it, repeat this command, and start it again"
        ) from error
    try:
        yield directory, identity
    finally:
        directory.close()
