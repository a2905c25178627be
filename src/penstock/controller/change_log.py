"""`CHANGES`: the logger of changes made by controllers; one line at INFO for each completed change.

A change is logged by the controller that completes it, after its last write and before its announcement is removed.
A crash between the two repeats the line.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from penstock.model.policies import RetentionKind, Scaling, ScalingKind, StreamConfig

CHANGES: logging.Logger = logging.getLogger(__name__)

#: Maximum number of segments, streams or tags named in a line.
_NAMED_MAX = 8
_RATES = {ScalingKind.BY_EVENT_RATE: "events/s", ScalingKind.BY_DATA_RATE: "kB/s"}


def policies_text(config: StreamConfig) -> str:
    """Return a stream's policies and tags for a log line."""
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
    """Return a stream cut for a log line: the offsets of the first segments, by segment id."""
    return _shortened([f"{segment}: {cut[segment]}" for segment in sorted(cut)[:_NAMED_MAX]], len(cut))


def names_text(names: Sequence[object]) -> str:
    """Return the first names or ids for a log line."""
    return _shortened([str(name) for name in names[:_NAMED_MAX]], len(names))


def _shortened(shown: Sequence[str], count: int) -> str:
    rest = f" and {count - len(shown)} more" if count > len(shown) else ""
    return ", ".join(shown) + rest
