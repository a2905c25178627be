"""Settings files of Pravega's standalone server."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.model.errors import InvalidArgumentError
from penstock.runtime.settings import load_settings
from penstock.server.pravega_settings import parse_properties, read_pravega_settings
from penstock.server.settings import StandaloneSettings

FILE = r"""
# Pravega's own comments.
! Also a comment.
singlenode.security.tls.enable=true
singlenode.security.tls.certificate.location: /keys/server.crt
singlenode.security.tls.privateKey.location = /keys/server.key
singlenode.security.auth.enable true
singlenode.security.auth.pwdAuthHandler.accountsDb.location=/keys/\
    passwd
singlenode.security.auth.credentials.username=admin
controller.security.auth.delegationToken.signingKey.basis=a long secret=with signs
controller.security.auth.delegationToken.ttl.seconds=300
controller.security.auth.readerGroupStreams.writesWithReadPermissions.enable=false
singlenode.controller.rpc.port=19090
"""


def test_names_of_pravega_become_settings(tmp_path: Path) -> None:
    (tmp_path / "standalone-config.properties").write_text(FILE)
    found = read_pravega_settings(tmp_path / "standalone-config.properties")
    settings = load_settings(StandaloneSettings, flags=found.values)
    assert settings.controller_port == 19090
    security = settings.security
    assert (security.tls, security.auth, security.token_ttl_s) == ("on", "on", 300)
    assert (security.certificate, security.private_key) == ("/keys/server.crt", "/keys/server.key")
    assert security.accounts == "/keys/passwd"
    assert not security.readers_write_group_state
    assert found.token_key == "a long secret=with signs"
    assert found.ignored == ("singlenode.security.auth.credentials.username",)
    assert "a long secret" not in repr(found)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("singlenode.security.tls.keyStore.location=/k/server.keystore.jks", "Java key store"),
        ("controller.security.auth.delegationToken.ttl.seconds=soon", "expected a number"),
        ("data_dir=/data", "no setting of Pravega"),
    ],
)
def test_unusable_properties_are_refused(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "file").write_text(line)
    with pytest.raises(InvalidArgumentError, match=message):
        read_pravega_settings(tmp_path / "file")


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        read_pravega_settings(tmp_path / "absent")


def test_properties_are_read_as_java_reads_them() -> None:
    assert parse_properties("a=1\na = 2\nb\\:c:d=e\n  f\\\n   g\n#x\nh=i\\\\\nlast=\\") == {
        "a": "2", "b:c": "d=e", "fg": "", "h": "i\\", "last": "",
    }  # fmt: skip
