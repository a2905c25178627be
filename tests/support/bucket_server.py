"""Servers without a local disk: log and long-term storage are in one bucket of a real S3 server."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.server.standalone_process import StandaloneProcess
from support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server

#: Small, so that kills hit flushes, truncations and trims, too.
SETTINGS = """
[object_storage]
flush_bytes = 65536
flush_age_s = 0.5

[object_storage.store]
endpoint = "{endpoint}"
region = "us-east-1"
access_key_id = "{access_key}"
secret_access_key = "{secret_key}"

[object_log]
batch_interval_s = 0.02
truncate_interval_s = 0.5
trim_interval_s = 0.5
reserve_bytes = 1048576

[segment_store.container]
ownership_lease_s = {lease_s}
"""

Make = Callable[..., StandaloneProcess]


def bucket_options(s3_server: S3Server, directory: Path, *, lease_s: float = 2.0) -> tuple[str, ...]:
    """Return the options of servers with one log, in a bucket of its own. Their settings file is in `directory`."""
    if not s3_server.is_atomic:
        pytest.skip("versitygw replaces objects in one step only where files have extended attributes")
    name = s3_server.make_bucket(f"b{uuid.uuid4().hex[:12]}").bucket
    config = directory / "settings.toml"
    config.write_text(
        SETTINGS.format(endpoint=s3_server.endpoint, access_key=ACCESS_KEY, secret_key=SECRET_KEY, lease_s=lease_s)
    )
    return "--config", str(config), "--log", f"s3://{name}/log", "--tier2", f"s3://{name}/data"
