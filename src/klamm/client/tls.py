"""The ssl.* settings as an SSL context; created once per client, so that a mistake is raised when it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.client.client_settings import ClientSettings
from klamm.model.errors import ConfigError

if TYPE_CHECKING:
    import ssl

_JAVA_STORES: Final = (
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "ssl.keystore.location",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
)


def tls_context(settings: ClientSettings) -> ssl.SSLContext | None:
    """The context of ssl.context or of the files; None for PLAINTEXT. ConfigError for a file that cannot be used."""
    if settings.text("security.protocol").upper() not in ("SSL", "SASL_SSL"):
        return None
    import ssl  # noqa: PLC0415 - most connections are plaintext, and importing it is slow

    given = settings["ssl.context"]
    if isinstance(given, ssl.SSLContext):
        return given
    if given is not None:
        raise ConfigError(f"ssl.context is an ssl.SSLContext, not a {type(given).__name__}")
    if any(settings[name] for name in _JAVA_STORES):
        return _java_context(settings)
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


def _java_context(settings: ClientSettings) -> ssl.SSLContext:
    """The context of stores by the names of Java's clients."""
    from klamm.security.tls import client_context, read_tls_settings  # noqa: PLC0415 - as above

    mixed = [name for name in ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location") if settings[name]]
    if mixed:
        raise ConfigError(f"{mixed[0]} and ssl.truststore.* or ssl.keystore.* exclude each other; write one kind")
    return client_context(read_tls_settings(settings.by_name.get))
