"""The id of a client's call is passed on to the requests that the controller makes for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.rpc import controller_pb2 as pb
from penstock.runtime.log_context import log_context
from penstock.wire.request_ids import request_tag, tagged, text_of

if TYPE_CHECKING:
    from controller.conftest import Wire


@pytest.mark.parametrize(
    ("request_id", "in_store", "request_tag_field"),
    [("4711", "4711", None), ("order-17", "~83a428f80c", "~83a428f80c")],
)
async def test_requests_to_stores_and_log_lines_have_the_id_of_the_call(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, request_id: str, in_store: str, request_tag_field: str | None
) -> None:
    seen = []
    create = wire.service.create_scope

    async def note(*arguments: Any) -> object:
        seen.append((tagged(1), dict(log_context.get())))
        return await create(*arguments)  # type: ignore[func-returns-value]

    monkeypatch.setattr(wire.service, "create_scope", note)
    await wire.stub.createScope(pb.ScopeInfo(scope="shop"), metadata=(("requestid", request_id),))  # type: ignore[misc]
    ((wire_id, fields),) = seen
    assert text_of(wire_id) == in_store
    assert (fields["request_id"], fields.get("request_tag")) == (request_id, request_tag_field)


async def test_a_call_without_an_id_has_no_tag(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    create = wire.service.create_scope

    async def note(*arguments: Any) -> object:
        seen.append((request_tag.get(), dict(log_context.get())))
        return await create(*arguments)  # type: ignore[func-returns-value]

    monkeypatch.setattr(wire.service, "create_scope", note)
    await wire.stub.createScope(pb.ScopeInfo(scope="shop"))  # type: ignore[misc]
    ((tag, fields),) = seen
    assert tag == 0
    assert "request_tag" not in fields
