"""Names that users cannot have, and what the client says of them; why a controller refuses what it was asked to do."""

from __future__ import annotations

import uuid
from random import Random

import pytest

from penstock import Client, InvalidNameError, MetadataConflictError, NoSuchScopeError, StreamCut
from penstock.client.controller.controller import ControllerClient
from penstock.client.controller.reader_group_calls import RegisteredGroup
from penstock.client.settings import ClientSettings
from penstock.model.errors import StreamError
from penstock.model.policies import GroupRetention, StreamConfig
from penstock.testing import memory_server
from support.command_line import run_command


@pytest.mark.parametrize("stream", ["reserved/_x", "reserved/_MARKorders", "reserved/..", "reserved/" + "A" * 251])
def test_a_stream_of_a_reserved_name_is_refused_and_leaves_no_scope(penstock_client: Client, stream: str) -> None:
    with pytest.raises(InvalidNameError):
        penstock_client.create_stream(stream)
    with pytest.raises(NoSuchScopeError):
        list(penstock_client.streams("reserved"))


@pytest.mark.parametrize("scope", ["..", "_mine", "penstock-storage.orders"])
def test_a_scope_of_a_reserved_name_is_refused(penstock_client: Client, scope: str) -> None:
    with pytest.raises(InvalidNameError):
        penstock_client.create_scope(scope)
    with pytest.raises(InvalidNameError):
        penstock_client.create_stream(f"{scope}/orders")
    with pytest.raises(InvalidNameError):
        penstock_client.create_table(f"{scope}/orders", key_length=4)
    assert scope not in list(penstock_client.scopes())


def test_watermarks_and_group_state_are_not_written_by_users(penstock_client: Client) -> None:
    penstock_client.create_stream("marked/orders")
    for stream in ("marked/_MARKorders", "marked/_RGaudit"):
        with pytest.raises(InvalidNameError):
            penstock_client.event_writer(stream)
        with pytest.raises(InvalidNameError):
            penstock_client.byte_writer(stream)
        with pytest.raises(InvalidNameError):
            penstock_client.begin_transaction(stream)


def test_internal_streams_are_not_listed_by_the_client(penstock_client: Client) -> None:
    """The controller lists them, as Pravega's does."""
    penstock_client.create_stream("listing/orders")
    with penstock_client.reader_group("listing/audit", ["listing/orders"]):
        assert list(penstock_client.streams("listing")) == ["orders"]
        listed = list(penstock_client.streams("listing", includes_internal=True))
        assert sorted(listed) == ["_MARKorders", "_RGaudit", "orders"]
        ran = run_command("stream", "list", "listing", "--all", uri=penstock_client.uri)
        assert ran.ok.stdout.split() == ["listing/_MARKorders", "listing/_RGaudit", "listing/orders"]
        assert list(penstock_client.reader_groups("listing")) == ["audit"]


def test_a_refused_change_names_the_violated_condition(penstock_client: Client) -> None:
    penstock_client.create_stream("refused/orders")
    with pytest.raises(MetadataConflictError, match="segment 7") as refused:
        penstock_client.truncate_stream(StreamCut("refused", "orders", {7: 0}))
    assert "another change" not in str(refused.value)


async def test_a_name_refused_by_the_controller_gives_its_reason() -> None:
    """A client that does not check names itself."""
    group = RegisteredGroup(str(uuid.UUID(int=1)), 0, {}, GroupRetention.NONE)
    with memory_server() as server:
        controller = ControllerClient.connect(server.uri, ClientSettings(), Random(1))
        try:
            await controller.create_scope("s")
            with pytest.raises(InvalidNameError, match="watermarks"):
                await controller.create_stream("s", "_MARKx", StreamConfig())
            with pytest.raises(InvalidNameError, match="reserved for long-term storage"):
                await controller.create_scope("penstock-storage.x")
            await controller.create_stream("s", "_RGaudit", StreamConfig())
            with pytest.raises(StreamError, match="belongs to no group"):
                await controller.create_reader_group("s", "audit", group)
        finally:
            await controller.close()
