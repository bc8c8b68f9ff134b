"""The public keys of an identity provider on a running node: fetched in a thread, and again before they are old."""

import asyncio
from dataclasses import dataclass

from klamm.model.clock import Clock
from klamm.model.errors import ConfigError
from klamm.security.core.bearer_claims import BearerIdentity, ClaimRules
from klamm.security.core.secret import Secret
from klamm.security.http import HttpSettings, fetch, file_path, read_bounded
from klamm.security.token_signatures import KeySet, UnknownKey, check_signed, parse_key_set
from klamm.telemetry.log import get_logger

log = get_logger("login")


@dataclass(frozen=True, slots=True)
class KeySource:
    """Where keys are, and when they are fetched again."""

    url: str
    """file:, http: or https:"""
    http: HttpSettings
    refresh_ms: int
    retry_ms: int
    retry_max_ms: int

    def load(self) -> KeySet:
        """Return the keys; OSError or ValueError if there are none. It blocks."""
        path = file_path(self.url)
        return parse_key_set(read_bounded(path) if path is not None else fetch(self.url, self.http))


class KeyStore:
    """The newest keys that could be loaded; those of a failed refresh stay in use."""

    def __init__(self, source: KeySource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self.keys = KeySet()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loading = False
        self._loaded_ms: int | None = None
        """When keys were last requested, by the monotonic clock."""
        self._failures = 0
        self._first_load = asyncio.Event()
        # A file must be readable. An identity provider may be down at the start: logins are refused until it is up.
        if file_path(source.url) is not None:
            try:
                self.keys = source.load()
            except (OSError, ValueError) as error:
                raise ConfigError(f"sasl.oauthbearer.jwks.endpoint.url={source.url}: {error}") from None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Fetch the keys now, and again after every interval."""
        if self._loop is None:
            self._loop = loop
            self._refresh()

    async def wait_for_first_load(self) -> None:
        """Wait until the keys are there or could not be fetched: before that, every login would be refused."""
        await self._first_load.wait()

    def close(self) -> None:
        """Fetch no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop = None

    def validate(self, rules: ClaimRules, token: Secret) -> BearerIdentity:
        """Return who a token identifies; InvalidToken otherwise."""
        try:
            return check_signed(token.reveal(), self.keys, rules, self._clock.now_ms() / 1000)
        except UnknownKey:
            self._refresh_early()
            raise

    def _refresh_early(self) -> None:
        """Fetch the keys once more: the provider may have begun to sign with a new one. This login is refused."""
        since = self._clock.monotonic_ms() - self._loaded_ms if self._loaded_ms is not None else None
        # Tokens with invented key ids must not make this node flood the identity provider.
        if self._loop is not None and (since is None or since >= self._source.retry_max_ms):
            self._refresh()

    def _refresh(self) -> None:
        if self._loop is None or self._loading:
            return
        self._loading = True
        self._loaded_ms = self._clock.monotonic_ms()
        if self._timer is not None:
            self._timer.cancel()
        self._loop.run_in_executor(None, self._source.load).add_done_callback(self._take)

    def _take(self, future: "asyncio.Future[KeySet]") -> None:
        self._loading = False
        self._first_load.set()
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self.keys = future.result()
            self._failures = 0
            wait_ms = self._source.refresh_ms
            log.debug("key set loaded", url=self._source.url, keys=len(self.keys.keys))
        elif isinstance(error, OSError | ValueError):
            wait_ms = min(self._source.retry_ms << min(self._failures, 20), self._source.retry_max_ms)
            self._failures += 1
            # Of a series of failures the first is logged, and then every tenth.
            if self._failures % 10 == 1:
                log.warning("key set not loaded", url=self._source.url, reason=error, retry_ms=wait_ms)
        else:
            raise error
        if self._loop is not None:
            self._timer = self._loop.call_later(wait_ms / 1000, self._refresh)
