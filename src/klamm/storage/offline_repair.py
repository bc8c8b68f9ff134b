"""Repairing data folders offline: a plan made from the findings of a check, shown first, then executed step by step.

Only what the plan names is touched. What is cut off and what follows damage is kept under another name; unknown files
are not touched. What a start creates again by itself (producer snapshots, topic ids) is only removed.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from klamm.model.ids import TopicPartition
from klamm.records.batch import BatchView
from klamm.storage.check_findings import Findings, Fix, LogProblem
from klamm.storage.checkpoints import LOG_START_OFFSET, RECOVERY_POINT, read_offsets, write_lines, write_offsets
from klamm.storage.config import LogConfig
from klamm.storage.disk import Disk, OpenFiles, write_all
from klamm.storage.log_dir import LOCK, LogDir
from klamm.storage.log_replay import read_leader_epochs, rebuild_producers
from klamm.storage.log_segment import LOG_SUFFIX, TXN_INDEX_SUFFIX, LogSegment
from klamm.storage.offline_check import ASIDE_SUFFIX, check_folders
from klamm.storage.producer_snapshots import SUFFIX as SNAPSHOT_SUFFIX
from klamm.storage.producer_snapshots import ProducerSnapshots
from klamm.storage.producer_state import Origin, ProducerStates
from klamm.storage.segment_list import SegmentList
from klamm.storage.txn_index import AbortedTxn

_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RepairStep:
    """One change: its description and the work."""

    what: str
    run: Callable[[], None]


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The steps in order, and the problems that repair does not fix."""

    findings: Findings
    steps: list[RepairStep]
    unfixed: list[LogProblem]


def make_plan(
    folders: list[str], *, on_progress: Callable[[int, int], None] | None = None, disk: Disk | None = None
) -> RepairPlan:
    """Check folders and plan their repair. Changes nothing."""
    disk = disk or Disk()
    findings = check_folders(folders, on_progress=on_progress)
    steps: list[RepairStep] = []
    # The order of the steps matters: indexes and epochs are rebuilt from a log that is cut already.
    cut = [problem for problem in findings.problems if problem.fix is Fix.CUT]
    for problem in cut:
        steps += _cut_steps(disk, problem)
    steps += [
        _remove_step(disk, p) for p in findings.problems if p.fix is Fix.REMOVE and not _is_set_aside(p.path, cut)
    ]
    rebuilt = {_segment_of(p.path) for p in findings.problems if p.fix in (Fix.REBUILD, Fix.CUT)}
    steps += [_rebuild_step(disk, folder, base) for folder, base in sorted(rebuilt)]
    steps += [_epochs_step(disk, p.path) for p in findings.problems if p.fix is Fix.EPOCHS]
    steps += [_checkpoint_step(disk, p.path) for p in findings.problems if p.fix is Fix.CHECKPOINT]
    steps += [_recovery_point_step(disk, problem) for problem in cut]
    return RepairPlan(findings, steps, [problem for problem in findings.problems if problem.fix is Fix.NOTHING])


def hold(folders: list[str], disk: Disk | None = None) -> list[LogDir]:
    """Lock data folders as a node would; ConfigError when one is locked. `LogDir.release` unlocks one."""
    held: list[LogDir] = []
    for folder in folders:
        top = folder if os.path.exists(os.path.join(folder, LOCK)) else os.path.dirname(os.path.abspath(folder))
        if os.path.exists(os.path.join(top, LOCK)) and all(log_dir.path != os.path.abspath(top) for log_dir in held):
            try:
                # A running node, or Kafka, holds this lock: repairing under it would corrupt what it writes.
                held.append(LogDir(disk or Disk(), top))
            except BaseException:
                for log_dir in held:
                    log_dir.release()
                raise
    return held


# --- steps -----------------------------------------------------------------------------------------------------------


