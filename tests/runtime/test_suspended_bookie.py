"""A bookie that is suspended, and the memory of the client that sends to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.bookkeeper_server import Bookies
from support.ledger_load import DIRECT_MB, ENTRY_BYTES

pytestmark = [pytest.mark.interop, pytest.mark.nightly, pytest.mark.timeout(600)]

#: Twice what Java may keep for the bookie.
COUNT = 2 * DIRECT_MB * 1024 * 1024 // ENTRY_BYTES


def test_a_suspended_bookie_fills_no_memory_and_the_ledger_continues(bookies: Bookies) -> None:
    """Its connection stays, and takes nothing. All entries for it would fill the memory for buffers."""
    pytest.importorskip("jpype")
    load = subprocess.Popen(
        [sys.executable, "-m", "support.ledger_load", bookies.url, str(bookies.jars)],
        cwd=Path(__file__).parents[1], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert load.stdout is not None
    try:
        ensemble = load.stdout.readline().split()
        number = next(index for index, port in enumerate(bookies.ports) if f"127.0.0.1:{port}" in ensemble)
        before = int(load.stdout.readline())
        bookies.hold(number)
        try:
            confirmed = before
            while confirmed < before + COUNT:
                confirmed = int(load.stdout.readline())
        finally:
            bookies.release(number)
        load.communicate("", timeout=120)
        assert load.returncode == 0
    finally:
        load.kill()
        load.wait()
