"""What starts and stops with the server: the collector, the clients, the history."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from klamm.console.app.application import ConsoleApp, ConsoleParts
from klamm.console.audit import AuditTrail
from klamm.console.clusters import ClusterLink, ConsoleCluster
from klamm.console.collector import INTERVAL_S, CollectorThread
from klamm.console.core.samples import ClusterSample
from klamm.console.history import SampleHistory
from klamm.console.login.passwords import PasswordLogin
from klamm.console.login.sessions import SessionStore
from klamm.console.pipelines import PipelineDirectory
from klamm.console.settings import ConsoleSettings

if TYPE_CHECKING:
    from klamm.console.login.oidc import OidcLogin


@dataclass(frozen=True, slots=True)
class ConsoleConfig:
    """How a console runs."""

    clusters: tuple[ConsoleCluster, ...]
    settings: ConsoleSettings = field(default_factory=ConsoleSettings)
    history_path: str = ":memory:"
    interval_s: float = INTERVAL_S
    secure_cookies: bool = False
    pipeline_root: str | None = None
    """Where pipelines of this machine keep state, if not in the user's data folder."""


class ConsoleService:
    """A console in a process."""

    def __init__(self, config: ConsoleConfig) -> None:
        self._links = {cluster.name: ClusterLink(cluster) for cluster in config.clusters}
        self._history = SampleHistory(config.history_path)
        self._collector = CollectorThread(self._links.values(), self._keep, now_ms, config.interval_s)
        users = config.settings.users
        self.app = ConsoleApp(
            ConsoleParts(
                config.settings,
                self._links,
                self._history,
                AuditTrail(config.settings.audit_topic, now_ms),
                SessionStore(time.monotonic),
                PasswordLogin(users, time.monotonic) if users else None,
                self.refresh,
                now_ms,
                PipelineDirectory(now_ms, config.pipeline_root),
                config.secure_cookies,
                _make_oidc(config.settings),
            )
        )

    @property
    def links(self) -> Iterable[ClusterLink]:
        """The clusters."""
        return self._links.values()

    async def start(self) -> None:
        """Start collecting; a cluster that is down is shown as such and does not stop the start."""
        await asyncio.to_thread(self._collector.start)

    async def stop(self) -> None:
        """Stop collecting and close all clients."""
        await asyncio.to_thread(self._collector.stop)
        await self.app.finish_changes()
        for link in self._links.values():
            await link.close()
        self._history.close()

    async def refresh(self, cluster: str) -> None:
        """Collect a cluster at once and wait for it."""
        await asyncio.wrap_future(self._collector.refresh(cluster))

    def _keep(self, link: ClusterLink, sample: ClusterSample) -> None:
        self._history.record(link.name, sample)


def _make_oidc(settings: ConsoleSettings) -> OidcLogin | None:
    if settings.oidc is None:
        return None
    # PyJWT and cryptography are an extra of their own, and slow to import.
    from klamm.console.login.oidc import OidcLogin  # noqa: PLC0415

    return OidcLogin(settings.oidc)


def now_ms() -> int:
    """The clock of samples and charts."""
    return time.time_ns() // 1_000_000
