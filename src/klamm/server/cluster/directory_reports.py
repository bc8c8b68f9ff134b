"""Reports to the controller which log directory holds a replica of this broker where the metadata differs (KIP-858).

Only brokers with several directories report: with one, the registration names it. Only the newest directory of a
replica is sent, and refused reports are sent again.
"""

import asyncio
from collections.abc import Callable

from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import MetadataImage
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import TopicIdPartition, TopicPartition, Uuid
from klamm.protocol.messages import assign_replicas_to_dirs as ard
from klamm.replication import Replica
from klamm.server.controller.channel import ControllerChannel
from klamm.storage import LogManager
from klamm.telemetry.log import get_logger

log = get_logger("lifecycle")

REPLICAS_PER_REQUEST = 2_000
RETRY_S = 0.5


class DirectoryReports:
    """Compares the directories of replicas with the metadata and reports the differences."""

    def __init__(
        self, node_id: int, logs: LogManager, channel: ControllerChannel, broker_epoch: Callable[[], int]
    ) -> None:
        self._node_id = node_id
        self._logs = logs
        self._channel = channel
        self._broker_epoch = broker_epoch
        self._pending: dict[TopicIdPartition, Uuid] = {}
        self._task: asyncio.Task[None] | None = None

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Compare changed partitions; called once the replicas have followed the image."""
        for topic_id in delta.topics_deleted:
            for key in [key for key in self._pending if key[0] == topic_id]:
                del self._pending[key]
        for topic_id, change in delta.topics_changed.items():
            topic = image.topics.by_id.get(topic_id)
            for index in change.partitions if topic is not None else ():
                self.compare(image, change.after.name, index)

    def compare(self, image: MetadataImage, topic_name: str, index: int) -> None:
        """Report a replica that is in another directory than the metadata has."""
        topic = image.topics.get(topic_name)
        partition = topic.partitions.get(index) if topic is not None else None
        if topic is None or partition is None:
            return
        if self._node_id not in partition.replicas:
            self._pending.pop((topic.id, index), None)
            return
        replica_log = self._logs.get(topic_name, index)
        directory = (
            None if replica_log is None else self._logs.directory_ids.get(self._logs.log_dir_of(replica_log).path)
        )
        future = self._logs.futures.get(TopicPartition(topic_name, index))
        if future is not None and self._logs.directory_ids[self._logs.log_dir_of(future).path] == partition.directory(
            self._node_id
        ):
            return  # a move to that directory is under way
        if directory is None or directory == partition.directory(self._node_id):
            self._pending.pop((topic.id, index), None)
            return
        self._pending[topic.id, index] = directory
        # One request at a time: a later one must not overtake an earlier report of the same replica.
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._report(), name="directory reports")

    async def assign_replica(self, replica: Replica, directory: Uuid) -> None:
        """Have the metadata name a directory for a replica before it is there; KlammError when that is refused."""
        request = self._request({(Uuid(replica.topic_id), replica.index): directory})
        response: ard.AssignReplicasToDirsResponse = await self._channel.ask(request)
        code = response.error_code
        for reported in response.directories:
            for partition in (partition for topic in reported.topics for partition in topic.partitions):
                code = code or partition.error_code
        if code:
            raise KlammError(ErrorCode(code))

    async def stop(self) -> None:
        """Stop reporting; the next start compares again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _report(self) -> None:
        try:
            while self._pending:
                # Bounded requests: a broker with many replicas reports them in several.
                sent = dict(list(self._pending.items())[:REPLICAS_PER_REQUEST])
                try:
                    response = await self._channel.ask(self._request(sent))
                    if response.error_code:
                        raise KlammError(ErrorCode(response.error_code))
                except KlammError as error:
                    log.warning("replica directories not reported, retrying", replicas=len(sent), reason=error)
                    await asyncio.sleep(RETRY_S)
                    continue
                # A replica that moved meanwhile stays pending with its newer directory.
                for key, directory in sent.items():
                    if self._pending.get(key) == directory:
                        del self._pending[key]
        finally:
            self._task = None

    def _request(self, replicas: dict[TopicIdPartition, Uuid]) -> ard.AssignReplicasToDirsRequest:
        grouped: dict[Uuid, dict[bytes, list[int]]] = {}
        for (topic_id, index), directory in replicas.items():
            grouped.setdefault(directory, {}).setdefault(topic_id, []).append(index)
        return ard.AssignReplicasToDirsRequest(
            broker_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            directories=[
                ard.DirectoryData(
                    id=directory,
                    topics=[
                        ard.TopicData(
                            topic_id=topic_id,
                            partitions=[ard.PartitionData(partition_index=index) for index in indexes],
                        )
                        for topic_id, indexes in topics.items()
                    ],
                )
                for directory, topics in grouped.items()
            ],
        )
