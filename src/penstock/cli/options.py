"""Options and arguments that many commands have, so that they are called the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.moments import FORMS
from penstock.cli.names import complete_groups, complete_scopes, complete_streams
from penstock.runtime.settings import DEFAULT_URI, URI_VARIABLE

#: How a time becomes a position, for help texts.
TIME_ROUNDING = "A time is rounded down, by at most about 1 MiB of each segment, so that no newer event is missed."
#: What the options say that take a position in a stream.
POSITION_HELP = (
    f"'earliest', 'latest', a time ({FORMS}), noted:TIME for a time that writers noted, a stream cut as 'stream "
    f"describe' or Pravega's clients print it, or @FILE with a cut. {TIME_ROUNDING}"
)
#: The default of `Uri`.
URI = DEFAULT_URI

Uri = Annotated[str, typer.Option("--uri", envvar=URI_VARIABLE, help="The controller.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, including errors.")]
Tier2 = Annotated[
    str | None,
    typer.Option(
        help="Long-term storage: s3://bucket/prefix (gs://, az://), hdfs://host:port/path, or a directory. "
        "[default: tier2 in --data-dir]"
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Stream = Annotated[
    str,
    typer.Argument(metavar="STREAM", help="As SCOPE/STREAM.", show_default=False, autocompletion=complete_streams),
]
Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="As SCOPE/GROUP.", show_default=False, autocompletion=complete_groups)
]
Scope = Annotated[
    str, typer.Argument(metavar="SCOPE", help="Its name.", show_default=False, autocompletion=complete_scopes)
]
ScopeToList = Annotated[
    str | None,
    typer.Argument(
        metavar="SCOPE", help="Only in this scope.", show_default="all scopes", autocompletion=complete_scopes
    ),
]
