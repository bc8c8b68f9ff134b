"""Checking data folders offline without changing them: every batch, every index entry, every small file.

    inspect_partition   one partition folder: segments in order, snapshots, epochs, topic id
    check_folders       all partitions of data folders in processes, and the files beside them

Works on folders of Kafka as well. The folder of a running node may be checked; what it is just writing looks torn.
"""

import contextlib
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from ctypes import c_int64
from multiprocessing.sharedctypes import Synchronized
from operator import attrgetter
from typing import Any, NamedTuple

from klamm.model.errors import ConfigError, CorruptBatch, StorageFailure
from klamm.records.control import ControlType, control_records
from klamm.storage.batch_file import BatchFile
from klamm.storage.check_findings import Findings, Fix
from klamm.storage.checkpoints import (
    CLEAN_SHUTDOWN,
    CLOSED_AT,
    LEADER_EPOCH,
    LOG_START_OFFSET,
    PARTITION_METADATA,
    RECOVERY_POINT,
    REPLICATION_OFFSET,
    read_checkpoint,
    read_lines,
    read_topic_id,
)
from klamm.storage.disk import Disk
from klamm.storage.leader_epochs import LeaderEpochs
from klamm.storage.log_dir import DELETED_FOLDER, FUTURE_FOLDER, KNOWN_FILES, PARTITION_FOLDER, STRAY_FOLDER
from klamm.storage.log_segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from klamm.storage.meta_properties import META_PROPERTIES, read_meta_properties
from klamm.storage.producer_snapshots import SUFFIX as SNAPSHOT_SUFFIX
from klamm.storage.producer_snapshots import decode as decode_snapshot
from klamm.storage.producer_state import ProducerStates
from klamm.storage.segment_check import UNCLEANED, OnProgress, SegmentCheck
from klamm.storage.segment_swap import CLEANED_SUFFIX, SWAP_SUFFIX

CLEANER_OFFSET = "cleaner-offset-checkpoint"
OFFSET_CHECKPOINTS = (RECOVERY_POINT, LOG_START_OFFSET, REPLICATION_OFFSET, CLEANER_OFFSET)
QUORUM_STATE = "quorum-state"
ASIDE_SUFFIX = ".damaged"
"""The ending of files in which repair keeps what it cuts off."""
_ALWAYS_COMPACTED = ("__consumer_offsets", "__transaction_state", "__share_group_state")
_LEFTOVERS = (".deleted", CLEANED_SUFFIX, ".tmp", ".part")
_INLINE_BYTES = 512 << 20
"""Less than this is checked in this process: starting others would take longer."""


def _ignore_progress(_size: int) -> None:
    """Do nothing."""


def _ignore_total_progress(_done: int, _total: int) -> None:
    """Do nothing."""


class Task(NamedTuple):
    """One partition folder to check."""

    path: str
    clean: bool
    """Whether the node stopped cleanly, so that indexes must be complete."""
    compacted: bool
    """Whether offsets may be missing between segments."""
    size_bytes: int


def partition_tasks(folders: list[str]) -> list[Task]:
    """Return a task per partition folder; ConfigError for a folder that is no data folder and no partition's."""
    tasks = []
    for folder in folders:
        if not os.path.isdir(folder):
            raise ConfigError(f"{folder} is not a folder")
        if _is_partition(folder):
            tasks.append(_task(folder, clean=False, cleaned=set()))
            continue
        names = sorted(os.listdir(folder))
        inner = [os.path.join(folder, name) for name in names if _is_partition(os.path.join(folder, name))]
        if not inner and META_PROPERTIES not in names:
            raise ConfigError(f"{folder} holds no data of a node: no {META_PROPERTIES} and no partitions")
        # Only then are the indexes on disk complete: those of an active segment live in memory.
        clean = CLEAN_SHUTDOWN in names
        cleaned = _partitions_in(os.path.join(folder, CLEANER_OFFSET))
        tasks += [_task(path, clean=clean, cleaned=cleaned) for path in inner]
    return tasks


