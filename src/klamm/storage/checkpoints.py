"""Small text files that remember offsets and identities, replaced atomically.

    <version>            0
    <count>              number of lines that follow
    topic partition offset     (offset checkpoints)
    epoch start_offset         (leader-epoch-checkpoint)

and the two `key: value` / `key=value` files beside them: partition.metadata and meta.properties (`meta_properties`).
"""

import json
import os
from collections.abc import Mapping, Sequence

from klamm.model.errors import StorageFailure
from klamm.model.ids import TopicPartition, Uuid, uuid_from_str, uuid_to_str
from klamm.storage.disk import Disk
from klamm.telemetry.log import get_logger

logger = get_logger("storage")

RECOVERY_POINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET = "log-start-offset-checkpoint"
REPLICATION_OFFSET = "replication-offset-checkpoint"
CLEANER_OFFSET = "cleaner-offset-checkpoint"
LEADER_EPOCH = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
CLOSED_AT = "closed-at"
"""In the folder of the quorum's log: the end offset when it was closed cleanly."""


class UnreadableCheckpoint(StorageFailure):
    """Raised when a file is no valid checkpoint: a power loss came between writing and syncing it."""


def read_lines(disk: Disk, path: str) -> list[list[str]]:
    """Return the fields of every line; StorageFailure when the file is no checkpoint. A missing file has no lines."""
    return read_checkpoint(disk, path)[0]


def read_checkpoint(disk: Disk, path: str) -> tuple[list[list[str]], bool]:
    """Return the fields of every line, and whether every line was written twice (see `write_lines`)."""
    try:
        text = disk.read_file(path).decode(errors="replace")
    except FileNotFoundError:
        return [], False
    lines = text.splitlines()
    if not lines:
        # Kafka creates its checkpoints empty and fills them later.
        return [], False
    if not text.endswith("\n"):
        raise UnreadableCheckpoint(f"{path} is cut inside its last line")
    try:
        if int(lines[0]) != 0:
            raise UnreadableCheckpoint(f"{path} has version {lines[0]}, only 0 is known")
        count = int(lines[1])
        rows = [line.split() for line in lines[2:] if line.strip()]
    except (IndexError, ValueError) as error:
        raise UnreadableCheckpoint(f"{path} is not a checkpoint file") from error
    if len(rows) != count:
        raise UnreadableCheckpoint(f"{path} should have {count} lines and has {len(rows)}")
    return rows, lines[1].startswith("+")


def write_lines(
    disk: Disk, path: str, rows: Sequence[Sequence[object]], *, sync: bool = True, twice: bool = False
) -> None:
    """Replace a checkpoint; StorageFailure when the disk refuses.

    `twice` writes every line two times and marks the count with a plus sign, which Kafka's parser ignores.
    """
    lines = [" ".join(map(str, row)) + "\n" for row in rows for _ in range(2 if twice else 1)]
    replace(disk, path, f"0\n{'+' if twice else ''}{len(lines)}\n{''.join(lines)}", sync=sync)


def replace(disk: Disk, path: str, text: str, *, sync: bool = True) -> None:
    """Replace a text file atomically."""
    try:
        disk.replace_file(path, text.encode(), sync=sync)
    except OSError as error:
        raise StorageFailure(f"cannot write {path}: {error}") from error


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """Return the offsets of an offset checkpoint; an unreadable one is logged and counts as empty.

    In a file whose lines were written twice, a line that is there once is ignored; of two numbers, the smaller counts.
    """
    offsets_by_partition: dict[TopicPartition, list[int]] = {}
    try:
        rows, twice = read_checkpoint(disk, path)
        for topic, partition, offset in rows:
            offsets_by_partition.setdefault(TopicPartition(topic, int(partition)), []).append(int(offset))
    except (StorageFailure, ValueError) as error:
        logger.warning("unreadable checkpoint ignored", path=path, reason=error)
        return {}
    for name, offsets in offsets_by_partition.items():
        if twice and (len(offsets) < 2 or len(set(offsets)) > 1):
            logger.warning("checkpoint lines disagree, smaller offset used", path=path, partition=name, offsets=offsets)
    return {name: min(offsets) for name, offsets in offsets_by_partition.items() if len(offsets) > 1 or not twice}


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, int], *, twice: bool = False) -> None:
    """Replace an offset checkpoint; `twice` for one whose numbers nothing else would show to be wrong."""
    # Sorted, so that two checkpoints can be compared by a person or a test.
    rows = [(tp.topic, tp.partition, offset) for tp, offset in sorted(offsets.items())]
    write_lines(disk, path, rows, twice=twice)


def read_topic_id(disk: Disk, folder: str) -> Uuid | None:
    """Return the topic id a partition folder belongs to, None when it has none."""
    path = os.path.join(folder, PARTITION_METADATA)
    try:
        text = disk.read_file(path).decode(errors="replace")
    except FileNotFoundError:
        return None
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    try:
        version, topic_id = int(fields["version"]), uuid_from_str(fields["topic_id"].strip())
    except (KeyError, ValueError) as error:
        # A power loss between making the folder and the file reaching the disk; the metadata log has the id.
        logger.warning("unreadable partition.metadata ignored", path=path, reason=error)
        return None
    if version != 0:
        logger.warning("partition.metadata has an unknown version", path=path, version=version)
    return topic_id


def write_topic_id(disk: Disk, folder: str, topic_id: bytes) -> None:
    """Bind a partition folder to a topic id. Not synced: creating a thousand partitions must not wait for a disk."""
    text = f"version: 0\ntopic_id: {uuid_to_str(topic_id)}\n"
    replace(disk, os.path.join(folder, PARTITION_METADATA), text, sync=False)


def write_clean_shutdown(disk: Disk, log_dir: str, broker_epoch: int) -> None:
    """Mark that every log in the folder was closed cleanly, with the epoch of the broker that did it."""
    content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    try:
        disk.write_file(os.path.join(log_dir, CLEAN_SHUTDOWN), content.encode(), sync=True)
        disk.sync_dir(log_dir)
    except OSError as error:
        raise StorageFailure(f"cannot write {CLEAN_SHUTDOWN} in {log_dir}: {error}") from error


def take_clean_shutdown(disk: Disk, log_dir: str) -> int | None:
    """Remove the marker; return its broker epoch (-1 when it names none), or None when the last stop was not clean."""
    path = os.path.join(log_dir, CLEAN_SHUTDOWN)
    try:
        text = disk.read_file(path).decode(errors="replace")
    except FileNotFoundError:
        return None
    # Removed before anything is opened: a crash from now on is an unclean stop.
    disk.unlink(path)
    disk.sync_dir(log_dir)
    try:
        return int(json.loads(text)["brokerEpoch"])
    except (ValueError, KeyError, TypeError):
        return -1
