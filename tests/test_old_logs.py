"""Logs in BookKeeper that earlier commits left when their owners crashed are opened and continued by the code of today.

`tests/support/old_ledgers.py` made them: the record in the coordination service, and the entries of the bookies.
"""

from __future__ import annotations

import json
import lzma
from base64 import b64decode
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.model.checksum import crc32c
from penstock.model.errors import LaterVersionError
from penstock.runtime.coordination import ensure_node, parent_of
from penstock_simulation.simulated.simulation import Simulation
from support.old_ledgers import FIRST, KEPT_FROM, SECOND, LedgerWorld, append, described, restore

ARCHIVES = sorted((Path(__file__).parent / "data" / "old" / "ledgers").glob("*.json.xz"))
KEPT = [*FIRST[KEPT_FROM:], *SECOND]

each_archive = pytest.mark.parametrize("path", ARCHIVES, ids=lambda path: path.name.partition(".")[0])


def run(path: Path, scenario: Callable[[LedgerWorld], Awaitable[None]], *, version: bytes = b"1") -> None:
    """Play a scenario in which an archive was restored, in virtual time. `version`: that of the record instead of 1."""
    archive = json.loads(lzma.decompress(path.read_bytes()))
    body = b64decode(archive["record"])[:-9].replace(b'{"v": 1,', b'{"v": %s,' % version)

    async def play() -> None:
        world = LedgerWorld()
        restore(world.bookies, archive)
        session = await world.service("operator").open_session(makes_root=True)
        await ensure_node(session, parent_of(archive["path"]))
        await session.create(archive["path"], body + b"%08x\n" % crc32c(body, 0))
        await scenario(world)
        await world.close()

    with Simulation(1) as simulation:
        simulation.run(play)


@each_archive
def test_a_log_in_bookkeeper_of_an_earlier_commit_is_read_and_continued(path: Path) -> None:
    async def scenario(world: LedgerWorld) -> None:
        log = await world.opened()
        assert [frame.data.decode() async for frame in log.frames()] == KEPT
        await append(log, ["new"])
        after = await world.opened()
        assert [frame.data.decode() async for frame in after.frames()] == [*KEPT, "new"]

    run(path, scenario)


@each_archive
def test_a_record_of_a_later_version_is_refused_and_no_ledger_is_changed(path: Path) -> None:
    async def scenario(world: LedgerWorld) -> None:
        before = described(world.bookies, b"")
        with pytest.raises(LaterVersionError, match="format version 2, this version reads 1"):
            await world.opened()
        assert described(world.bookies, b"") == before

    run(path, scenario, version=b"2")
