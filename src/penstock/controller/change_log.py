"""`CHANGES`: the logger of what controllers have changed; one line at INFO for each change that has ended.

A change is logged by the controller that brings it to its end, after its last write and before its announcement goes.
A crash between the two repeats the line.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from penstock.model.policies import RetentionKind, Scaling, ScalingKind, StreamConfig

CHANGES: logging.Logger = logging.getLogger(__name__)

#: Segments, streams or tags that a line names.
_NAMED_MAX = 8
_RATES = {ScalingKind.BY_EVENT_RATE: "events/s", ScalingKind.BY_DATA_RATE: "kB/s"}


def policies_text(config: StreamConfig) -> str:
    """Return a stream's policies and tags for a line of the log."""
    parts = [_scaling_text(config.scaling)]
    if (kept := config.retention) is not None:
        unit = "ms" if kept.kind is RetentionKind.BY_TIME else "bytes"
        parts.append(f"keeps {kept.min_limit} {unit}")
    if config.tags:
        parts.append(f"tags {', '.join(config.tags[:_NAMED_MAX])}")
    return "; ".join(parts)


def _scaling_text(scaling: Scaling) -> str:
    if scaling.kind is ScalingKind.FIXED:
        return "1 segment" if scaling.min_segments == 1 else f"{scaling.min_segments} segments"
    return f"{scaling.min_segments} segments or more, {scaling.target_rate} {_RATES[scaling.kind]} each"


def cut_text(cut: Mapping[int, int]) -> str:
    """Return a stream cut for a line of the log: offsets by segment id, those of the first segments."""
    return _shortened([f"{segment}: {cut[segment]}" for segment in sorted(cut)[:_NAMED_MAX]], len(cut))


def names_text(names: Sequence[object]) -> str:
    """Return names or ids for a line of the log, the first ones."""
    return _shortened([str(name) for name in names[:_NAMED_MAX]], len(names))


def _shortened(shown: Sequence[str], count: int) -> str:
    rest = f" and {count - len(shown)} more" if count > len(shown) else ""
    return ", ".join(shown) + rest
