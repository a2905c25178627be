"""Logs as JSON of a whole run: each line parses, events have names, calls have ids, and no secret is written."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import grpc
import pytest

from penstock import connect
from penstock.rpc import controller_pb2 as pb
from support.standalone_process import StandaloneProcess

pytestmark = pytest.mark.e2e


def settings_file(directory: Path, text: str) -> str:
    file = directory / "penstock.toml"
    file.write_text(text)
    return str(file)


def test_each_line_parses_and_the_id_of_a_call_is_in_the_lines_of_its_change(tmp_path: Path) -> None:
    config = settings_file(tmp_path, 'log_format = "json"\n')
    with StandaloneProcess(tmp_path, "--config", config, segment_stores=2) as server:
        with grpc.insecure_channel(f"127.0.0.1:{server.controller_port}") as channel:
            create = channel.unary_unary(
                "/io.pravega.controller.stream.api.grpc.v1.ControllerService/createScope",
                request_serializer=pb.ScopeInfo.SerializeToString,
                response_deserializer=pb.CreateScopeStatus.FromString,
            )
            create(pb.ScopeInfo(scope="shop"), metadata=(("requestid", "4711"),), timeout=60)
        server.stop()
        lines = [json.loads(line) for line in server.log.splitlines()]
    assert {"server.ready", "change.done", "client.connected", "server.stopping"} <= {
        line.get("event") for line in lines
    }
    (created,) = [line for line in lines if line["msg"] == "created scope shop"]
    assert (created["call"], created["request_id"], created["event"]) == ("createScope", "4711", "change.done")
    assert {line.get("process") for line in lines} == {None, "store 0", "store 1"}
    for line in lines:
        assert line["ts"].endswith("Z")
        assert {"level", "logger", "msg"} <= set(line)


def test_the_id_of_a_call_is_in_the_lines_of_the_stores_that_work_for_it(tmp_path: Path) -> None:
    config = settings_file(tmp_path, 'log_format = "json"\nlog_level = "debug"\n')
    with StandaloneProcess(tmp_path, "--config", config, segment_stores=2) as server:
        with grpc.insecure_channel(f"127.0.0.1:{server.controller_port}") as channel:
            create = channel.unary_unary(
                "/io.pravega.controller.stream.api.grpc.v1.ControllerService/createScope",
                request_serializer=pb.ScopeInfo.SerializeToString,
                response_deserializer=pb.CreateScopeStatus.FromString,
            )
            create(pb.ScopeInfo(scope="shop"), metadata=(("requestid", "4711"),), timeout=60)
            create(pb.ScopeInfo(scope="audit"), metadata=(("requestid", "order-17"),), timeout=60)
        server.stop()
        lines = [json.loads(line) for line in server.log.splitlines()]
    stores = [line for line in lines if line.get("process") in ("store 0", "store 1")]
    for request_id in ("4711", "~83a428f80c"):
        found = [line for line in stores if line.get("request_id") == request_id]
        assert any(line["call"] == "UpdateTableEntries" for line in found), request_id
        assert all(line["msg"].startswith(f"request {request_id}: ") for line in found)
    (whole,) = [line for line in lines if line["msg"] == "created scope shop"]
    assert (whole["request_id"], whole.get("request_tag")) == ("4711", None)
    (hashed,) = [line for line in lines if line["msg"] == "created scope audit"]
    assert (hashed["request_id"], hashed["request_tag"]) == ("order-17", "~83a428f80c")


def test_no_secret_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings_file(tmp_path, 'log_format = "json"\nlog_level = "debug"\n')
    with StandaloneProcess(tmp_path, "--secure", "--config", config) as server:
        security = server.data_dir / "security"
        password = (security / "admin.password").read_text().strip()
        monkeypatch.setenv("PENSTOCK_USER", "admin")
        monkeypatch.setenv("PENSTOCK_PASSWORD", password)
        with connect(f"tls://localhost:{server.controller_port}", ca=security / "ca.crt") as client:
            client.create_stream("shop/orders")
            with client.event_writer("shop/orders") as writer:
                writer.write(b"event")
            with client.reader_group("shop/audit", ["shop/orders"]) as group, group.reader("one") as reader:
                assert reader.read(timeout_s=60) is not None
        monkeypatch.setenv("PENSTOCK_PASSWORD", "guessed-wrong")
        with (
            pytest.raises(Exception, match=r"credentials|password"),
            connect(f"tls://localhost:{server.controller_port}", ca=security / "ca.crt") as client,
        ):
            list(client.scopes())
        server.stop()
        log = server.log
    secrets = {password, "guessed-wrong", base64.b64encode(f"admin:{password}".encode()).decode()}
    for file in security.iterdir():
        if file.suffix in (".key", ".pem") or "key" in file.name:
            secrets |= {line for line in file.read_text().splitlines() if len(line) > 20 and "-----" not in line}
    assert len(secrets) > 4
    for secret in secrets:
        assert secret not in log
    # Signed tokens begin so.
    assert "eyJ" not in log