def _cut_steps(disk: Disk, problem: LogProblem) -> list[RepairStep]:
    """Cut a segment, and set aside the segments after it with their indexes and snapshots."""
    path, position = problem.path, problem.position or 0
    folder, base = _segment_of(path)
    size = os.path.getsize(path)
    steps = []
    # The newest first: an interruption leaves a log without a hole.
    for name in sorted(os.listdir(folder), reverse=True):
        stem, suffix = os.path.splitext(name)
        if not stem.isdigit():
            continue
        of_segment = suffix in (LOG_SUFFIX, ".index", ".timeindex", TXN_INDEX_SUFFIX) and int(stem) > base
        if of_segment or (suffix == SNAPSHOT_SUFFIX and int(stem) > (problem.offset or 0)):
            other = os.path.join(folder, name)
            steps.append(RepairStep(f"set {other} aside as {name}{ASIDE_SUFFIX}", partial(_set_aside, disk, other)))
    what = f"cut {path} at position {position}: {size - position} bytes, kept as {_cut_name(path, position)}"
    steps.append(RepairStep(what, partial(_cut, disk, path, position)))
    return steps


def _is_set_aside(path: str, cut: list[LogProblem]) -> bool:
    """Return whether a snapshot is of an offset that a cut removes, and is set aside with it."""
    folder, name = os.path.split(path)
    stem, suffix = os.path.splitext(name)
    return suffix == SNAPSHOT_SUFFIX and any(
        os.path.dirname(problem.path) == folder and int(stem) > (problem.offset or 0) for problem in cut
    )


def _set_aside(disk: Disk, path: str) -> None:
    target = path + ASIDE_SUFFIX
    number = 1
    # An earlier repair may have set a file of this name aside, and nothing that was cut is ever overwritten.
    while os.path.exists(target):
        number += 1
        target = f"{path}.{number}{ASIDE_SUFFIX}"
    if os.path.exists(path):
        disk.rename(path, target)
        disk.sync_dir(os.path.dirname(path))


def _cut_name(path: str, position: int) -> str:
    return f"{os.path.basename(path)}.{position}{ASIDE_SUFFIX}"


def _cut(disk: Disk, path: str, position: int) -> None:
    """Cut a file, after the rest was copied to another beside it."""
    fd = disk.open(path, os.O_RDWR | os.O_CLOEXEC, 0o644)
    # O_EXCL: what an earlier cut at this position kept must not be overwritten.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    copy = disk.open(os.path.join(os.path.dirname(path), _cut_name(path, position)), flags, 0o644)
    try:
        at = position
        while data := disk.pread(fd, _COPY_BYTES, at):
            write_all(disk, copy, data, at - position)
            at += len(data)
        disk.fsync(copy)
        disk.sync_dir(os.path.dirname(path))
        # Only after the copy and its name are durable: a power loss must not lose what is cut off.
        disk.ftruncate(fd, position)
        disk.fsync(fd)
    finally:
        disk.close(fd)
        disk.close(copy)


def _remove_step(disk: Disk, problem: LogProblem) -> RepairStep:
    def remove() -> None:
        disk.remove_if_exists(problem.path)
        disk.sync_dir(os.path.dirname(problem.path))

    return RepairStep(f"remove {problem.path}: {problem.what}", remove)


def _rebuild_step(disk: Disk, folder: str, base: int) -> RepairStep:
    path = os.path.join(folder, f"{base:020d}")
    return RepairStep(f"rebuild the indexes of {path}{LOG_SUFFIX}", partial(rebuild_indexes, disk, folder, base))


def _epochs_step(disk: Disk, path: str) -> RepairStep:
    def rewrite() -> None:
        segments = _segments(disk, os.path.dirname(path))
        epochs = read_leader_epochs(segments) if segments is not None else []
        write_lines(disk, path, epochs)

    return RepairStep(f"rewrite {path} from the batches", rewrite)


