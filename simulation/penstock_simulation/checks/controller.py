"""What must hold of a controller's records when all is quiet: nothing that was begun is left unfinished.

All faults are over then, no client sends requests, and no process is restarted: work that outlasted its retries must
have continued by itself.
"""

from __future__ import annotations

import asyncio

from penstock.controller.metadata.records import StreamState
from penstock.controller.service import ControllerService
from penstock.model.errors import NoSuchStreamError, PenstockError
from penstock.model.names import SYSTEM_SCOPE

#: What is begun must have ended by then, in virtual time: the longest wait between two attempts, and some.
_TIMEOUT_S = 60.0
_POLL_S = 1.0
_LASTING = (StreamState.ACTIVE, StreamState.SEALED)


async def check_controller(service: ControllerService) -> list[str]:
    """Return what is left unfinished after a while; run it on the controller's host."""
    deadline_s = asyncio.get_running_loop().time() + _TIMEOUT_S
    while True:
        try:
            left = await _unfinished(service)
        except PenstockError as error:
            left = [f"the controller's records cannot be read: {error!r}"]
        if not left or asyncio.get_running_loop().time() > deadline_s:
            return left
        await asyncio.sleep(_POLL_S)


async def _unfinished(service: ControllerService) -> list[str]:
    catalog = service._catalog
    pending = service._context.claims.pending()
    left = [f"work on {subject} is announced, and not done" async for subject in pending]
    for scope in (await service.list_scopes("")).names:
        if scope == SYSTEM_SCOPE:
            continue
        for stream in (await service.list_streams(scope, "")).names:
            try:
                state = await catalog.on_stream(scope, stream, lambda tables: tables.state())
            except NoSuchStreamError:
                continue  # Listed, and never made: see ``docs/controller.md``, "What remains".
            if state.record.state not in _LASTING:
                left.append(f"stream {scope}/{stream} is {state.record.state.value}, and no work is in progress there")
    return left
