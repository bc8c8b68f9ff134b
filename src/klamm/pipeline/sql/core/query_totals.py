"""What one query has done since its pipeline was started, added up from what Spark tells of each batch.

Spark tells of idle looks for data, too, and a look from time to time does not see every batch. So batches are told
from idle looks, counted once, and fetched where some were missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from klamm.pipeline.sql.core.query_progress import read_offsets, summarize_progress

BAD: Final = "bad."
"""What observed counts of bad records begin with; the policy follows, and the stream."""


@dataclass(slots=True)
class QueryTotals:
    """One query's numbers. Of a query that never did anything there are zeros."""

    told: dict[str, Any] = field(default_factory=dict)
    done_batch: int = -1
    rows: int = 0
    batches: int = 0
    batch_ms: int = 0
    batch_done_ms: int | None = None
    bad: dict[str, int] = field(default_factory=dict)
    position: dict[tuple[str, int], int] = field(default_factory=dict)
    _newest: tuple[str, int] | None = None

    def take(
        self, last: Mapping[str, Any] | None, recent: Callable[[], Sequence[Mapping[str, Any]]], now_ms: int
    ) -> list[dict[str, Any]]:
        """Add what is new; returns the facts of each new batch. `recent` are the last ones Spark remembers."""
        if last is None or self._key(last) == self._newest:
            return []
        new: Sequence[Mapping[str, Any]] = [last]
        if last.get("batchId", 0) > self.done_batch + 1:
            new = [each for each in recent() if self._newest is None or self._key(each) > self._newest] or [last]
        found = []
        for each in new:
            self._newest = self._key(each)
            self.told = summarize_progress(each, now_ms)
            self.position = read_offsets(each)
            if _executed(each):
                found.append(self._count(each, now_ms))
        return found

    def _count(self, progress: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
        batch: int = progress.get("batchId", self.done_batch)
        self.done_batch = max(self.done_batch, batch)
        self.batches += 1
        self.rows += progress.get("numInputRows") or 0
        self.batch_ms += self.told["batch_ms"] or 0
        self.batch_done_ms = now_ms
        bad = bad_records(progress)
        for policy, count in bad.items():
            self.bad[policy] = self.bad.get(policy, 0) + count
        return {**self.told, **({"bad_records": sum(bad.values())} if bad else {})}

    @staticmethod
    def _key(progress: Mapping[str, Any]) -> tuple[str, int]:
        """Spark's times are text that sorts; a batch that was begun in the same millisecond has another number."""
        return str(progress.get("timestamp", "")), progress.get("batchId", -1)

    def status(self) -> dict[str, Any]:
        """For `klamm pipeline show`, and for metrics."""
        return {
            **self.told,
            "rows_total": self.rows,
            "batches_total": self.batches,
            "batch_ms_total": self.batch_ms,
            "batch_done_ms": self.batch_done_ms,
            "bad_records": dict(self.bad),
        }


def _executed(progress: Mapping[str, Any]) -> bool:
    """Whether a batch ran; what Spark tells when there is nothing to do names the batch that comes next."""
    return bool(progress.get("numInputRows")) or "addBatch" in (progress.get("durationMs") or {})


def bad_records(progress: Mapping[str, Any]) -> dict[str, int]:
    """How many records of a batch could not be read, by policy."""
    found: dict[str, int] = {}
    for name, row in (progress.get("observedMetrics") or {}).items():
        if name.startswith(BAD):
            counts = row.asDict() if hasattr(row, "asDict") else row
            policy = name.split(".")[1]
            found[policy] = found.get(policy, 0) + int(counts.get("records") or 0)
    return found
