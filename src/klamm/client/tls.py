"""What the ssl.* settings say, as a context for connections; made once per client, so mistakes show at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.client.config import ClientSettings
from klamm.model.errors import ConfigError

if TYPE_CHECKING:
    import ssl


def tls_context(settings: ClientSettings) -> ssl.SSLContext | None:
    """The context given or described; None for a client that speaks in plain. ConfigError for files that are none."""
    if settings.text("security.protocol").upper() != "SSL":
        return None
    import ssl  # noqa: PLC0415 - most connections are plain, and it takes a while

    given = settings["ssl.context"]
    if isinstance(given, ssl.SSLContext):
        return given
    if given is not None:
        raise ConfigError(f"ssl.context is an ssl.SSLContext, not a {type(given).__name__}")
    name = "ssl.ca.location"
    try:
        context = ssl.create_default_context(cafile=settings[name])
        if settings["ssl.certificate.location"]:
            name = "ssl.certificate.location"
            context.load_cert_chain(settings[name], settings["ssl.key.location"], settings["ssl.key.password"] or "")
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"{name}={settings[name]} cannot be used: {error}") from error
    if not settings.text("ssl.endpoint.identification.algorithm"):
        context.check_hostname = False
    return context
