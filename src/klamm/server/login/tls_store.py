"""The TLS context of a listener, made again when its files change."""

import os
import ssl
import stat

from klamm.model.clock import Clock
from klamm.model.errors import ConfigError
from klamm.security.core.certificate_validity import describe_invalid, describe_validity, valid_from_ms
from klamm.security.tls import (
    TlsSettings,
    check_identity,
    check_trusted,
    client_context,
    leaf_certificate,
    server_context,
)

Stamp = tuple[int, int, int]


class NotYetValid(ConfigError):
    """A certificate that is refused until it begins to be valid."""

    def __init__(self, reason: str, begin_ms: int) -> None:
        super().__init__(reason)
        self.begin_ms = begin_ms


class TlsStore:
    """A context and what it was made from; `context` is the last good one."""

    def __init__(
        self,
        listener: str,
        settings: TlsSettings,
        clock: Clock,
        *,
        is_server: bool,
        verifies_own: bool,
        may_change_subject: bool,
        may_change_names: bool,
    ) -> None:
        """`verifies_own`: nodes connect to each other here, so the trust store must verify the certificate."""
        self.listener = listener
        self.settings = settings
        self._clock = clock
        self._make = server_context if is_server else client_context
        self._verifies_own = verifies_own
        self._may_change_subject = may_change_subject
        self._may_change_names = may_change_names
        self._stamps = self._read_stamps()
        self._retry_ms: int | None = None
        """When the refused certificate of the files becomes valid."""
        self.context = self._make(settings)
        self._leaf = leaf_certificate(settings) if settings.has_key else None
        if verifies_own:
            check_trusted(settings)

    def find_warnings(self, host: str | None) -> list[str]:
        """Say what will make connections fail, now or soon; other nodes connect to `host`."""
        if self._leaf is None:
            return []
        warnings = []
        try:
            validity = describe_validity(self._leaf, self._clock.now_ms())
        except ValueError as error:
            validity = str(error)
        if validity is not None:
            warnings.append(validity)
        if (path := self.settings.keystore_location) is not None and (mode := _read_mode(path)) & 0o077:
            warnings.append(
                f"{path} has the private key and mode {mode:o}: other users may read it; run chmod 600 {path}"
            )
        if self._verifies_own and host is not None:
            try:
                check_trusted(self.settings, host)
            except ConfigError as error:
                warnings.append(f"other nodes cannot connect to {host}: {error}")
        return warnings

    def reload_if_changed(self) -> bool:
        """Make the context again if a file has changed; ConfigError for files that cannot be used, once per change."""
        stamps = self._read_stamps()
        is_due = self._retry_ms is not None and self._clock.now_ms() >= self._retry_ms
        if stamps == self._stamps and not is_due:
            return False
        self._stamps = stamps
        self._retry_ms = None
        try:
            self.context, self._leaf = self._prepare(self.settings)
        except NotYetValid as error:
            # The file does not change again when it becomes valid; the clock of an authority is often a little ahead.
            self._retry_ms = error.begin_ms
            raise
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
                self._check_valid(leaf)
            if self._verifies_own:
                check_trusted(settings)
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(str(error)) from None
        return context, leaf

    def _check_valid(self, leaf: bytes) -> None:
        now_ms = self._clock.now_ms()
        # The certificate in use may have expired since; a new trust store beside it is accepted all the same.
        if leaf == self._leaf or (reason := describe_invalid(leaf, now_ms)) is None:
            return
        begin_ms = valid_from_ms(leaf)
        raise NotYetValid(reason, begin_ms) if now_ms < begin_ms else ConfigError(reason)

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


def _read_mode(path: str) -> int:
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return 0
