"""`AutoScaler`: splits segments whose load exceeds their stream's policy, and merges segments with little load.

Every controller queries all containers, and handles the streams that are assigned to it (`Buckets`).
It queries the segment stores for scale advice, and keeps almost no state: lost advice is repeated at the next query. A
scale is started like one of the API: under the stream's lock, announced, completed by any controller. See
``docs/auto-scaling.md``. Source: controller-internals 9.3 (AutoScaleTask).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.controller.metadata.pending_work import Subject, SubjectKind
from penstock.controller.metadata.records import EpochRecord, EpochTransition, ScaleOrder
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.ownership.buckets import Buckets
from penstock.controller.scaling.advice_cooldown import AdviceCooldown
from penstock.controller.scaling.decision import can_merge, neighbours, order_by_load
from penstock.controller.workflow_runner import WorkflowRunner
from penstock.controller.workflows.context import WorkflowContext
from penstock.controller.workflows.scale_stream import begin_scale
from penstock.model.errors import ConnectionLostError, InvalidNameError, NoSuchStreamError, PenstockError
from penstock.model.names import parse_segment_name, segment_name
from penstock.model.policies import Scaling
from penstock.model.routing import container_of
from penstock.model.scale_advice import ScaleAdvice, ScaleAdvisor, ScaleDirection
from penstock.runtime.bulk import for_each

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Loads:
    """Loads of one stream: hot segments by id, with the number of parts for each, and cold ones."""

    hot: dict[int, int] = field(default_factory=dict)
    cold: set[int] = field(default_factory=set)

    def take(self, segment: int, advice: ScaleAdvice) -> None:
        if advice.direction is ScaleDirection.UP:
            self.hot[segment] = advice.split_count
        else:
            self.cold.add(segment)


class AutoScaler:
    """See the module. `run` it as a task; it continues whatever error a stream or a store causes."""

    def __init__(
        self,
        advisor: ScaleAdvisor,
        context: WorkflowContext,
        runner: WorkflowRunner,
        container_count: int,
        buckets: Buckets,
    ) -> None:
        self._advisor = advisor
        self._context = context
        self._runner = runner
        self._container_count = container_count
        self._buckets = buckets
        self._settings = context.settings.auto_scaling
        self._mutes = AdviceCooldown(self._settings.mute_s, self._settings.mutes_max)
        #: Last errors of containers, by their ids: logged when they begin and when they end.
        self._problems: dict[int, str] = {}

    async def run(self) -> None:
        """Inspect loads until cancelled."""
        while True:
            await asyncio.sleep(self._settings.interval_s)
            await self.poll()

    async def poll(self) -> None:
        """Query every container once, and start the scales that their advice calls for. Raises no transient error."""
        self._mutes.forget_old(asyncio.get_running_loop().time())
        containers = range(self._container_count)
        answers = await for_each(containers, self._ask, self._settings.containers_at_once)
        streams: dict[tuple[str, str], _Loads] = {}
        for container, answer in zip(containers, answers, strict=True):
            if isinstance(answer, PenstockError):
                self._note_problem(container, str(answer))
                continue
            self._note_problem(container, "")
            for advice in answer:
                self._take(advice, streams)
        asked = list(streams)
        results = await for_each(asked, lambda name: self._serve(*name, streams[name]), self._settings.streams_at_once)
        for (scope, stream), result in zip(asked, results, strict=True):
            if isinstance(result, PenstockError):
                _logger.warning("stream %s/%s was not scaled by its load in this pass: %s", scope, stream, result)

    async def _ask(self, container: int, segments: Sequence[str] | None = None) -> Sequence[ScaleAdvice]:
        try:
            async with asyncio.timeout(self._settings.answer_timeout_s):
                return await self._advisor.scale_advice(container, segments)
        except TimeoutError as error:
            raise ConnectionLostError(
                f"container {container} did not report its scaling advice within {self._settings.answer_timeout_s:g} "
                "s (auto_scaling.answer_timeout_s)"
            ) from error

    def _note_problem(self, container: int, problem: str) -> None:
        known = self._problems.pop(container, "")
        if problem:
            self._problems[container] = problem
            if not known:
                _logger.warning("segments of container %d are not scaled by their load: %s", container, problem)
        elif known:
            _logger.info("segments of container %d are scaled by their load again", container)

    def _take(self, advice: ScaleAdvice, streams: dict[tuple[str, str], _Loads]) -> None:
        if self._mutes.is_muted(advice.segment, advice.direction, asyncio.get_running_loop().time()):
            return
        try:
            scope, stream, segment = parse_segment_name(advice.segment)
        except InvalidNameError:
            return  # A segment that is not part of a stream, with a policy that no controller set.
        if self._buckets.owned(scope, stream):
            streams.setdefault((scope, stream), _Loads()).take(segment, advice)

    async def _serve(self, scope: str, stream: str, loads: _Loads) -> None:
        """Start the scale that the loads of a stream call for, if any."""
        inspected = _Loads(dict(loads.hot), set(loads.cold))
        try:
            policy, current = await self._context.catalog.on_stream(scope, stream, _policy_and_epoch)
            if not loads.hot and can_merge(current, policy):
                await self._ask_neighbours(scope, stream, current, loads)
            begun = None
            if self._order(policy, current, loads) is not None:
                begun = await self._begin(scope, stream, loads)
        except NoSuchStreamError:
            return
        if begun is not None:
            _logger.info(
                "stream %s/%s scales by its load: epoch %d, %d segments become %d",
                scope, stream, begun.active_epoch + 1, len(begun.to_seal), len(begun.created),
            )  # fmt: skip
            return
        now_s = asyncio.get_running_loop().time()
        for segment in inspected.hot:
            self._mutes.mute(segment_name(scope, stream, segment), ScaleDirection.UP, now_s)
        for segment in inspected.cold:
            self._mutes.mute(segment_name(scope, stream, segment), ScaleDirection.DOWN, now_s)

    async def _ask_neighbours(self, scope: str, stream: str, current: EpochRecord, loads: _Loads) -> None:
        """Query which neighbours of cold segments are cold; without an answer they count as not cold."""
        loads.cold &= {segment.id for segment in current.segments}
        by_container: dict[int, dict[str, int]] = {}
        for segment in neighbours(current, loads.cold):
            name = segment_name(scope, stream, segment)
            by_container.setdefault(container_of(name, self._container_count), {})[name] = segment

        async def ask(container: int) -> Sequence[ScaleAdvice]:
            return await self._ask(container, list(by_container[container]))

        asked = list(by_container)
        answers = await for_each(asked, ask, self._settings.containers_at_once)
        for container, answer in zip(asked, answers, strict=True):
            if isinstance(answer, PenstockError):
                _logger.info("stream %s/%s: neighbours of cold segments are unknown: %s", scope, stream, answer)
                continue
            _take_known(answer, by_container[container], loads)

    async def _begin(self, scope: str, stream: str, loads: _Loads) -> EpochTransition | None:
        """Decide again, exclusively on the stream, and start the scale. It then completes in the background."""

        async def begin(tables: StreamTables) -> EpochTransition | None:
            policy, current = await _policy_and_epoch(tables)
            order = self._order(policy, current, loads)
            return None if order is None else await begin_scale(self._context, tables, order.to_seal, order.ranges)

        subject = Subject(SubjectKind.STREAM, scope, stream)
        begun = await self._runner.alone(subject, lambda: self._context.catalog.on_stream(scope, stream, begin))
        self._runner.finish_what_is_left(subject)
        return begun

    def _order(self, policy: Scaling, current: EpochRecord, loads: _Loads) -> ScaleOrder | None:
        count_max = self._context.settings.segments_per_stream_max
        return order_by_load(current, policy, loads.hot, loads.cold, segment_count_max=count_max)


def _take_known(answer: Sequence[ScaleAdvice], known: Mapping[str, int], loads: _Loads) -> None:
    for advice in answer:
        segment = known.get(advice.segment)
        if segment is not None and advice.direction is ScaleDirection.DOWN:
            loads.take(segment, advice)


async def _policy_and_epoch(tables: StreamTables) -> tuple[Scaling, EpochRecord]:
    return (await tables.configuration()).record.configuration.scaling, await tables.current_epoch()
