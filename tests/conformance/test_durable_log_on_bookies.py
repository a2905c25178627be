"""The suite of durable logs over real bookies, in a process with a Java virtual machine of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.runtime.extras import missing_extra
from support.bookkeeper_server import Bookies

TIMEOUT_S = 900


@pytest.mark.interop
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("count", [4, pytest.param(3, marks=pytest.mark.nightly)])
def test_every_test_of_durable_logs_passes_over_real_bookies(count: int, bookies: Bookies) -> None:
    """With four bookies, and with three of them: then no other one can take the place of one."""
    pytest.importorskip("jpype", reason=missing_extra("the log in BookKeeper", "bookkeeper", ImportError(name="jpype")))
    if count == 3:
        bookies.kill(3)
    try:
        done = subprocess.run(
            [
                sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-rs",
                str(Path(__file__).with_name("test_durable_log.py")),
            ],
            env={
                **os.environ,
                "PENSTOCK_TEST_BOOKIES_URL": bookies.url,
                "PENSTOCK_TEST_BOOKIES_JARS": str(bookies.jars),
            },
            capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    finally:
        if count == 3:
            bookies.launch(3)
            bookies.wait_until_ready(3)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