def check_folders(
    folders: list[str], *, workers: int | None = None, on_progress: Callable[[int, int], None] | None = None
) -> Findings:
    """Check data folders. `on_progress(done, total)` is called with the bytes read so far."""
    tasks = partition_tasks(folders)
    findings = Findings()
    for folder in folders:
        if not _is_partition(folder):
            findings.include(inspect_top(folder))
    for partition_findings in _run(tasks, workers or os.cpu_count() or 1, on_progress or _ignore_total_progress):
        findings.include(partition_findings)
    _check_topic_ids([task.path for task in tasks], findings)
    findings.problems.sort(key=attrgetter("path"))
    return findings


def inspect_partition(task: Task, on_progress: OnProgress = _ignore_progress) -> Findings:
    """Check one partition folder."""
    disk, folder = Disk(), task.path
    findings = Findings(partitions=1)
    names = sorted(os.listdir(folder))
    bases = sorted(int(name[:-4]) for name in names if name.endswith(LOG_SUFFIX) and name[:-4].isdigit())
    epochs = LeaderEpochs(disk, folder)
    if epochs.damaged:
        findings.add(epochs.path, "it cannot be read", Fix.EPOCHS)
    producers = _producers_at(disk, folder, bases, names)
    # Without a snapshot at the first segment, transactions may have begun before it, unseen.
    producers_complete = bases[:1] == [0] or bool(producers.entries)
    end_offset, damaged = bases[0] if bases else 0, False
    for i, base in enumerate(bases):
        # Repair cuts there: offsets after it cannot be compared with anything.
        if damaged:
            path = os.path.join(folder, f"{base:020d}{LOG_SUFFIX}")
            findings.notes.append(f"{path}: not checked, because it follows the damage")
            continue
        last = i == len(bases) - 1
        if base != end_offset and not task.compacted:
            path = os.path.join(folder, f"{base:020d}{LOG_SUFFIX}")
            findings.add(path, f"offsets {end_offset} to {base - 1} before it are missing{UNCLEANED}", Fix.NOTHING)
        end = 2**63 if last else bases[i + 1]
        segment = SegmentCheck(
            folder, base, end, findings, last=last, closed=task.clean, holes=task.compacted, disk=disk
        )
        end_offset, intact = segment.run(producers, epochs, on_progress, producers_complete=producers_complete)
        damaged = not intact
    # The end of a damaged log is unknown, so snapshots are not compared with it.
    _check_small_files(disk, folder, names, set(bases), 2**63 if damaged else end_offset, findings)
    return findings


def inspect_top(folder: str) -> Findings:
    """Check the files beside the partitions."""
    disk, findings = Disk(), Findings()
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name in OFFSET_CHECKPOINTS:
            _check_checkpoint(disk, path, findings)
        elif name == META_PROPERTIES:
            try:
                read_meta_properties(disk, folder)
            except (ConfigError, UnicodeDecodeError) as error:
                findings.add(path, f"it cannot be read: {error}", Fix.NOTHING)
        elif name == CLEAN_SHUTDOWN:
            _check_json(disk, path, "brokerEpoch", Fix.REMOVE, findings)
        elif name == "bootstrap.checkpoint":
            _check_metadata_snapshot(path, findings)
        elif DELETED_FOLDER.match(name):
            findings.notes.append(f"{path}: a deleted partition, removed by the next start")
        elif FUTURE_FOLDER.match(name):
            findings.notes.append(f"{path}: a replica being moved to this folder, continued by the next start")
        elif STRAY_FOLDER.match(name):
            findings.notes.append(f"{path}: a stray partition, kept until an operator removes it")
        elif not KNOWN_FILES.match(name) and not _is_partition(path):
            findings.notes.append(f"{path}: no part of a node's data")
    if not os.path.exists(os.path.join(folder, META_PROPERTIES)):
        findings.add(os.path.join(folder, META_PROPERTIES), "it is missing", Fix.NOTHING)
    return findings


