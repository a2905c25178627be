"""Changing a stream's configuration.

Order: announce; record with the new configuration, updating; state UPDATING; policy to the active segments; change of
the number of segments, if the policy requires it; tags; list among streams with a retention policy, if it has one;
record no longer updating; state ACTIVE; withdraw the announcement.
Source: controller-internals 3.2.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.controller.change_log import CHANGES, policies_text
from penstock.controller.metadata.pending_work import UpdateStream
from penstock.controller.metadata.records import StreamState
from penstock.controller.metadata.scale_plan import is_due
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.work_claims import WorkClaim
from penstock.controller.segment_requests import together
from penstock.controller.workflows.context import WorkflowContext
from penstock.controller.workflows.scale_stream import scale_evenly
from penstock.model.errors import StreamSealedError
from penstock.model.names import segment_name
from penstock.model.policies import StreamConfig


async def update_stream(context: WorkflowContext, tables: StreamTables, configuration: StreamConfig) -> None:
    """Replace the whole configuration. The caller holds the stream's lock and has finished pending work.

    If the number of segments differs from that of a fixed policy, or is below the minimum of another policy, the
    segments are replaced by that number of equal ranges. Raises `StreamSealedError`.
    """
    state = (await tables.state()).record.state
    if state in (StreamState.SEALING, StreamState.SEALED):
        raise StreamSealedError(f"stream {tables.name} is sealed; its configuration cannot change")
    order = UpdateStream(configuration)
    await resume_update(context, tables, await context.begin(tables.subject, order, tables.stream_id), order)


async def resume_update(
    context: WorkflowContext, tables: StreamTables, announced: WorkClaim, order: UpdateStream
) -> None:
    """Complete an announced update.

    Raises `StreamSealedError`, with nothing changed and the announcement withdrawn, when the stream was sealed before
    the announcement.
    """
    wanted = order.configuration
    found = await tables.configuration()
    state = await tables.state()
    if found.record.configuration != wanted or found.record.is_updating:
        if state.record.state in (StreamState.SEALING, StreamState.SEALED):
            await context.claims.withdraw(announced)
            raise StreamSealedError(f"stream {tables.name} was sealed before its configuration could change")
        dropped = {*found.record.removed_tags, *found.record.configuration.tags} - {*wanted.tags}
        record = replace(found.record, configuration=wanted, is_updating=True, removed_tags=tuple(sorted(dropped)))
        version = found.version
        # After the read: otherwise an overtaken controller could replace a later configuration by an old one.
        await context.claims.confirm(announced)
        if record != found.record:
            version = await tables.put_configuration(record, version)
        state = await tables.set_state(StreamState.UPDATING, of=state)
        # The next steps have no versions: a controller overtaken long ago must not push an old policy.
        await context.claims.confirm(announced)
        epoch = await tables.current_epoch()
        await together(
            context.segments.update_policy(segment_name(tables.scope, tables.stream, segment.id), wanted.scaling)
            for segment in epoch.segments
        )
        if is_due(wanted.scaling, epoch):
            await scale_evenly(context, tables, announced, epoch, wanted)
        await context.catalog.add_tags(tables.scope, tables.stream, wanted.tags)
        await context.catalog.remove_tags(tables.scope, tables.stream, record.removed_tags)
        if wanted.retention is not None:
            # After the configuration: a cycle that removes the stream from the list for lack of a policy then sees it.
            await context.retained.put(tables.scope, tables.stream, tables.stream_id)
        await tables.put_configuration(replace(record, is_updating=False, removed_tags=()), version)
        CHANGES.info("updated stream %s: %s", tables.name, policies_text(wanted))
    if state.record.state is StreamState.UPDATING:
        await tables.set_state(StreamState.ACTIVE, of=state)
    await context.claims.withdraw(announced)
