"""`keep_renewed`: the renewal of a transaction's lease, for as long as the transaction may still commit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from penstock.client.settings import ClientSettings
from penstock.model.errors import (
    ClosedError,
    InvalidArgumentError,
    NoSuchStreamError,
    PenstockError,
    TransactionError,
    UnsupportedOperationError,
)

_log = logging.getLogger(__name__)

#: A lease is renewed when this part of it has passed.
_RENEWAL_PART = 1 / 3

#: Errors after which no renewal can succeed. `TransactionError` itself is not among them, only its kinds: it says that
#: the transaction is about to end, and a later attempt is answered with the end.
_PERMANENT = (NoSuchStreamError, InvalidArgumentError, UnsupportedOperationError, ClosedError)


async def keep_renewed(
    name: str, lease_s: float, renew: Callable[[], Awaitable[None]], is_needed: Callable[[], bool], s: ClientSettings
) -> None:
    """Call `renew` in time while `is_needed`, until it raises an error that is permanent.

    After any other error the next attempt follows within `retry_delay_max_s`: when the cause has passed and the lease
    has not, the transaction is still open. The next write or the commit meets a permanent error too.

    Args:
        name: the transaction, in the log.
        lease_s: the lease that `renew` requests.
        renew: raises `PenstockError`.
        is_needed: whether the transaction may still commit here.
        s: the client's settings.
    """
    interval_s = lease_s * _RENEWAL_PART
    delay_s = interval_s
    is_failing = False
    while True:
        await asyncio.sleep(delay_s)
        if not is_needed():
            return
        try:
            await renew()
        except PenstockError as error:
            if _is_permanent(error):
                _log.info("the lease of %s is not renewed any more: %s", name, error)
                return
            if not is_failing:
                _log.warning("the lease of %s could not be renewed, retrying: %s", name, error)
            is_failing, delay_s = True, min(interval_s, s.retry_delay_max_s)
            continue
        if is_failing:
            _log.info("the lease of %s is renewed again", name)
        is_failing, delay_s = False, interval_s


def _is_permanent(error: PenstockError) -> bool:
    is_end = isinstance(error, TransactionError) and type(error) is not TransactionError
    return is_end or isinstance(error, _PERMANENT)
