"""``penstock console``: the web console of a cluster, in the browser of this machine. See docs/guide/console.md."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import URI, AsJson, Uri


def console(
    uri: Uri = URI,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free one.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
    as_json: AsJson = False,
) -> None:
    """Open the web console of a cluster in a browser, and serve it until Ctrl-C.

    It is served to this machine only. For others: penstock web.
    """
    from penstock.cli.web import serve_web

    on_ready = None if no_browser else _open
    serve_web(uri, "127.0.0.1", port, as_json=as_json, on_ready=on_ready, command="penstock console")


def _open(address: str) -> None:
    """Open a page in the browser, if there is one; the address is printed anyway."""
    import webbrowser

    webbrowser.open(address)