# --- in processes ----------------------------------------------------------------------------------------------------

_counter: "Synchronized[int] | None" = None


def _share(counter: "Synchronized[int]") -> None:
    global _counter  # noqa: PLW0603 - how the processes of a pool get an argument
    _counter = counter


def _count(size: int) -> None:
    if _counter is not None:
        with _counter.get_lock():
            _counter.value += size


def _inspect_and_count(task: Task) -> Findings:
    return inspect_partition(task, _count)


def _run(tasks: list[Task], workers: int, on_progress: Callable[[int, int], None]) -> Iterator[Findings]:
    total = sum(task.size_bytes for task in tasks)
    done = 0
    if workers == 1 or len(tasks) == 1 or total < _INLINE_BYTES:

        def here(size: int) -> None:
            nonlocal done
            done += size
            on_progress(done, total)

        for task in tasks:
            yield inspect_partition(task, here)
        return
    # Not fork: the command line has threads (the progress bar), which a forked child would inherit half-way.
    context = multiprocessing.get_context("spawn")
    counter: Any = context.Value(c_int64, 0)
    with ProcessPoolExecutor(min(workers, len(tasks)), context, _share, (counter,)) as pool:
        # The largest first, so that no process works alone at the end.
        jobs = {pool.submit(_inspect_and_count, t) for t in sorted(tasks, key=attrgetter("size_bytes"), reverse=True)}
        while jobs:
            try:
                for job in as_completed(jobs, timeout=0.2):
                    yield job.result()
                    jobs.discard(job)
                    break
            except TimeoutError:
                pass
            on_progress(counter.value, total)


# --- small files -----------------------------------------------------------------------------------------------------


def _check_small_files(
    disk: Disk, folder: str, names: list[str], bases: set[int], end_offset: int, findings: Findings
) -> None:
    for name in names:
        path = os.path.join(folder, name)
        stem, suffix = os.path.splitext(name)
        if suffix == SNAPSHOT_SUFFIX and stem.isdigit():
            _check_snapshot(disk, path, int(stem), end_offset, findings)
        elif suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX) and stem.isdigit():
            if int(stem) not in bases:
                findings.add(path, "an index without its log", Fix.REMOVE)
        elif name.endswith(".checkpoint"):
            _check_metadata_snapshot(path, findings)
        elif name == PARTITION_METADATA:
            try:
                if read_topic_id(disk, folder) is None:
                    findings.add(path, "it names no topic id", Fix.REMOVE)
            except StorageFailure as failure:
                findings.add(path, str(failure), Fix.REMOVE)
        elif name == QUORUM_STATE:
            _check_json(disk, path, "leaderEpoch", Fix.NOTHING, findings)
        elif name.endswith(SWAP_SUFFIX):
            findings.notes.append(f"{path}: an interrupted compaction, completed by the next start")
        elif name.endswith(ASIDE_SUFFIX):
            findings.notes.append(f"{path}: set aside by an earlier repair")
        elif name.endswith(_LEFTOVERS):
            findings.notes.append(f"{path}: left over from an interrupted change, removed by the next start")
        elif not (suffix == LOG_SUFFIX and stem.isdigit()) and name not in (LEADER_EPOCH, CLOSED_AT):
            findings.notes.append(f"{path}: no file of this log")


def _check_snapshot(disk: Disk, path: str, offset: int, end_offset: int, findings: Findings) -> None:
    try:
        decode_snapshot(disk.read_file(path))
    except CorruptBatch as error:
        findings.add(path, str(error), Fix.REMOVE)
        return
    if offset > end_offset:
        findings.add(path, f"it is for offset {offset}, the log ends at {end_offset}", Fix.REMOVE)


