"""`java_error`: exceptions of BookKeeper's Java client as errors of ledgers."""

from __future__ import annotations

from typing import Any

from penstock.model.errors.ledgers import LedgerError, ledger_error


def java_error(error: Any) -> LedgerError:
    """Return the error for an exception of Java, by the code of the client's exception in its chain of causes."""
    import jpype

    known = jpype.JClass("org.apache.bookkeeper.client.api.BKException")
    time_out = jpype.JClass("java.util.concurrent.TimeoutException")
    each = error
    while each is not None:
        if isinstance(each, known):
            return ledger_error(int(each.getCode()), f"{type(each).__name__}: {each.getMessage()}")
        if isinstance(each, time_out):
            return ledger_error(-23, "no answer in time")
        each = each.getCause()
    return ledger_error(-999, str(error))
