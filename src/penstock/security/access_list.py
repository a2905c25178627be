"""`AccessList`: the permissions of one account, by patterns of resource names.

Source: controller-api 12.3.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from penstock.model.permissions import Permission
from penstock.security.errors import AccessEntryError

#: Length of the longest accepted pattern. Patterns come from an administrator's file.
_PATTERN_LENGTH_MAX = 1024


@dataclass(frozen=True, slots=True)
class AccessEntry:
    """A permission on all resources that match a pattern.

    The pattern is a regular expression for the whole name, in which every ``*`` means ``.*``, also after a dot.
    """

    pattern: str
    permission: Permission

    def matches(self, resource: str) -> bool:
        """Return whether the whole name matches."""
        return _compiled(self.pattern).fullmatch(resource) is not None

    def __str__(self) -> str:
        """Return the entry as it is written in an accounts file."""
        return f"{self.pattern},{self.permission.name}"


def parse_entry(text: str) -> AccessEntry:
    """Parse ``<pattern>,<permission>``. Raises `AccessEntryError`."""
    pattern, comma, name = text.rpartition(",")
    pattern, name = pattern.strip(), name.strip()
    if not comma or not pattern:
        raise AccessEntryError(f"{text!r}: write it as <pattern>,<NONE|READ|READ_UPDATE>")
    if name not in Permission.__members__:
        raise AccessEntryError(f"{text!r}: {name!r} is no permission: NONE, READ or READ_UPDATE")
    if len(pattern) > _PATTERN_LENGTH_MAX:
        raise AccessEntryError(f"{text[:80]!r}...: the pattern has more than {_PATTERN_LENGTH_MAX} characters")
    try:
        _compiled(pattern)
    except re.error as error:
        raise AccessEntryError(f"{text!r}: the pattern is no regular expression: {error}") from error
    return AccessEntry(pattern, Permission[name])


@dataclass(frozen=True, slots=True)
class AccessList:
    """Entries of one account. The first entry that matches a resource decides; without one there is no permission."""

    entries: Sequence[AccessEntry] = ()

    def permission(self, resource: str) -> Permission:
        """Return the permission for a resource."""
        return next((entry.permission for entry in self.entries if entry.matches(resource)), Permission.NONE)


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace("*", ".*"))


def literal_pattern(resource: str) -> str:
    """Return the pattern that matches only this resource: names of scopes and streams may contain dots."""
    return resource.replace(".", r"\.")