def _check_metadata_snapshot(path: str, findings: Findings) -> None:
    """Check a snapshot of the metadata: complete batches between a header and a footer."""
    position = 0
    controls: list[int] = []
    bootstrap = os.path.basename(path) == "bootstrap.checkpoint"
    try:
        for position, batch in BatchFile(path).batches():  # noqa: B007 - reported when the next batch is invalid
            batch.check_crc()
            findings.batches += 1
            if batch.is_control:
                controls += [record.type for record in control_records(batch)]
        if not bootstrap and (
            controls[:1] != [ControlType.SNAPSHOT_HEADER] or controls[-1] != ControlType.SNAPSHOT_FOOTER
        ):
            findings.add(path, "the snapshot lacks its header or its footer", Fix.NOTHING)
    except CorruptBatch as error:
        findings.add(path, str(error), Fix.NOTHING, position)


def _check_checkpoint(disk: Disk, path: str, findings: Findings) -> None:
    try:
        rows, twice = read_checkpoint(disk, path)
        for topic, partition, offset in rows:
            if int(partition) < 0 or int(offset) < 0:
                findings.add(path, f"the line of {topic}-{partition} has a negative number", Fix.CHECKPOINT)
            elif twice and rows.count([topic, partition, offset]) < 2:
                findings.add(
                    path, f"offset {offset} of {topic}-{partition} is there once instead of twice", Fix.CHECKPOINT
                )
    except (StorageFailure, ValueError) as error:
        what = str(error) if isinstance(error, StorageFailure) else f"a line of it cannot be read: {error}"
        findings.add(path, what.replace(path, "it", 1), Fix.CHECKPOINT)


def _check_json(disk: Disk, path: str, key: str, fix: Fix, findings: Findings) -> None:
    try:
        int(json.loads(disk.read_file(path))[key])
    except (ValueError, KeyError, TypeError) as error:
        findings.add(path, f"it cannot be read: {error}", fix)


def _check_topic_ids(paths: list[str], findings: Findings) -> None:
    """Check that all partitions of a topic in one data folder have the same topic id."""
    ids: dict[tuple[str, str], tuple[str, bytes]] = {}
    for path in paths:
        try:
            topic_id = read_topic_id(Disk(), path)
        except StorageFailure:
            continue
        parent, name = os.path.split(path)
        if topic_id is None:
            continue
        first, known = ids.setdefault((parent, name.rpartition("-")[0]), (path, topic_id))
        if known != topic_id:
            what = f"its topic id is not that of {os.path.basename(first)}"
            findings.add(os.path.join(path, PARTITION_METADATA), what, Fix.NOTHING)


def _producers_at(disk: Disk, folder: str, bases: list[int], names: list[str]) -> ProducerStates:
    """Return producer state as of the start of the first segment."""
    producers = ProducerStates(os.path.basename(folder))
    name = f"{bases[0]:020d}{SNAPSHOT_SUFFIX}" if bases else ""
    if name in names:
        with contextlib.suppress(CorruptBatch):  # `_check_snapshot` reports it
            producers.load(decode_snapshot(disk.read_file(os.path.join(folder, name))))
    return producers


def _is_partition(path: str) -> bool:
    return bool(PARTITION_FOLDER.match(os.path.basename(os.path.abspath(path)))) and os.path.isdir(path)


def _task(path: str, *, clean: bool, cleaned: set[tuple[str, str]]) -> Task:
    topic, _, partition = os.path.basename(os.path.abspath(path)).rpartition("-")
    compacted = topic in _ALWAYS_COMPACTED or (topic, partition) in cleaned
    sizes = (entry.stat().st_size for entry in os.scandir(path) if entry.name.endswith(LOG_SUFFIX))
    return Task(path, clean, compacted, sum(sizes))


def _partitions_in(path: str) -> set[tuple[str, str]]:
    try:
        return {(row[0], row[1]) for row in read_lines(Disk(), path) if len(row) == 3}
    except StorageFailure:
        return set()
