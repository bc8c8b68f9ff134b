"""What is written in a log: its batches, its records, and which of them count."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from klamm.records.batch import BatchView, iter_batches
from klamm.records.control import end_txn_marker


@dataclass(slots=True)
class LogContent:
    """The records of a log in the order of their offsets."""

    records: list[Any] = field(default_factory=list)
    visible: set[int] = field(default_factory=set)
    """Offsets of those that count: written without a transaction, or in a committed one."""
    open_ones: dict[int, list[int]] = field(default_factory=dict)
    """By producer, offsets of records whose transaction has no end."""


def batches_of(log: Any, start: int | None = None) -> list[BatchView]:
    """All batches of a log, oldest first; or those from an offset on."""
    batches: list[BatchView] = []
    offset, end = log.log_start_offset if start is None else start, log.log_end_offset
    while offset < end:
        piece = log.read(offset, 1 << 22, end)
        if piece is None:
            break
        views = list(iter_batches(piece.read(), allow_incomplete_tail=True))
        if not views:
            break
        batches += [view for view in views if view.next_offset > offset]
        offset = views[-1].next_offset
    return batches


def read_batches(batches: list[BatchView], went_back: Callable[[int], None]) -> LogContent:
    """Read a log; `went_back` hears of every offset that does not come after the one before it."""
    written = LogContent()
    expected = 0
    for view in batches:
        view.check_crc()
        if view.base_offset < expected:
            went_back(view.base_offset)
        expected = view.next_offset
        if view.is_control:
            marker = end_txn_marker(view)
            ended = written.open_ones.pop(view.producer_id, [])
            if marker is not None and marker.committed:
                written.visible.update(ended)
            continue
        rows = list(view.decode())
        written.records += rows
        offsets = [row.offset for row in rows]
        if view.is_transactional:
            written.open_ones.setdefault(view.producer_id, []).extend(offsets)
        else:
            written.visible.update(offsets)
    return written
