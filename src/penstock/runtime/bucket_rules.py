"""`read_bucket_rules`: rules by which a bucket changes objects: versioning and lifecycle. For S3 only.

obstore has no request for these, so they are sent here, signed with AWS Signature Version 4 and a given key. Where
neither the settings nor the environment have a key (a machine's role), or the service or its policy refuses, the answer
is that it is unknown, and why.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from urllib.parse import urlsplit
from xml.etree import ElementTree

from penstock.runtime.objects import ObjectPlace, ObjectStoreSettings

#: Storage classes whose objects cannot be read at once.
_ARCHIVES = ("GLACIER", "DEEP_ARCHIVE")
_ANSWER_BYTES_MAX = 1 << 20
#: What a service answers that has no lifecycle rules for this bucket.
_NO_RULES = "NoSuchLifecycleConfiguration"


@dataclass(frozen=True, slots=True)
class BucketRules:
    """What was found of a bucket.

    Attributes:
        versioning: ``Enabled``, ``Suspended``, or empty: never enabled. None: unknown.
        harmful: lifecycle rules that delete or archive objects below the prefix, in words. None: unknown.
        unknown: what could not be found out, and why.
    """

    versioning: str | None = None
    harmful: tuple[str, ...] | None = None
    unknown: tuple[str, ...] = ()


def read_bucket_rules(place: ObjectPlace, settings: ObjectStoreSettings) -> BucketRules:
    """Return the rules of a bucket that concern objects below `place`. Blocks; raises nothing of the service's."""
    if place.scheme != "s3":
        return BucketRules(unknown=(f"versioning and lifecycle rules: not read from {place.scheme}:// buckets",))
    key = settings.access_key_id or os.environ.get("AWS_ACCESS_KEY_ID", "")
    secret = settings.secret_access_key or os.environ.get("AWS_SECRET_ACCESS_KEY", "")
    if not key or not secret:
        return BucketRules(unknown=("versioning and lifecycle rules: only read with an access key, not with a role",))
    request = _Request(place, settings, key, secret)
    versioning: str | None = None
    harmful: tuple[str, ...] | None = None
    unknown: list[str] = []
    try:
        versioning = _text(_parsed(request.get("versioning")), "Status")
    except (OSError, ElementTree.ParseError) as error:
        unknown.append(f"versioning: {_reason(error)}")
    try:
        harmful = harmful_rules(request.get("lifecycle"), f"{place.prefix}/" if place.prefix else "")
    except urllib.error.HTTPError as error:
        reason = _reason(error)
        if _NO_RULES in reason:
            harmful = ()
        else:
            unknown.append(f"lifecycle rules: {reason}")
    except (OSError, ElementTree.ParseError) as error:
        unknown.append(f"lifecycle rules: {_reason(error)}")
    return BucketRules(versioning, harmful, tuple(unknown))


def harmful_rules(document: bytes, prefix: str) -> tuple[str, ...]:
    """Return the rules of a lifecycle configuration that delete or archive objects with keys that begin with `prefix`.

    Rules for objects with S3's own tags are left out: the objects of a log have none.
    """
    found: list[str] = []
    for rule in _parsed(document).iter("Rule"):
        if _text(rule, "Status") != "Enabled" or next(rule.iter("Tag"), None) is not None:
            continue
        concerned = _text(rule, "Filter/And/Prefix") or _text(rule, "Filter/Prefix") or _text(rule, "Prefix")
        if not (prefix.startswith(concerned) or concerned.startswith(prefix)):
            continue
        name = f"{_text(rule, 'ID') or 'without a name'} (prefix {concerned!r})"
        if (expiry := rule.find("Expiration")) is not None:
            days, date = _text(expiry, "Days"), _text(expiry, "Date")
            if days or date:
                found.append(f"rule {name} deletes objects {f'after {days} days' if days else f'on {date}'}")
        for transition in rule.iter("Transition"):
            if (kind := _text(transition, "StorageClass")) in _ARCHIVES:
                found.append(f"rule {name} moves objects to {kind}, where they cannot be read")
    return tuple(found)


class _Request:
    """Signed requests for the configuration of one bucket."""

    def __init__(self, place: ObjectPlace, settings: ObjectStoreSettings, key: str, secret: str) -> None:
        environment = os.environ
        self._key, self._secret = key, secret
        self._token = settings.session_token or (
            "" if settings.access_key_id else environment.get("AWS_SESSION_TOKEN", "")
        )
        self._region = (
            settings.region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
        )
        endpoint = settings.endpoint or environment.get("AWS_ENDPOINT_URL") or environment.get("AWS_ENDPOINT") or ""
        if endpoint:
            self._url = f"{endpoint.rstrip('/')}/{place.bucket}"
        else:
            self._url = f"https://{place.bucket}.s3.{self._region}.amazonaws.com/"
        self._timeout_s = settings.request_timeout_s

    def get(self, subject: str) -> bytes:
        """Return the configuration of `subject`. Raises `OSError`."""
        address = urlsplit(self._url)
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        day, empty = stamp[:8], hashlib.sha256(b"").hexdigest()
        headers = {"host": address.netloc, "x-amz-content-sha256": empty, "x-amz-date": stamp}
        if self._token:
            headers["x-amz-security-token"] = self._token
        names = ";".join(sorted(headers))
        lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        canonical = f"GET\n{address.path or '/'}\n{subject}=\n{lines}\n{names}\n{empty}"
        scope = f"{day}/{self._region}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signing = f"AWS4{self._secret}".encode()
        for part in (day, self._region, "s3", "aws4_request"):
            signing = hmac.new(signing, part.encode(), hashlib.sha256).digest()
        signature = hmac.new(signing, text.encode(), hashlib.sha256).hexdigest()
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self._key}/{scope}, SignedHeaders={names}, Signature={signature}"
        )
        del headers["host"]
        request = urllib.request.Request(f"{self._url}?{subject}=", headers=headers)
        with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
            return bytes(answer.read(_ANSWER_BYTES_MAX))


def _parsed(document: bytes) -> ElementTree.Element:
    """Return a document of S3 without its namespace."""
    root = ElementTree.fromstring(document)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def _text(element: ElementTree.Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _reason(error: Exception) -> str:
    if not isinstance(error, urllib.error.HTTPError):
        return str(error)
    body = error.read(_ANSWER_BYTES_MAX)
    try:
        code = _text(_parsed(body), "Code")
    except ElementTree.ParseError:
        code = ""
    return f"the service answers {error.code} {code or error.reason}"
