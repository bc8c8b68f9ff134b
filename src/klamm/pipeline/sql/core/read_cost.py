"""What reading a query's topics from the beginning costs: how many offsets, and for how long. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_MS_PER_S: Final = 1000


@dataclass(frozen=True, slots=True)
class ReadCost:
    """The offsets of a query's topics, gaps included, and the rate it was measured at; None when it has not run."""

    offsets: int
    rows_per_s: float | None = None
    lost: int = 0
    """Offsets that a table or lake sink was computed from and that its topics do not have any more."""

    @property
    def duration_ms(self) -> int | None:
        """How long reading takes at the measured rate."""
        return None if not self.rows_per_s else round(self.offsets / self.rows_per_s * _MS_PER_S)


def measured_rate(query_status: Mapping[str, Any]) -> float | None:
    """Return the rows per second of a query's batches, by the status of its last run; None without batches."""
    rows, batch_ms = query_status.get("rows_total") or 0, query_status.get("batch_ms_total") or 0
    return rows / batch_ms * _MS_PER_S if rows and batch_ms else None
