"""The TLS context of a listener, made again when its files change."""

import os
import ssl

from klamm.model.errors import ConfigError
from klamm.security.tls import TlsSettings, check_identity, client_context, leaf_certificate, server_context

Stamp = tuple[int, int, int]


class TlsStore:
    """A context and what it was made from; `context` is the last good one."""

    def __init__(
        self, listener: str, settings: TlsSettings, *, is_server: bool, may_change_subject: bool, may_change_names: bool
    ) -> None:
        self.listener = listener
        self.settings = settings
        self._make = server_context if is_server else client_context
        self._may_change_subject = may_change_subject
        self._may_change_names = may_change_names
        self._stamps = self._read_stamps()
        self.context = self._make(settings)
        self._leaf = leaf_certificate(settings) if settings.has_key else None

    def reload_if_changed(self) -> bool:
        """Make the context again if a file has changed; ConfigError for files that cannot be used, once per change."""
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        self.context, self._leaf = self._prepare(self.settings)
        return True

    def check(self, settings: TlsSettings) -> None:
        """Raise ConfigError for other stores that `change` would refuse."""
        self._prepare(settings)

    def change(self, settings: TlsSettings) -> None:
        """Use other stores for new handshakes; ConfigError leaves everything as it is."""
        self.context, self._leaf = self._prepare(settings)
        self.settings = settings
        self._stamps = self._read_stamps()

    def _prepare(self, settings: TlsSettings) -> tuple[ssl.SSLContext, bytes | None]:
        # As in Kafka: a listener that had no store when it was started cannot get one, nor lose it.
        if settings.has_key != self.settings.has_key:
            raise ConfigError("a key store cannot be added to a running listener, nor taken from it")
        if settings.has_trust != self.settings.has_trust:
            raise ConfigError("a trust store cannot be added to a running listener, nor taken from it")
        try:
            context = self._make(settings)
            leaf = leaf_certificate(settings) if settings.has_key else None
            if leaf is not None and self._leaf is not None:
                check_identity(
                    self._leaf,
                    leaf,
                    may_change_subject=self._may_change_subject,
                    may_change_names=self._may_change_names,
                )
        except ValueError as error:
            raise ConfigError(str(error)) from None
        return context, leaf

    def _read_stamps(self) -> list[Stamp | None]:
        stamps: list[Stamp | None] = []
        for path in self.settings.files:
            try:
                status = os.stat(path)
                # The inode, too: a file that is renamed over another may have an older time.
                stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
            except OSError:
                stamps.append(None)
        return stamps
