"""What the commands of ``penstock cluster`` share: options, settings, and a session with ZooKeeper."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from penstock.runtime.coordination import CoordinationStore
    from penstock.runtime.runtime import Runtime
    from penstock.server.settings import StandaloneSettings

T = TypeVar("T")

ZooKeeper = Annotated[
    str | None,
    typer.Option("--zookeeper", metavar="HOST:PORT[,...][/PATH]", help="Servers of ZooKeeper and path of the cluster."),
]
Config = Annotated[Path | None, typer.Option(help="Settings file, TOML.", envvar="PENSTOCK_CONFIG")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would change, and change nothing.")]

#: What is done in a session: gets it, its place for messages, the settings and the runtime.
Action = Callable[["CoordinationStore", str, "StandaloneSettings", "Runtime"], Awaitable[T]]


def load(config: Path | None, zookeeper: str | None) -> StandaloneSettings:
    """Return the settings. Raises `SettingsError`, `InvalidArgumentError`."""
    from penstock.runtime.settings import load_settings
    from penstock.server.settings import StandaloneSettings

    return load_settings(
        StandaloneSettings, file=config, environment=os.environ, flags={"cluster.zookeeper": zookeeper}
    )


def in_session(config: Path | None, zookeeper: str | None, action: Action[T]) -> T:
    """Run an action of an administrator in a session of its own. Raises what it raises, and `CoordinationError`."""
    from penstock.cli.serve import new_loop
    from penstock.runtime.runtime import real_runtime
    from penstock.server.cluster.identity import open_coordination, wait_for_session

    settings = load(config, zookeeper)
    # Requests that are repeated end in a result or an error.
    logging.getLogger("penstock").addHandler(logging.NullHandler())

    async def run() -> T:
        runtime = real_runtime(1)
        try:
            service = open_coordination(settings.cluster)
            store = await wait_for_session(service, settings.cluster.connect_timeout_s)
            try:
                return await action(store, service.place, settings, runtime)
            finally:
                await store.close()
        finally:
            await runtime.work.close()

    with asyncio.Runner(loop_factory=new_loop()) as runner:
        return runner.run(run())
