"""Reads the progress report that Spark makes of a batch: numbers for the status, and the offsets that were read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from klamm.pipeline.core.offsets import LOST

PipelineStatus = Mapping[str, Any]
"""What a run publishes of itself and of its queries, as JSON has it; the views read it."""


def summarize_progress(progress: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    """Return the numbers of a query's progress for its status."""
    lag: int | None = None
    for source in progress.get("sources") or ():
        unread = lag_records(source.get("endOffset"), source.get("latestOffset"))
        if unread is not None:
            lag = (lag or 0) + unread
    event_times = progress.get("eventTime") or {}
    newest_ms = _millis(event_times.get("max"))
    operators = progress.get("stateOperators") or ()
    watermark = event_times.get("watermark")
    if watermark == "1970-01-01T00:00:00.000Z":  # what Spark reports before there is one
        watermark = None
    late_ms = None if newest_ms is None else max(now_ms - newest_ms, 0)
    return {
        "batch": progress.get("batchId"),
        "rows": progress.get("numInputRows"),
        "rows_per_s": round(float(progress.get("processedRowsPerSecond") or 0.0), 1),
        "lag_records": lag,
        "lag_ms": 0 if lag == 0 else late_ms,
        "watermark": watermark,
        "watermark_ms": _millis(watermark),
        "state_rows": sum(operator.get("numRowsTotal", 0) for operator in operators),
        "state_bytes": sum(operator.get("memoryUsedBytes", 0) for operator in operators),
        "batch_ms": (progress.get("durationMs") or {}).get("triggerExecution"),
        # Of captures of databases only.
        **{name: progress[name] for name in ("detail", "slot_lag_bytes") if progress.get(name) is not None},
    }


def read_offsets(progress: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """Return how far a query has read its topics; the smaller offset when it reads a topic twice."""
    offsets: dict[tuple[str, int], int] = {}
    for source in progress.get("sources") or ():
        for (topic, part), offset in (_offsets(source.get("endOffset")) or {}).items():
            if part.isdecimal():
                partition = topic, int(part)
                # A query that reads a topic twice is as far as its slower source.
                offsets[partition] = min(offset, offsets.get(partition, offset))
    return offsets


def lost_records(progress: Mapping[str, Any]) -> int:
    """Return how many records a query went on without, since it began; its positions count them."""
    lost = 0
    for source in progress.get("sources") or ():
        end = source.get("endOffset")
        try:
            position = json.loads(end) if isinstance(end, str) else end
        except ValueError:
            continue
        if isinstance(position, dict):
            lost += int((position.get(LOST) or {}).get("records", 0))
    return lost


def lag_records(end: Any, latest: Any) -> int | None:
    """Return the number of offsets between two positions of `format("klamm")`; None for another source."""
    end_offsets, latest_offsets = _offsets(end), _offsets(latest)
    if end_offsets is None or latest_offsets is None:
        return None
    return sum(max(offset - end_offsets.get(partition, 0), 0) for partition, offset in latest_offsets.items())


def _offsets(position: Any) -> dict[tuple[str, str], int] | None:
    # Spark reports positions as JSON text, the JDBC poller as integers.
    if isinstance(position, str):
        try:
            position = json.loads(position)
        except ValueError:
            return None
    if not isinstance(position, dict):
        return None
    return {
        (topic, part): offset
        for topic, parts in position.items()
        if isinstance(parts, dict)
        for part, offset in parts.items()
        # The topic ids beside the offsets ("#ids") are text.
        if isinstance(offset, int)
    }


def _millis(text: str | None) -> int | None:
    if not text:
        return None
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None
