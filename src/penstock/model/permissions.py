"""`Permission`: what a principal may do with a resource. Resources have the names of Pravega's PDP-42, such as
``prn::/scope:shop/stream:orders``.

Source: controller-api 12.2.
"""

from __future__ import annotations

from enum import IntEnum

#: All scopes.
ROOT = "prn::/"


class Permission(IntEnum):
    """A permission for a resource; each includes the ones before it."""

    NONE = 0
    READ = 1
    READ_UPDATE = 2


def scope_resource(scope: str) -> str:
    """Return the resource name of a scope, which also covers the listings of its contents."""
    return f"{ROOT}scope:{scope}"


def account_resource(user: str) -> str:
    """Return the resource name of an account, for callers that open sessions for it."""
    return f"{ROOT}account:{user}"


def stream_resource(scope: str, stream: str) -> str:
    """Return the resource name of a stream."""
    return f"{scope_resource(scope)}/stream:{stream}"


def reader_group_resource(scope: str, group: str) -> str:
    """Return the resource name of a reader group."""
    return f"{scope_resource(scope)}/reader-group:{group}"


def table_resource(scope: str, table: str) -> str:
    """Return the resource name of a key-value table."""
    return f"{scope_resource(scope)}/key-value-table:{table}"
