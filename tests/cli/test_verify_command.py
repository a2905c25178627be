"""`penstock verify`: how it ends where nothing is damaged. What it finds is in `tests/spark/test_spark_verify.py`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.jobs.verify import StoredChunks
from penstock.model.errors import PenstockError, StorageUnavailableError, UnsupportedOperationError
from penstock.testing.server import MemoryServer
from support.command_line import run_command


def test_an_unknown_outcome_is_not_reported_as_success(
    penstock_server: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one segment, and of all behind a storage that went away; without either all is well, if not yet flushed."""
    uri = penstock_server.uri
    with penstock_server.connect() as client:
        client.create_stream("verify/x", exist_ok=True)
        with client.event_writer("verify/x") as writer:
            writer.write(b"x" * 92)
    well = run_command("verify", "verify/x", uri=uri).ok.lines
    assert well == [
        "1 segments, 0 chunks, 0 B were read and compared", "100 B are not in long-term storage yet",
        "no problems found",
    ]  # fmt: skip

    def refuse(self: StoredChunks, ranges: Sequence[object]) -> list[PenstockError]:
        return [UnsupportedOperationError("its records are damaged")] * len(ranges)

    monkeypatch.setattr(StoredChunks, "layouts", refuse)
    unknown = run_command("verify", "verify/x", uri=uri)
    assert (unknown.code, unknown.lines[-1]) == (1, "some checks could not be completed")
    assert unknown.lines[0].startswith("not known: verify/x/0.#epoch.0: ")
    told = run_command("verify", "--json", uri=uri)
    assert (told.code, told.json["type"], told.json["is_whole"]) == (1, "verified", True)

    def away(self: StoredChunks, ranges: Sequence[object]) -> list[PenstockError]:
        return [StorageUnavailableError("it is away")] * len(ranges)

    monkeypatch.setattr(StoredChunks, "layouts", away)
    ended = run_command("verify", "verify/x", "--outage", "2s", uri=uri)
    assert (ended.code, ended.lines[-1]) == (1, "the check was stopped before its end")
    assert "it is away" in ended.stderr
