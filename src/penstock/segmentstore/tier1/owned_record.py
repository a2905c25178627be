"""`OwnedRecord`: what records of logs in buckets and in BookKeeper share: owner, state and start of a log.

A record is one line of JSON, and one with the checksum of the first. Formats: docs/formats.md, "Container records",
"Records of logs in BookKeeper" and "Identity and server of a log in a bucket".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError, LogIdentityError
from penstock.segmentstore.later_format import version_error
from penstock.segmentstore.tier1.log_owner import TOKEN_LENGTH
from penstock.segmentstore.tier1.log_records import EPOCH_VERSION

_REASON_LENGTH_MAX = 8 * 1024
_CHECKSUM_LENGTH = 8


def encode_record(version: int, fields: Mapping[str, object]) -> bytes:
    """Return a record of a format version."""
    body = json.dumps({"v": version, **fields}).encode() + b"\n"
    return body + b"%08x\n" % crc32c(body, 0)


def decode_record(data: bytes, path: str, version: int) -> dict[str, Any]:
    """Return the fields of a record. Raises `CorruptionError`, `LaterVersionError`."""
    body, checksum = data[: -_CHECKSUM_LENGTH - 1], data[-_CHECKSUM_LENGTH - 1 :]
    if checksum != b"%08x\n" % crc32c(body, 0):
        raise CorruptionError(path, max(len(body), 0), "the checksum does not match: it was edited or damaged")
    fields: dict[str, Any] = json.loads(body)
    if fields["v"] != version:
        raise version_error(path, fields["v"], (version,))
    return fields


@dataclass(frozen=True, slots=True)
class OwnedRecord:
    """See the module.

    Attributes:
        nonce: 16 bytes, new with each change: its writer recognises by it whether its change was made.
        epoch: how often the log was opened.
        owner: token of the process that opened it last, see `LogOwner`.
        is_enabled: whether it may be opened; `reason`: why not.
        is_settled: no incarnation before the owner's can answer reads any more.
        is_released: the owner has closed the log cleanly, and the end of each part is recorded.
        truncation: frames at or before this address are forgotten; 0: none.
        next_ordinal: of the part that is added next.
        log_version: format version of all that the log leads to, see docs/formats.md, "The log version".
    """

    container_id: int
    cluster_id: str
    nonce: bytes
    epoch: int = 0
    owner: bytes = bytes(TOKEN_LENGTH)
    is_enabled: bool = True
    reason: str = ""
    is_settled: bool = True
    is_released: bool = False
    truncation: int = 0
    next_ordinal: int = 1
    log_version: int = EPOCH_VERSION

    def encode_with(self, version: int, parts: Mapping[str, object]) -> bytes:
        """Return the record, which ends with the parts of the log."""
        return encode_record(
            version,
            {
                "log_version": self.log_version,
                "nonce": self.nonce.hex(),
                "cluster": self.cluster_id,
                "container": self.container_id,
                "enabled": self.is_enabled,
                "reason": self.reason[:_REASON_LENGTH_MAX],
                "epoch": self.epoch,
                "owner": self.owner.hex(),
                "settled": self.is_settled,
                "released": self.is_released,
                "truncation": self.truncation,
                "next_ordinal": self.next_ordinal,
                **parts,
            },
        )


def owned_fields(fields: Mapping[str, Any], path: str, container_id: int, cluster_id: str) -> dict[str, Any]:
    """Return the arguments of `OwnedRecord` in the fields of a record. `cluster_id`: empty accepts any cluster.

    Raises `CorruptionError`, `LaterVersionError`, `LogIdentityError`.
    """
    if fields["log_version"] != EPOCH_VERSION:
        raise version_error(path, fields["log_version"], (EPOCH_VERSION,), "log version")
    if cluster_id and fields["cluster"] != cluster_id:
        raise LogIdentityError(path, found=fields["cluster"], expected=cluster_id)
    if fields["container"] != container_id:
        raise CorruptionError(path, 0, f"it is the record of container {fields['container']}")
    return {
        "container_id": container_id,
        "cluster_id": fields["cluster"],
        "nonce": bytes.fromhex(fields["nonce"]),
        "epoch": fields["epoch"],
        "owner": bytes.fromhex(fields["owner"]),
        "is_enabled": fields["enabled"],
        "reason": fields["reason"],
        "is_settled": fields["settled"],
        "is_released": fields["released"],
        "truncation": fields["truncation"],
        "next_ordinal": fields["next_ordinal"],
    }
