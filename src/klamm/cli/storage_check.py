"""`klamm storage check`: verify data folders, changing nothing."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

import click

from klamm.cli.command_errors import refuses
from klamm.cli.output import files_output_option, show, show_one

if TYPE_CHECKING:
    from klamm.storage.check_findings import Findings


@click.command()
@click.argument("folders", metavar="DIR...", nargs=-1, required=True)
@files_output_option
@click.option(
    "--workers", type=click.IntRange(1), metavar="N", help="Processes; as many as there are cores by default."
)
@refuses
def check(*, folders: tuple[str, ...], output: str, workers: int | None) -> None:
    """Verify every segment, index and small file of data folders.

    DIR is a data folder, the folder of one partition, or that of a local cluster (`klamm up --nodes`), whose nodes are
    all looked at; written by Klamm or by Apache Kafka. Nothing is changed.
    Ends with exit code 1 when something is wrong; every problem is named with its file and position, and with what
    `klamm storage repair` would do about it.
    """
    import os

    from klamm.server.boot.local_cluster import node_data_folders
    from klamm.storage.log_dir import is_held
    from klamm.storage.offline_check import check_folders

    started = time.monotonic()
    # The folder of a local cluster stands for the data folders of its nodes.
    paths = [path for folder in folders for path in node_data_folders(os.path.abspath(folder))]
    for path in paths:
        if is_held(path):
            click.echo(f"klamm: a node is running on {path}; what it is writing now may look torn", err=True)
    with Bar() as bar:
        findings = check_folders(paths, workers=workers, on_progress=bar.show)
    _print(findings, output, time.monotonic() - started)
    if findings.problems:
        raise SystemExit(1)


def _summary(findings: Findings, seconds: float) -> str:
    # Never divided by 0: an empty folder takes less than the resolution of the clock.
    rate = findings.size_bytes / 1e6 / max(seconds, 0.001)
    looked = (
        f"{count_noun(findings.partitions, 'partition')}, {count_noun(findings.segments, 'segment')}, "
        f"{count_noun(findings.batches, 'batch', 'batches')}, "
        f"{findings.size_bytes / 1e6:.1f} MB in {seconds:.1f} s ({rate:.0f} MB/s)"
    )
    verdict = count_noun(len(findings.problems), "problem") if findings.problems else "clean"
    return f"{verdict}: {looked}"


def count_noun(count: int, one: str, many: str | None = None) -> str:
    """`1 step`, `2 steps`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def _print(findings: Findings, output: str, seconds: float) -> None:
    problems = [
        {"file": problem.path, "position": problem.position, "what": problem.what, "repair": problem.fix.value}
        for problem in findings.problems
    ]
    sizes = {name: getattr(findings, name) for name in ("partitions", "segments", "batches", "size_bytes")}

    def table() -> None:
        for problem in findings.problems:
            click.echo(str(problem))
        for note in findings.notes:
            click.echo(f"note: {note}")
        click.echo(_summary(findings, seconds))

    # CSV has one shape of rows: sizes and notes are left out.
    if output == "csv":
        show(problems, output)
    elif output == "jsonl":
        # Every line names its kind, so that a reader can select one with jq.
        show([{"problem": problem} for problem in problems], output)
        show([{"note": note} for note in findings.notes], output)
        show([{"checked": sizes, "problems": len(problems)}], output)
    else:
        show_one({"checked": sizes, "problems": problems, "notes": list(findings.notes)}, output, table)


class Bar:
    """A progress bar on standard error at a terminal."""

    def __enter__(self) -> Self:
        self._progress = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

            columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
            self._progress = Progress("checking", *columns, console=Console(stderr=True), transient=True)
            self._progress.start()
            self._task = self._progress.add_task("checking")
        return self

    def show(self, done: int, total: int) -> None:
        """Move the bar."""
        if self._progress is not None:
            self._progress.update(self._task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
