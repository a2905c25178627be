"""Reader groups without readers: the positions of programs that read in another way, known by their names."""

from __future__ import annotations

import re

#: The end of the name of a streaming query's group, as `penstock.spark.subscription` makes it.
_QUERY = re.compile(r".+-[0-9a-f]{8}")
#: The beginning of the name of an export's group, as `penstock.jobs.export_hold` makes it.
_EXPORT = "export-"


def subscriber_kind(group: str) -> str:
    """Return which program a group (``scope/group``) is by its name: Spark query, export, or empty for readers."""
    name = group.partition("/")[2]
    if name.startswith(_EXPORT):
        return "export"
    return "Spark query" if _QUERY.fullmatch(name) else ""
