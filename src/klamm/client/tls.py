"""The ssl.* settings as an SSL context; created once per client, so that a mistake is raised when it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.client.client_settings import ClientSettings
from klamm.model.errors import ConfigError

if TYPE_CHECKING:
    import ssl


def tls_context(settings: ClientSettings) -> ssl.SSLContext | None:
    """The context of ssl.context or of the files; None for PLAINTEXT. ConfigError for a file that cannot be used."""
    if settings.text("security.protocol").upper() != "SSL":
        return None
    import ssl  # noqa: PLC0415 - most connections are plaintext, and importing it is slow

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
            # "" and not None: with None OpenSSL would ask on the terminal for the password of an encrypted key.
            context.load_cert_chain(settings[name], settings["ssl.key.location"], settings["ssl.key.password"] or "")
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"{name}={settings[name]} cannot be used: {error}") from error
    # As in Java, an empty value turns hostname verification off; the certificate chain is still verified.
    if not settings.text("ssl.endpoint.identification.algorithm"):
        context.check_hostname = False
    return context
