"""A registry in a process."""

from __future__ import annotations

import socket
import ssl

from klamm.http.app import HttpLogin
from klamm.http.server import ServedApp
from klamm.registry.app import RegistryApp
from klamm.registry.rights import SubjectRights
from klamm.registry.service import RegistryConfig, RegistryService
from klamm.registry.store.parsing import SchemaFormats


class _ServiceWithRights:
    """A registry that begins once its rights are read: until then it could refuse nothing."""

    def __init__(self, service: RegistryService, rights: SubjectRights) -> None:
        self._service = service
        self._rights = rights

    async def start(self) -> None:
        await self._rights.start()
        await self._service.start()

    async def stop(self) -> None:
        await self._service.stop()
        await self._rights.stop()


def make_registry(
    config: RegistryConfig,
    formats: SchemaFormats,
    listening: socket.socket,
    *,
    login: HttpLogin | None = None,
    rights: SubjectRights | None = None,
    tls: ssl.SSLContext | None = None,
    forward_tls: ssl.SSLContext | None = None,
) -> ServedApp:
    """Return a registry for `klamm.http.server.serve`; it leaves the group of registries when it stops."""
    service = RegistryService(config, formats)
    app = RegistryApp(service, login=login, rights=rights, tls=forward_tls)
    return ServedApp(app, service if rights is None else _ServiceWithRights(service, rights), listening, tls)
