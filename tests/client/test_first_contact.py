"""What a client says about a server that is missing, that is another one, or that refuses: at once, and what to do."""

from __future__ import annotations

import socket
import threading
import traceback
from collections.abc import Iterator

import pytest

import penstock
from penstock.client.controller.first_contact import PROBE_TIMEOUT_S
from penstock.runtime.portal import Portal
from penstock.server.settings import StandaloneSettings
from penstock.server.standalone import Standalone

SETTINGS = penstock.ClientSettings(first_contact_timeout_s=0.2)


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    """A running server's controller."""
    portal = Portal("server")
    settings = StandaloneSettings(is_memory=True, host="127.0.0.1", controller_port=0, segment_store_port=0)
    server = Standalone(settings)
    portal.call(server.start(), 30)
    yield server.controller_uri
    portal.call(server.stop(), 30)
    portal.close()


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections, sends nothing, and closes each connection on its first bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.recv(10)
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield port
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def test_a_missing_server_is_a_connection_error_that_names_the_command_that_starts_one() -> None:
    # It said after 8 s that the outcome was unknown and it may have been done.
    assert penstock.ClientSettings().first_contact_timeout_s + PROBE_TIMEOUT_S < 2
    with penstock.connect("tcp://127.0.0.1:1", SETTINGS) as client, pytest.raises(ConnectionError) as caught:
        client.create_stream("a/b")
    error = caught.value
    assert isinstance(error, penstock.ControllerUnavailableError)
    assert not isinstance(error, penstock.OutcomeUnknownError)
    for part in ("tcp://127.0.0.1:1", "nothing was done", "no server listens at this address", "penstock standalone"):
        assert part in str(error)


def test_the_address_of_a_segment_store_is_distinguished_from_that_of_a_controller(uri: str) -> None:
    with penstock.connect(uri) as client:
        client.create_stream("contact/one", exist_ok=True)
        _, port = client._portal.call(client._client._controller_client.endpoint_of("contact/one/0.#epoch.0"))
    refused = pytest.raises(
        ConnectionError, match="a segment store listens at this address: give the controller's address"
    )
    with penstock.connect(f"tcp://localhost:{port}", SETTINGS) as client, refused:
        client.create_stream("contact/two")


@pytest.fixture
def port_of_another_protocol() -> Iterator[int]:
    """The port of something that talks at once, in frames that no segment store has."""
    held = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                held.append(connection)
                connection.sendall(bytes.fromhex("0000040040000000") * 4)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield port
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)
    for connection in held:
        connection.close()


def test_another_protocol_at_the_address_is_reported_in_the_error_only(
    port_of_another_protocol: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A controller that is too busy to answer in time does, too; nothing is logged beside the error."""
    refused = pytest.raises(ConnectionError, match="the server there does not answer as a controller")
    with penstock.connect(f"tcp://127.0.0.1:{port_of_another_protocol}", SETTINGS) as client, refused:
        client.stream_exists("a/b")
    assert [record.message for record in caplog.records if "penstock" in record.name] == []


def test_another_service_at_the_address_is_identified_in_the_error(silent_port: int) -> None:
    refused = pytest.raises(ConnectionError, match="the server at this address is not a controller")
    with penstock.connect(f"tcp://127.0.0.1:{silent_port}", SETTINGS) as client, refused:
        client.stream_exists("a/b")


@pytest.mark.parametrize(("lease_s", "bound"), [(1, "min value is 10000"), (100_000, "max value is 600000")])
def test_a_lease_out_of_bounds_is_refused_at_once_with_the_bound(uri: str, lease_s: int, bound: str) -> None:
    # It was tried again for 9 s, then blamed on the controller.
    with penstock.connect(uri) as client:
        client.create_stream("contact/one", exist_ok=True)
        with pytest.raises(ValueError, match=bound):
            client.begin_transaction("contact/one", lease_s=lease_s)


def test_errors_come_without_those_of_grpc(uri: str) -> None:
    with penstock.connect(uri) as client, pytest.raises(penstock.NoSuchStreamError) as caught:
        client.stream_config("contact/missing")
    said = "".join(traceback.format_exception(caught.value))
    assert "RpcError" not in said
    assert "direct cause" not in said
    assert "During handling" not in said
