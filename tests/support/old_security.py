"""Makes the files of a server's security in `tests/data/old/security`, each with the code of an earlier commit.

    git archive COMMIT | tar x -C /tmp/old
    PYTHONPATH=/tmp/old/src python tests/support/old_security.py DATE-COMMIT.json

It has the accounts file, the file of token keys, tokens that they sign, and an audit log. It uses only what all of
these commits have. `tests/security/test_old_files.py` reads them with the code of today.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import tempfile
from pathlib import Path

#: Time of the tokens, in seconds, and how long they are valid.
NOW_S, TTL_S = 1_800_000_000, 600
#: Passwords by account; the account ``robot`` logs in with a certificate only.
PASSWORDS = {"admin": "open sesame", "ann": "caf\u00e9 au lait"}
#: Entries of access lists by account, the deciding one first.
ENTRIES = {
    "admin": ["prn::*,READ_UPDATE"],
    "ann": ["prn::/scope:shop/stream:orders,READ_UPDATE", "prn::/scope:shop,READ"],
    "robot": ["prn::/scope:metrics,READ_UPDATE"],
}
CALLS = ["createScope", "createStream", "deleteScope"]


def _random_bytes(length: int) -> bytes:
    """Return pseudo-random bytes that are the same each time."""
    return hashlib.shake_256(b"old files").digest(length)


async def _audit(path: Path) -> None:
    from penstock.runtime.runtime import real_runtime
    from penstock.security.audit_log import AuditEntry, AuditLog, AuditSettings

    runtime = real_runtime()
    log = AuditLog(path, AuditSettings(), runtime.work, lambda: NOW_S * 1000)
    await log.start()
    for number, call in enumerate(CALLS):
        log.record(
            AuditEntry(
                NOW_S * 1000 + number, "ann", "ipv4:10.0.0.1:5", call, "prn::/scope:shop",
                "refused" if call == "deleteScope" else "done", "SUCCESS", 1.5, str(number),
                {"request": {"scope": "shop"}},
            )
        )  # fmt: skip
    await log.stop()
    await runtime.work.close()


def main(target: Path) -> None:
    """Write an archive: texts of the files, and the tokens."""
    from penstock.model.permissions import Permission
    from penstock.security.access_list import parse_entry
    from penstock.security.accounts_file import AccountsFile
    from penstock.security.tokens import TokenKeys, TokenSigner

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        accounts = AccountsFile(folder / "passwd", _random_bytes)
        for account, entries in ENTRIES.items():
            accounts.add(account, PASSWORDS.get(account), [parse_entry(entry) for entry in entries])
        keys = [b"first " + b"k" * 64, b"second " + b"k" * 64]
        signer = TokenSigner(TokenKeys(keys), TTL_S, lambda: NOW_S)
        asyncio.run(_audit(folder / "audit.jsonl"))
        found = {
            "passwd": accounts.path.read_text(),
            "token.key": "".join(f"{key.decode()}\n" for key in keys),
            "tokens": {"client": signer.sign({"shop/orders": Permission.READ}), "server": signer.master()},
            "audit.jsonl": (folder / "audit.jsonl").read_text(),
        }
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
