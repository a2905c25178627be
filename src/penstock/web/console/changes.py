"""`Change`: something that a page changes. It is shown with its effects, confirmed by typing a name, and reported.

Each change is shown with the command and the call of the REST interface that do the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from penstock.model.errors import AuthenticationError, PenstockError
from penstock.web.console.pages import Page, PageRequest
from penstock.web.console.snippets import Snippet, curl
from penstock.web.errors import refusal_of


@dataclass(frozen=True, slots=True)
class Field:
    """An input of a change: its name, label, value and help. `choices`: the values to select from; none: free text."""

    name: str
    label: str
    value: str = ""
    help: str = ""
    choices: Sequence[str] = ()
    is_needed: bool = False


@dataclass(frozen=True, slots=True)
class RestCall:
    """A call of the REST interface. `path` with its query, encoded; `body`: JSON, None: without a body."""

    method: str
    path: str
    body: object = None


@dataclass(frozen=True, slots=True)
class Change:
    """One change.

    Attributes:
        title: what it does, as ``Seal stream shop/orders``.
        target: what the user types to confirm it.
        back: address of the page to return to, with its name in `back_name`.
        fields: its inputs, with their values.
        is_ready: whether the inputs are complete, so that it can be confirmed.
        effects: what it changes, one sentence each.
        preview: rows of what is and what will be; a dry run.
        command: the command that does the same.
        rest: the calls of the REST interface that do the same.
        perform: does it, and returns the result in one sentence.
    """

    title: str
    target: str
    back: str
    back_name: str
    perform: Callable[[], Awaitable[str]]
    effects: Sequence[str] = ()
    command: str = ""
    rest: Sequence[RestCall] = ()
    fields: Sequence[Field] = ()
    is_ready: bool = True
    preview: Sequence[Sequence[str]] = ()
    preview_head: Sequence[str] = field(default=("", "now", "afterwards"))


async def change_page(request: PageRequest, change: Change) -> Page:
    """Return the page of a change; if the form was sent and confirmed, after performing it."""
    if not request.is_change:
        return _asked(request, change)
    if not change.is_ready:
        return _asked(request, change, "Fill in the fields first.", 400)
    typed = request.form.get("confirm", "").strip()
    if typed != change.target:
        return _asked(request, change, f"Nothing was changed: type {change.target} to confirm.", 400)
    try:
        result = await change.perform()
    except AuthenticationError:
        raise  # The browser asks for an account.
    except (PenstockError, TimeoutError) as error:
        refusal = refusal_of(error)
        is_unknown = refusal.status == 504
        values = {
            **_values(request, change), "result": "", "problem": refusal.message, "kind": refusal.error,
            "is_unknown": is_unknown,
        }  # fmt: skip
        return Page("changed.html", f"Not done: {change.title}", values, refusal.status)
    values = {**_values(request, change), "result": result, "problem": "", "kind": "", "is_unknown": False}
    return Page("changed.html", f"Done: {change.title}", values)


def _asked(request: PageRequest, change: Change, mistake: str = "", status: int = 200) -> Page:
    return Page("change.html", change.title, {**_values(request, change), "mistake": mistake}, status)


def _values(request: PageRequest, change: Change) -> dict[str, object]:
    return {
        "change": change,
        "snippets": [
            Snippet("Command", change.command),
            *(
                Snippet(
                    "REST" if len(change.rest) == 1 else f"REST, call {number}",
                    curl(request.origin, call.method, call.path, call.body, user=request.user),
                )
                for number, call in enumerate(change.rest, 1)
            ),
        ],
    }
