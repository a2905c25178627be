"""The start of BookKeeper's client, without a virtual machine."""

from __future__ import annotations

import time

import pytest

from penstock.model.errors.ledgers import LedgerSilentError
from penstock.runtime import bookkeeper
from penstock.runtime.bookkeeper import BookKeeper
from penstock.runtime.entry_sender import EntrySender
from penstock.runtime.ledgers import LedgerClientSettings, LedgerPlace
from penstock.runtime.work import ThreadedWork

PLACE = LedgerPlace.parse("bookkeeper://localhost:2181/ledgers")
REQUEST_S = 0.05


class SlowClient(BookKeeper):
    """Its start takes longer than a request may take."""

    def _connect(self) -> tuple[object, object, EntrySender]:
        time.sleep(10 * REQUEST_S)
        return object(), object(), EntrySender.__new__(EntrySender)


async def test_the_start_of_the_client_may_take_longer_than_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine it takes minutes, most of it CPU: a process that ended then would never be ready."""
    pytest.importorskip("jpype")
    monkeypatch.setattr(bookkeeper, "has_java", lambda: True)
    work = ThreadedWork(2)
    client = SlowClient(PLACE, LedgerClientSettings("", request_timeout_s=REQUEST_S), work)
    await client.start()
    with pytest.raises(LedgerSilentError):
        await client._run(lambda: time.sleep(10 * REQUEST_S))
    await work.close()
