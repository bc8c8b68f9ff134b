"""A REST proxy for `klamm.http.server`."""

from __future__ import annotations

import socket
import ssl

from klamm.http.app import HttpLogin
from klamm.http.server import ServedApp
from klamm.rest.app import RestApp
from klamm.rest.service import RestConfig, RestService


def make_rest(
    config: RestConfig,
    listening: socket.socket,
    *,
    login: HttpLogin | None = None,
    tls: ssl.SSLContext | None = None,
) -> ServedApp:
    """Return a proxy; it closes its consumer instances when it stops."""
    service = RestService(config)
    app = RestApp(service, login=login, scheme="http" if tls is None else "https")
    return ServedApp(app, service, listening, tls)
