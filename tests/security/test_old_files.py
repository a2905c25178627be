"""Accounts, token keys, tokens and audit logs of earlier commits are read and continued by the code of today.

`tests/support/old_security.py` made them, and says what is in them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from penstock.model.errors import TokenExpiredError, TokenRefusedError
from penstock.model.permissions import Permission
from penstock.runtime.runtime import real_runtime
from penstock.security.access_list import parse_entry
from penstock.security.accounts_file import AccountsFile
from penstock.security.audit_log import AuditEntry, AuditLog, AuditSettings
from penstock.security.secrets_directory import read_token_keys
from penstock.security.tokens import TokenKeys, TokenVerifier
from support.old_security import CALLS, ENTRIES, NOW_S, PASSWORDS, TTL_S

ARCHIVES = sorted((Path(__file__).parents[1] / "data" / "old" / "security").glob("*.json"))


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.stem)
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, dict[str, str]]:
    """The tokens of an archive; its files are in `tmp_path`."""
    found = json.loads(request.param.read_text())
    for name in ("passwd", "token.key", "audit.jsonl"):
        (tmp_path / name).write_text(found[name])
        (tmp_path / name).chmod(0o600)
    return {"tokens": found["tokens"]}


@pytest.mark.usefixtures("archive")
def test_accounts_have_their_passwords_and_permissions_and_can_be_changed(tmp_path: Path) -> None:
    file = AccountsFile(tmp_path / "passwd", os.urandom)
    accounts = file.read().by_name
    assert {name: [str(entry) for entry in account.access.entries] for name, account in accounts.items()} == ENTRIES
    for name, account in accounts.items():
        assert (account.password is not None) == (name in PASSWORDS)
        if account.password is not None:
            assert account.password.verify(PASSWORDS[name])
            assert not account.password.verify("other")
    lines = file.path.read_text().splitlines()
    file.grant("robot", parse_entry("prn::/scope:shop,READ"))
    assert file.path.read_text().splitlines()[:2] == lines[:2], "the other accounts' lines stay as they are"
    assert [str(entry) for entry in file.read().by_name["robot"].access.entries] == [
        "prn::/scope:shop,READ", *ENTRIES["robot"],
    ]  # fmt: skip


def test_tokens_are_accepted_with_the_keys_of_their_time(archive: dict[str, dict[str, str]], tmp_path: Path) -> None:
    keys = read_token_keys(tmp_path / "token.key")
    tokens = archive["tokens"]
    verifier = TokenVerifier(keys, lambda: NOW_S + TTL_S)
    granted = verifier.verify(tokens["client"])
    assert granted.permission("shop/orders/0.#epoch.0") is Permission.READ
    assert granted.permission("shop/other/0.#epoch.0") is Permission.NONE
    assert verifier.verify(tokens["server"]).is_master()
    with pytest.raises(TokenExpiredError):
        TokenVerifier(keys, lambda: NOW_S + TTL_S + 60).verify(tokens["client"])
    with pytest.raises(TokenRefusedError):
        TokenVerifier(TokenKeys([b"another key " * 8]), lambda: NOW_S).verify(tokens["client"])


@pytest.mark.usefixtures("archive")
async def test_an_audit_log_is_continued_and_its_lines_stay(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    before = path.read_text()
    runtime = real_runtime()
    log = AuditLog(path, AuditSettings(), runtime.work, lambda: NOW_S * 1000)
    await log.start()
    log.record(AuditEntry(NOW_S * 1000, "ann", "ipv4:10.0.0.1:5", "sealStream", "prn::/scope:shop", "done", "SUCCESS"))
    await log.stop()
    await runtime.work.close()
    text = path.read_text()
    assert text.startswith(before)
    entries = [json.loads(line) for line in text.splitlines()]
    assert [entry["call"] for entry in entries] == [*CALLS, "sealStream"]
    assert all(set(entries[-1]) <= set(entry) for entry in entries[:-1]), "fields that are there today were there"
