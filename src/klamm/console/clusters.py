"""The clusters of a console, and the clients that its pages share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.consumer import AsyncConsumer
from klamm.client.producer import AsyncProducer
from klamm.console.core.cluster_signs import ClusterSigns
from klamm.console.core.commands import CommandTarget, describe_security
from klamm.console.core.known_pipelines import KnownPipelines
from klamm.console.core.sample_views import SampleViews, make_views
from klamm.console.core.samples import ClusterSample
from klamm.console.insync_minimums import InsyncMinimums
from klamm.console.record_decoder import RecordDecoder
from klamm.console.schema_client import SchemaClient

CLIENT_ID: Final = "klamm-console"
_REQUEST_S: Final = 10
_CONNECT_S: Final = 4
_SAMPLE_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class ConsoleCluster:
    """A cluster by name, with settings for each kind of client."""

    name: str
    bootstrap: str
    context: str | None = None
    """The context of the command line that it comes from."""
    protected: bool = False
    """Whether changes need its name."""
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By kind of client: admin, producer, consumer."""
    registry_url: str | None = None

    def client_settings(self, kind: str, **more: Any) -> dict[str, Any]:
        """Return the settings of a client."""
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": CLIENT_ID,
            **self.settings.get(kind, {}),
            **more,
        }

    @property
    def command_target(self) -> CommandTarget:
        """How commands that the pages show name it."""
        return CommandTarget(self.context, self.bootstrap, describe_security(self.settings.get("admin", {})))


class ClusterLink:
    """One cluster: its last sample, and clients for what a sample does not have."""

    def __init__(self, cluster: ConsoleCluster) -> None:
        self.cluster = cluster
        self.views: SampleViews | None = None
        """Of the last sample."""
        self.error: str = ""
        """Why the last collection failed; empty when it did not."""
        self.pipelines: KnownPipelines | None = None
        """What its topics say about pipelines; None until the collector's thread has read them."""
        self._stale_after_ms: float | None = None
        """Age of the sample from which it no longer shows the cluster as it is."""
        self.schemas = None if cluster.registry_url is None else SchemaClient(cluster.registry_url)
        self.decoder = None if self.schemas is None else RecordDecoder(self.schemas.registry)
        self.insync_minimums = InsyncMinimums()
        self._starting = asyncio.Lock()
        self._admin: AsyncAdmin | None = None
        self._producer: AsyncProducer | None = None

    @property
    def name(self) -> str:
        """The name of the cluster in URLs."""
        return self.cluster.name

    @property
    def sample(self) -> ClusterSample | None:
        """The last sample; None before the first."""
        return None if self.views is None else self.views.sample

    def publish(self, sample: ClusterSample, signs: ClusterSigns | None = None) -> None:
        """Take a new sample; called by the collector's thread. Pages see the sample before or this one, as a whole."""
        self.views = make_views(sample, self.sample, signs or ClusterSigns())
        self.error = ""

    def expect_sample(self, seconds: float) -> None:
        """Set within what time the next collection is expected to end; called by the collector's thread."""
        assert self.sample is not None
        # A collection takes about as long as the one before it.
        self._stale_after_ms = (seconds + self.sample.collected_s) * 1000

    def is_stale(self, now_ms: int) -> bool:
        """Whether collections fail, or the next sample is overdue."""
        if self.error:
            return True
        sample, stale_after_ms = self.sample, self._stale_after_ms
        return sample is not None and stale_after_ms is not None and now_ms - sample.time_ms > stale_after_ms

    async def wait_for_sample(self, seconds: float) -> None:
        """Wait until a first sample is there or could not be taken; the collector's thread takes it after the start."""
        deadline_s = time.monotonic() + seconds
        # Polled: samples are published by another thread, and only pages of the first second wait.
        while self.views is None and not self.error and time.monotonic() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(_SAMPLE_POLL_S)

    async def admin(self) -> AsyncAdmin:
        """Return the admin client of the pages, connected at its first use."""
        async with self._starting:
            if self._admin is None:
                admin = AsyncAdmin(self.client_settings("admin"))
                await admin.start()
                self._admin = admin
            return self._admin

    async def producer(self) -> AsyncProducer:
        """Return the producer of the pages, connected at its first use."""
        async with self._starting:
            if self._producer is None:
                producer = AsyncProducer(self.client_settings("producer"))
                await producer.start()
                self._producer = producer
            return self._producer

    def consumer(self, **more: Any) -> AsyncConsumer[bytes | None, bytes | None]:
        """Return a consumer without a group, for one reading."""
        return AsyncConsumer(self.client_settings("consumer", **{"enable.auto.commit": False, **more}))

    def client_settings(self, kind: str, **more: Any) -> dict[str, Any]:
        """Return settings with timeouts for a page: a person waits."""
        timeout_ms = _REQUEST_S * 1000
        # A record that is not stored by then fails before the request of the page ends.
        delivery = {"max.block.ms": timeout_ms, "delivery.timeout.ms": 3 * timeout_ms, "linger.ms": 0}
        waits = (
            {**delivery, "request.timeout.ms": 2 * timeout_ms}
            if kind == "producer"
            else {"default.api.timeout.ms": timeout_ms}
        )
        return self.cluster.client_settings(kind, **{"bootstrap.timeout.ms": _CONNECT_S * 1000, **waits, **more})

    async def close(self) -> None:
        """Close the clients."""
        await self.insync_minimums.close()
        admin, producer = self._admin, self._producer
        self._admin = self._producer = None
        if producer is not None:
            await producer.close()
        if admin is not None:
            await admin.close()