def _checkpoint_step(disk: Disk, path: str) -> RepairStep:
    def rewrite() -> None:
        lines = disk.read_file(path).decode(errors="replace").splitlines()
        counts: dict[tuple[str, ...], int] = {}
        for line in lines[2:]:
            fields = tuple(line.split())
            if len(fields) == 3 and fields[1].isdecimal() and fields[2].isdecimal():
                counts[fields] = counts.get(fields, 0) + 1
        # Only this checkpoint is written twice; with damage, the lines that agree are the ones to keep.
        twice = os.path.basename(path) == LOG_START_OFFSET and max(counts.values(), default=0) > 1
        write_lines(disk, path, [row for row, count in counts.items() if count > 1 or not twice], twice=twice)

    return RepairStep(f"rewrite {path} with the lines that can be read", rewrite)


def _recovery_point_step(disk: Disk, problem: LogProblem) -> RepairStep:
    """Plan to lower the recovery point: bytes written beyond the cut must be checked by the next recovery."""
    folder, base = _segment_of(problem.path)
    path = os.path.join(os.path.dirname(folder), RECOVERY_POINT)
    topic, _, number = os.path.basename(folder).rpartition("-")
    partition = TopicPartition(topic, int(number))

    def lower() -> None:
        points = read_offsets(disk, path)
        if points.get(partition, 0) > base:
            write_offsets(disk, path, {**points, partition: base})

    return RepairStep(f"lower the recovery point of {partition} to {base} at most", lower)


def rebuild_indexes(disk: Disk, folder: str, base: int, config: LogConfig | None = None) -> None:
    """Rebuild the index files of one segment from its batches, one entry per index.interval.bytes."""
    config = config or LogConfig()
    segments = _segments(disk, folder)
    assert segments is not None
    segment = next(candidate for candidate in segments if candidate.base_offset == base)
    producers = ProducerStates(os.path.basename(folder))
    snapshots = ProducerSnapshots(disk, folder)
    # Open transactions at the start of the segment decide what its abort markers ended.
    if segment is segments[0]:
        snapshot = snapshots.latest(base, base)
        producers.load(snapshot[1] if snapshot else [])
    else:
        rebuild_producers(producers, snapshots, segments, base)
    segment.activate(config, 0, rebuild=True)
    assert segment.index is not None
    assert segment.time_index is not None
    aborted: list[AbortedTxn] = []
    unindexed, largest = 0, (-1, base)
    for position, data in segment.batches():
        batch = BatchView(data)
        txn = producers.append(batch, Origin.REPLICATION)
        if txn is not None:
            aborted.append(txn)
        if batch.max_timestamp > largest[0]:
            largest = (batch.max_timestamp, batch.last_offset)
        if unindexed > config.index_interval_bytes:
            segment.index.append(batch.last_offset, position)
            segment.time_index.maybe_append(*largest)
            unindexed = 0
        unindexed += batch.size
    segment.time_index.maybe_append(*largest)
    segment.write_indexes()
    segment.txn_index.reset(aborted)
    for suffix in (".index", ".timeindex", TXN_INDEX_SUFFIX):
        disk.sync_file(segment.path(suffix))
    disk.sync_dir(folder)
    segment.file = None


def _segments(disk: Disk, folder: str) -> SegmentList | None:
    bases = sorted(int(n[:-4]) for n in os.listdir(folder) if n.endswith(LOG_SUFFIX) and n[:-4].isdigit())
    if not bases:
        return None
    files = OpenFiles(4)
    sizes = [os.path.getsize(os.path.join(folder, f"{base:020d}{LOG_SUFFIX}")) for base in bases]
    return SegmentList(
        disk,
        files,
        folder,
        [LogSegment(disk, files, folder, base, size) for base, size in zip(bases, sizes, strict=True)],
    )


def _segment_of(path: str) -> tuple[str, int]:
    folder, name = os.path.split(path)
    return folder, int(os.path.splitext(name)[0])
