"""Moves between log dirs as a running part of the node: their pace, what the controller hears, what a start finds.

The moves themselves are in `replication/log_dir_moves`.
"""

from typing import TYPE_CHECKING

from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import MetadataImage, ResourceType
from klamm.model.ids import Uuid
from klamm.replication.log_dir_moves import LogDirMoves
from klamm.replication.replica import Replica
from klamm.server.cluster.directory_reports import DirectoryReports
from klamm.storage.thread_pools import Threads
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.server.services import Services

log = get_logger("replication")

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
THREADS = "num.replica.alter.log.dirs.threads"


class Moves:
    """Made once the broker is registered; gives handlers `services.moves`."""

    def __init__(self, services: "Services", reports: DirectoryReports, threads: Threads) -> None:
        self._services = services
        self._reports = reports
        configured = services.config.value(THREADS)
        count = int(str(configured)) if configured is not None else max(len(services.logs.dirs), 1)
        services.moves = LogDirMoves(
            services.loop, services.replicas, services.clock, self._assign, threads(count, "klamm-move"), count
        )
        services.moves.throttle.rate = services.settings.integer(services.image, RATE)

    async def _assign(self, replica: Replica, directory: Uuid) -> None:
        await self._reports.assign(Uuid(replica.topic_id), replica.index, directory)

    def settle(self) -> None:
        """Let copies take over whose old folders are gone already: a crash came between the two renames.

        Called before replicas are made. A copy whose partition is nowhere, though no log dir is missing and the
        metadata expects it elsewhere, is kept for a person to look at.
        """
        logs, node_id = self._services.logs, self._services.node_id
        for future in logs.futures:
            if logs.get(future.topic, future.partition) is not None:
                continue
            partition = self._services.image.topics.partition(future.topic, future.partition)
            expected = partition.directory(node_id) if partition is not None else None
            if logs.directory_ids[logs.log_dir_of(future).path] == expected:
                log.info("a replica's move is completed", partition=future.name, folder=logs.log_dir_of(future).path)
                logs.take_over(future)
            elif all(each.failure is None for each in logs.dirs):
                log.warning("a copy whose partition is gone is set aside", partition=future.name, path=future.path)
                logs.set_aside(future)

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """The image has moved and the replicas have followed."""
        if any(resource.type == ResourceType.BROKER for resource in delta.configs_changed):
            self._services.moves.throttle.rate = self._services.settings.integer(image, RATE)

    async def stop(self) -> None:
        """Leave the rest for the next start."""
        await self._services.moves.stop()
