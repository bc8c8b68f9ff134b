"""What this broker does when the cluster's metadata changes: replicas follow, settings take effect, snapshots are made.

Changes are worked off one after the other in a task of their own, so that a thousand new partitions do not hold up the
loop; `wait_for` tells when a change has arrived.
"""

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from klamm.metadata.config_values import unreadable_configs
from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import MetadataImage, PartitionImage, ResourceType, TopicImage
from klamm.replication import ReplicaManager
from klamm.server.topic_settings import TopicSettingsResolver
from klamm.telemetry.log import get_logger

log = get_logger("metadata")


@dataclass(slots=True)
class _Change:
    """One step of the image, as far as replicas are concerned."""

    image: MetadataImage
    delta: MetadataDelta
    changed: dict[str, TopicImage]
    deleted: dict[bytes, str]
    partitions: dict[str, dict[int, PartitionImage]]
    """The partitions that changed, by topic."""
    reconfigured: set[str] | None
    """Topics whose settings changed; None means that any may have, because a broker setting did."""


class BrokerPublisher:
    """Keeps replicas in step with the image."""

    def __init__(self, node_id: int, replicas: ReplicaManager, settings: TopicSettingsResolver) -> None:
        self._node_id = node_id
        self._settings = settings
        self._replicas = replicas
        self._queue: deque[_Change] = deque()
        self._wake = asyncio.Event()
        self._arrived: asyncio.Condition = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self.applied_offset = -1
        self.followers: list[Callable[[MetadataDelta, MetadataImage], None]] = []
        """Told of every change once the replicas have followed it."""

    def start(self) -> None:
        """Begin to work changes off."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="metadata publisher")

    async def stop(self) -> None:
        """Leave the rest for the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Note what changed; the work is done in the task."""
        for resource, config, reason in unreadable_configs(image, delta.configs_changed):
            kind, name = ResourceType(resource.type).name.lower(), resource.name or "<default>"
            log.error("config ignored: value cannot be read", resource=kind, name=name, config=config, reason=reason)
        reconfigured: set[str] | None = set()
        for resource in delta.configs_changed:
            if resource.type == ResourceType.BROKER and resource.name in ("", str(self._node_id)):
                reconfigured = None
                break
            if resource.type == ResourceType.TOPIC and reconfigured is not None:
                reconfigured.add(resource.name)
        changed = {change.after.name: change.after for change in delta.topics_changed.values()}
        deleted: dict[bytes, str] = {topic_id: topic.name for topic_id, topic in delta.topics_deleted.items()}
        partitions = {change.after.name: change.partitions for change in delta.topics_changed.values()}
        self._queue.append(_Change(image, delta, changed, deleted, partitions, reconfigured))
        self._wake.set()

    async def wait_for(self, offset: int) -> None:
        """Return once everything up to `offset` of the metadata log has taken effect here."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: self.applied_offset >= offset)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                change = self._queue.popleft()
                await self._apply(change)
                async with self._arrived:
                    self.applied_offset = change.image.provenance.offset
                    self._arrived.notify_all()

    async def _apply(self, change: _Change) -> None:
        image = change.image
        settings = functools.partial(self._settings.resolve, image)
        if change.changed or change.deleted:
            with self._contained(change, part="replicas"):
                await self._replicas.apply(image, change.changed, change.deleted, settings, change.partitions)
        names = image.topics.by_name if change.reconfigured is None else change.reconfigured
        for name in names:
            if name in image.topics.by_name:
                with self._contained(change, topic=name):
                    self._replicas.reconfigure(name, settings(name))
        for follower in self.followers:
            with self._contained(change, part=getattr(follower, "__qualname__", str(follower))):
                follower(change.delta, image)

    @contextlib.contextmanager
    def _contained(self, change: _Change, **what: str) -> Iterator[None]:
        """A fault in one part of a change is told and does not stop the other parts."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - one part that fails must not stop the others
            offset = change.image.provenance.offset
            log.failure("part of a metadata change could not be carried out", error, offset=offset, **what)
