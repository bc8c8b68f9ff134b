"""Totals of one query since its pipeline was started, added up from Spark's progress reports.

Spark also reports idle triggers, and polling from time to time misses batches. So idle reports are recognized, each
batch is counted once, and missed reports are taken from those that Spark keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from klamm.pipeline.sql.core.late_rows import SAMPLES_MAX, dropped_rows
from klamm.pipeline.sql.core.query_progress import lost_records, read_offsets, summarize_progress

BAD: Final = "bad."
"""The prefix of the observed counts of bad records; the policy and the stream follow."""


@dataclass(slots=True)
class QueryTotals:
    """The totals of one query."""

    last_summary: dict[str, Any] = field(default_factory=dict)
    done_batch: int = -1
    rows: int = 0
    batches: int = 0
    batch_ms: int = 0
    batch_done_ms: int | None = None
    bad: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    late: int = 0
    late_uncounted: int = 0
    """Rows, or groups of rows, that Spark has dropped and that could not be counted."""
    late_samples: list[str] = field(default_factory=list)
    """The newest rows that were late, as JSON."""
    position: dict[tuple[str, int], int] = field(default_factory=dict)
    _newest: tuple[str, int] | None = None

    def take(
        self, last: Mapping[str, Any] | None, recent: Callable[[], Sequence[Mapping[str, Any]]], now_ms: int
    ) -> list[dict[str, Any]]:
        """Add new reports; return a summary of each new batch. `recent` returns the last reports that Spark keeps."""
        if last is None or self._key(last) == self._newest:
            return []
        # lastProgress alone is enough while no batch is missed, which is the usual case.
        reports: Sequence[Mapping[str, Any]] = [last]
        # Some batches ended between two polls.
        if last.get("batchId", 0) > self.done_batch + 1:
            reports = [report for report in recent() if self._newest is None or self._key(report) > self._newest] or [
                last
            ]
        batches = []
        for report in reports:
            self._newest = self._key(report)
            self.last_summary = summarize_progress(report, now_ms)
            self.position = read_offsets(report)
            self.lost = max(self.lost, lost_records(report))
            if _executed(report):
                batches.append(self._count(report, now_ms))
        return batches

    def _count(self, progress: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
        batch: int = progress.get("batchId", self.done_batch)
        # A query that restarts repeats its last batch under the same number.
        self.done_batch = max(self.done_batch, batch)
        self.batches += 1
        self.rows += progress.get("numInputRows") or 0
        self.batch_ms += self.last_summary["batch_ms"] or 0
        self.batch_done_ms = now_ms
        bad = bad_records(progress)
        for policy, count in bad.items():
            self.bad[policy] = self.bad.get(policy, 0) + count
        dropped = dropped_rows(progress)
        return {
            **self.last_summary,
            **({"bad_records": sum(bad.values())} if bad else {}),
            **({"late_dropped": dropped} if dropped else {}),
        }

    def add_late(self, count: int, samples: Sequence[str]) -> None:
        """Add the rows that a batch has left out; `samples` are some of them, newest first."""
        self.late += count
        self.late_samples = [*samples, *self.late_samples][:SAMPLES_MAX]

    def add_uncounted(self, dropped: int) -> None:
        """Add what Spark has dropped in a batch whose late rows could not be counted."""
        self.late_uncounted += dropped

    @staticmethod
    def _key(progress: Mapping[str, Any]) -> tuple[str, int]:
        """Return a key that orders reports: Spark's timestamps sort as text, batches of one millisecond by number."""
        return str(progress.get("timestamp", "")), progress.get("batchId", -1)

    def status(self) -> dict[str, Any]:
        """Return the totals for `klamm pipeline show` and for metrics."""
        return {
            **self.last_summary,
            "rows_total": self.rows,
            "batches_total": self.batches,
            "batch_ms_total": self.batch_ms,
            "batch_done_ms": self.batch_done_ms,
            "bad_records": dict(self.bad),
            "lost_records": self.lost,
            "late_rows": self.late,
            "late_uncounted": self.late_uncounted,
            "late_samples": list(self.late_samples),
        }


def _executed(progress: Mapping[str, Any]) -> bool:
    """Whether a report is of a batch that ran; an idle report has the number of the next batch."""
    return bool(progress.get("numInputRows")) or "addBatch" in (progress.get("durationMs") or {})


def bad_records(progress: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of bad records of a batch, by policy."""
    counts_by_policy: dict[str, int] = {}
    for name, row in (progress.get("observedMetrics") or {}).items():
        if name.startswith(BAD):
            # A Row from Spark, a dict in tests and from the JDBC poller.
            counts = row.asDict() if hasattr(row, "asDict") else row
            policy = name.split(".")[1]
            counts_by_policy[policy] = counts_by_policy.get(policy, 0) + int(counts.get("records") or 0)
    return counts_by_policy
