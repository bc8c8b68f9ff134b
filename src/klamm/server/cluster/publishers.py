"""Applies changes of the cluster's metadata to this broker: its replicas, then everything that follows them.

Changes are applied one after the other in a task, so that a thousand new partitions do not block the loop. `wait_for`
returns when a change has taken effect here, `wait_answerable` when the request that made it may be answered.
"""

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from klamm.metadata.config_values import unreadable_configs
from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import MetadataImage, PartitionImage, TopicImage
from klamm.model.config_resources import ResourceType
from klamm.replication import ReplicaManager
from klamm.server.settings.topic_settings import TopicSettingsResolver
from klamm.telemetry.log import get_logger

log = get_logger("metadata")

REPLICAS_WAIT_S = 0.1
"""How long the response to an admin request waits for this broker's replicas, in a cluster. The client may need those
of other brokers next, of which nothing is known, so a longer wait has little use; Kafka does not wait at all."""

PARTITIONS_WAITED_FOR_MAX = 100
"""With more queued partitions than this, the response does not wait: they take longer than REPLICAS_WAIT_S."""


ImageListener = Callable[[MetadataDelta, MetadataImage], None]


class _AwaitableOffset:
    """An offset of the metadata log that only grows, and the futures that wait for it."""

    __slots__ = ("_waiting", "offset")

    def __init__(self) -> None:
        self.offset = -1
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def reach(self, offset: int) -> None:
        self.offset = offset
        if not self._waiting:
            return
        due = [future for wanted, future in self._waiting if wanted <= offset]
        self._waiting = [(wanted, future) for wanted, future in self._waiting if wanted > offset]
        for future in due:
            # The request that waited may have been cancelled.
            if not future.done():
                future.set_result(None)

    async def wait_for(self, offset: int) -> None:
        if self.offset < offset:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((offset, future))
            await future


@dataclass(slots=True)
class _MetadataChange:
    """One change of the image, reduced to what concerns replicas."""

    image: MetadataImage
    delta: MetadataDelta
    changed: dict[str, TopicImage]
    deleted: dict[bytes, str]
    partitions: dict[str, dict[int, PartitionImage]]
    """The partitions that changed, by topic."""
    reconfigured: set[str] | None
    """Topics whose configs changed; None means all, because a broker config did."""


class BrokerPublisher:
    """Applies metadata changes to the replicas of this broker."""

    def __init__(self, node_id: int, replicas: ReplicaManager, settings: TopicSettingsResolver) -> None:
        self._node_id = node_id
        self._settings = settings
        self._replicas = replicas
        self._queue: deque[_MetadataChange] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._image: MetadataImage | None = None
        self._partitions_queued = 0
        self._known = _AwaitableOffset()
        self._applied = _AwaitableOffset()
        self._followers: Sequence[ImageListener] = ()

    def start(self, followers: Sequence[ImageListener]) -> None:
        """Begin to apply changes; `followers` are called with each once the replicas have followed it."""
        self._followers = followers
        self._task = asyncio.get_running_loop().create_task(self._run(), name="metadata publisher")

    async def stop(self) -> None:
        """Stop; the next start applies the rest."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Queue a change for the task."""
        for resource, config, reason in unreadable_configs(image, delta.configs_changed):
            kind, name = ResourceType(resource.type).name.lower(), resource.name or "<default>"
            log.error("config ignored: value cannot be read", resource=kind, name=name, config=config, reason=reason)
        reconfigured: set[str] | None = set()
        for resource in delta.configs_changed:
            # Broker configs are defaults of topic configs, so any topic may be affected; "" names all brokers.
            if resource.type == ResourceType.BROKER and resource.name in ("", str(self._node_id)):
                reconfigured = None
                break
            if resource.type == ResourceType.TOPIC and reconfigured is not None:
                reconfigured.add(resource.name)
        changed = {change.after.name: change.after for change in delta.topics_changed.values()}
        deleted: dict[bytes, str] = {topic_id: topic.name for topic_id, topic in delta.topics_deleted.items()}
        partitions = {change.after.name: change.partitions for change in delta.topics_changed.values()}
        self._queue.append(_MetadataChange(image, delta, changed, deleted, partitions, reconfigured))
        self._partitions_queued += _count_partitions(self._queue[-1])
        self._wake.set()
        self._image = image
        # `_known` is ahead of `_applied` by what the queue holds.
        self._known.reach(image.provenance.offset)

    async def wait_for(self, offset: int) -> None:
        """Return once all changes up to `offset` of the metadata log have taken effect here."""
        await self._applied.wait_for(offset)

    async def wait_answerable(self, offset: int) -> None:
        """Return once the request that made the change at `offset` may be answered.

        A single broker answers when its replicas have followed, so that a new topic can be used at once. One of several
        answers when it has the change in its image, and waits for its own replicas only briefly. A node whose broker
        has not joined the cluster has no replicas to wait for.
        """
        # A controller without a broker, or one that has not joined yet: waiting here would never end.
        if self._task is None:
            return
        # First the image: the client's next Metadata request must not miss what this response promises.
        await self._known.wait_for(offset)
        if self._image is None or len(self._image.cluster.brokers) <= 1:
            await self._applied.wait_for(offset)
        elif self._partitions_queued <= PARTITIONS_WAITED_FOR_MAX:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPLICAS_WAIT_S):
                    await self._applied.wait_for(offset)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                change = self._queue.popleft()
                await self._apply(change)
                self._partitions_queued -= _count_partitions(change)
                # Also after a failed part: it was logged, and a response that waited for it would time out for nothing.
                self._applied.reach(change.image.provenance.offset)

    async def _apply(self, change: _MetadataChange) -> None:
        image = change.image
        settings = functools.partial(self._settings.resolve, image)
        if change.changed or change.deleted:
            # Replicas first: everything after this depends on their new roles.
            with self._contain_failure(change, part="replicas"):
                await self._replicas.apply(image, change.changed, change.deleted, settings, change.partitions)
        names = image.topics.by_name if change.reconfigured is None else change.reconfigured
        for name in names:
            if name in image.topics.by_name:
                with self._contain_failure(change, topic=name):
                    self._replicas.reconfigure(name, settings(name))
        for follower in self._followers:
            with self._contain_failure(change, part=getattr(follower, "__qualname__", str(follower))):
                follower(change.delta, image)

    @contextlib.contextmanager
    def _contain_failure(self, change: _MetadataChange, **what: str) -> Iterator[None]:
        """Log the failure of one part of a change, so that the other parts are applied."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - one part that fails must not stop the others
            offset = change.image.provenance.offset
            log.failure("metadata change partly failed", error, offset=offset, **what)


def _count_partitions(change: _MetadataChange) -> int:
    return sum(len(partitions) for partitions in change.partitions.values())
