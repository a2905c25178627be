"""What can be changed of a cluster on several machines: which store runs which containers."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.client.controller.administration import AssignmentChange, ContainerMove
from penstock.client.low_level import controller_of
from penstock.web.console.changes import Change, Field, RestCall, change_page
from penstock.web.console.pages import Answer, PageRequest, PageRoute, address
from penstock.web.console.snippets import command, rest_path
from penstock.web.errors import BadRequestError

_BACK = ("Cluster", "cluster")
_SLOWLY = "The leader hands containers over a few at a time. Meanwhile a container pauses for moments."


async def _page(
    request: PageRequest,
    change: AssignmentChange,
    title: str,
    target: str,
    words: Sequence[str],
    effects: Sequence[str],
    *,
    store: str = "",
    container: int | None = None,
    source: str = "",
    fields: Sequence[Field] = (),
    is_ready: bool = True,
) -> Answer:
    controller = controller_of(request.client)
    planned: list[ContainerMove] = []
    if is_ready and not request.is_change:
        planned = await controller.change_assignment(change, store, container or 0, is_dry=True)

    async def perform() -> str:
        moves = await controller.change_assignment(change, store, container or 0)
        others = "container moves" if len(moves) == 1 else "containers move"
        return f"{title}: done. {len(moves) or 'No'} {'other ' if container is not None else ''}{others}."

    body: dict[str, object] = {"change": change.name.lower()}
    body |= {"store": store} if store else {}
    body |= {} if container is None else {"container": container}
    preview = [(f"container {each.container_id}", each.source or "no store", each.target) for each in planned]
    if container is not None and is_ready:
        preview.insert(0, (f"container {container}", source or "no store", store))
    return await change_page(request, Change(
        title, target, address(_BACK[1]), _BACK[0], perform,
        effects=[*effects, *(() if preview or not is_ready else ("No container moves.",))],
        command=command("penstock", "cluster", *words),
        rest=[RestCall("POST", rest_path("cluster", "assignment"), body)],
        fields=fields, is_ready=is_ready, preview=preview, preview_head=("container", "now", "afterwards"),
    ))  # fmt: skip


async def drain_store(request: PageRequest) -> Answer:
    """Have a store emptied."""
    store = request.path["store"]
    return await _page(
        request, AssignmentChange.DRAIN, f"Drain store {store}", store, ("drain", store),
        ["All containers of the store go to the others, and it gets none until the drain ends.", _SLOWLY], store=store,
    )  # fmt: skip


async def undrain_store(request: PageRequest) -> Answer:
    """End a drain."""
    store = request.path["store"]
    return await _page(
        request, AssignmentChange.UNDRAIN, f"Undrain store {store}", store, ("undrain", store),
        ["The store gets its part of the containers again.", _SLOWLY], store=store,
    )  # fmt: skip


async def move_container(request: PageRequest) -> Answer:
    """Assign a container to another store."""
    text = request.path["container"]
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise BadRequestError(f"{text!r} is no number of a container")
    found = await controller_of(request.client).members()
    store = request.text("store")
    return await _page(
        request, AssignmentChange.MOVE, f"Move container {text}", text, ("move", text, store),
        ["If the leader would move it back, to even the stores out, another container takes its place."],
        store=store, container=int(text), is_ready=bool(store),
        source=next((each.assigned for each in found.containers if each.id == int(text)), ""),
        fields=[Field("store", "to store", store, choices=[each.name for each in found.stores], is_needed=True)],
    )  # fmt: skip


async def balance_stores(request: PageRequest) -> Answer:
    """Even out the stores."""
    return await _page(
        request, AssignmentChange.BALANCE, "Balance all stores", "balance", ("balance",),
        ["All stores get their part of the containers at once, instead of a few at a time."],
    )  # fmt: skip


ROUTES: tuple[PageRoute, ...] = (
    PageRoute("/cluster/stores/{store}/change/drain", drain_store, is_form=True),
    PageRoute("/cluster/stores/{store}/change/undrain", undrain_store, is_form=True),
    PageRoute("/cluster/containers/{container}/change/move", move_container, is_form=True),
    PageRoute("/cluster/change/balance", balance_stores, is_form=True),
)
