"""Moves of replicas between the log dirs of this broker, as a running part of the node.

The moves themselves are in `replication/log_dir_moves`. Here are their settings, the report to the controller, and the
moves that a crash has interrupted.
"""

import asyncio
from typing import TYPE_CHECKING

from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import MetadataImage
from klamm.model.clock import Clock
from klamm.model.config_resources import ResourceType
from klamm.replication import ReplicaManager
from klamm.replication.log_dir_moves import LogDirMoves
from klamm.server.boot.config import NodeConfig
from klamm.server.cluster.directory_reports import DirectoryReports
from klamm.storage import LogManager
from klamm.storage.thread_pools import Threads
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.server.services import Services

log = get_logger("replication")

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
THREADS = "num.replica.alter.log.dirs.threads"


def make_log_dir_moves(
    loop: asyncio.AbstractEventLoop,
    config: NodeConfig,
    replicas: ReplicaManager,
    clock: Clock,
    reports: DirectoryReports,
    threads: Threads,
) -> LogDirMoves:
    """The moves of this broker, with as many threads as configured or else one for each log dir."""
    configured = config.value(THREADS)
    # Kafka's default, too, is one thread per log dir.
    count = int(str(configured)) if configured is not None else max(len(replicas.logs.dirs), 1)
    return LogDirMoves(loop, replicas, clock, reports.assign_replica, threads(count, "klamm-move"), count)


def complete_interrupted_moves(logs: LogManager, image: MetadataImage, node_id: int) -> None:
    """Let copies take over whose old folders are gone: the process crashed between the two renames.

    Called before replicas are made. A copy is set aside, not deleted, when its partition is nowhere although no log dir
    is missing and the metadata expects it elsewhere.
    """
    for future in logs.futures:
        # The original is there: the move resumes later, from what the copy has.
        if logs.get(future.topic, future.partition) is not None:
            continue
        partition = image.topics.partition(future.topic, future.partition)
        expected = partition.directory(node_id) if partition is not None else None
        folder = logs.log_dir_of(future).path
        if logs.directory_ids[folder] == expected:
            log.info("replica move completed after a crash", partition=future.name, folder=folder)
            logs.take_over(future)
        # With a failed log dir the original may be in it, and come back.
        elif all(log_dir.failure is None for log_dir in logs.dirs):
            log.warning("future replica is stray, folder renamed", partition=future.name, path=future.path)
            logs.set_aside(future)


class MoveService:
    """Starts the moves of this broker and applies their rate."""

    def __init__(self, services: "Services") -> None:
        self._services = services

    def start(self) -> None:
        """Complete the moves that a crash interrupted between their two renames; replicas are made after this."""
        services = self._services
        self._set_rate(services.image)
        complete_interrupted_moves(services.logs, services.image, services.node_id)

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply a changed rate; called once the replicas have followed the image."""
        if any(resource.type == ResourceType.BROKER for resource in delta.configs_changed):
            self._set_rate(image)

    def _set_rate(self, image: MetadataImage) -> None:
        self._services.moves.throttle.rate = self._services.settings.integer(image, RATE)

    async def stop(self) -> None:
        """Stop copying; the next start resumes the moves."""
        await self._services.moves.stop()
