"""Progress of long work, on standard error, only at a terminal and only when it takes longer than half a second."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

AFTER_S = 0.5
EVERY_S = 0.1


@contextlib.contextmanager
def progress(title: str, total: int | None = None, unit: str = "") -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the amount done; a bar appears after AFTER_S."""
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    began = last = time.monotonic()
    bar = None

    def advance(done: int) -> None:
        nonlocal bar, last
        now = time.monotonic()
        # Checked first and cheap: this is called per record.
        if now - last < EVERY_S or now - began < AFTER_S:
            return
        last = now
        if bar is None:
            # rich is imported only when a bar is shown: its import is slow.
            bar = _bar(title, total, unit)
        bar.update(bar.task_ids[0], completed=done)

    try:
        yield advance
    finally:
        if bar is not None:
            bar.stop()


def _bar(title: str, total: int | None, unit: str):  # type: ignore[no-untyped-def] # noqa: ANN202 - rich's own type, imported here alone
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    counted = TextColumn("{task.completed:,.0f} " + unit)
    bar = Progress(
        TextColumn(title),
        *((BarColumn(), TaskProgressColumn()) if total is not None else ()),
        counted,
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task(title, total=total)
    bar.start()
    return bar
