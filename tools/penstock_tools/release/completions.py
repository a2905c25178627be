"""Completion scripts of ``penstock`` for bash, zsh and fish. Each calls the program."""

from __future__ import annotations

from typer._completion_shared import get_completion_script

#: Where each shell searches for the script of a program, below ``share``.
PLACES = {
    "bash": "bash-completion/completions/penstock",
    "zsh": "zsh/site-functions/_penstock",
    "fish": "fish/vendor_completions.d/penstock.fish",
}


def completion_scripts() -> dict[str, str]:
    """Return the text of each script by its path below ``share``."""
    return {place: _script(shell) for shell, place in PLACES.items()}


def _script(shell: str) -> str:
    script = get_completion_script(prog_name="penstock", complete_var="_PENSTOCK_COMPLETE", shell=shell)
    if shell == "zsh":
        # A file in zsh's function path is itself run for the first completion, so it must complete, not only register.
        script = script.replace("compdef _penstock_completion penstock", '_penstock_completion "$@"')
    return script.strip() + "\n"
