"""The security of a running node: TLS contexts, and the channels of listeners that encrypt or authenticate."""

import asyncio
import secrets
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from klamm.metadata.image import MetadataImage
from klamm.model.clock import Clock
from klamm.model.errors import ConfigError
from klamm.net import Channel, FrameHandler, NetServer, OutboundSecurity
from klamm.net.acceptor import ChannelOpener
from klamm.security.core.bearer_claims import BearerIdentity, ClaimRules, check_unsecured
from klamm.security.core.distinguished_name import subject_name
from klamm.security.core.oauthbearer import BearerServer, Validate
from klamm.security.core.plain import PlainServer
from klamm.security.core.principal import Principal
from klamm.security.core.principal_mapping import map_subject
from klamm.security.core.scram import SCRAM_MECHANISMS, ScramHash, ScramKeys, ScramServer
from klamm.security.core.secret import Secret
from klamm.server.boot.listener_security import (
    ListenerSecurity,
    SaslMechanism,
    inner_listeners,
    own_host,
    read_listener_security,
    read_outbound,
    uses_tls,
)
from klamm.server.login.bearer_settings import BearerSettings, JwksSettings
from klamm.server.login.budget import TLS_BYTES, LoginBudget
from klamm.server.login.counts import LoginCounts
from klamm.server.login.handler import LoginHandler
from klamm.server.login.mechanisms import (
    BeginMechanism,
    EnabledMechanism,
    Identify,
    ScramDecoys,
    TokenCredentials,
    identify_bearer,
    identify_scram,
    identify_user,
)
from klamm.server.login.settings import FRAME_BYTES_MAX, LOGIN_SECONDS_MAX, LoginSettings
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    import ssl

    from klamm.net.tls_channel import TlsChannel
    from klamm.security.key_store import KeyStore
    from klamm.security.tls import TlsSettings
    from klamm.server.boot.config import NodeConfig
    from klamm.server.login.tls_store import TlsStore
    from klamm.server.services import Services

log = get_logger("login")


class NodeSecurity:
    """What protects the listeners of a node and its connections to others."""

    def __init__(self, config: "NodeConfig", clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self.listeners = {
            listener.name: read_listener_security(config, listener)
            for listener in config.listeners
            if listener.security_protocol != "PLAINTEXT"
        }
        self._contexts: dict[str, TlsStore] = {}
        """Of listeners, by their names."""
        self._stores: list[TlsStore] = []
        self._outbound: dict[str, OutboundSecurity] = {}
        self.login_counts = LoginCounts()
        self._budget = LoginBudget(counts=self.login_counts)
        self._decoys = ScramDecoys()
        key = config.text("delegation.token.secret.key")
        self._tokens = TokenCredentials(Secret(key) if key else None, clock)
        self._key_stores: dict[JwksSettings, KeyStore] = {}
        self._load_contexts()
        self._warn_of_certificates(self._stores)
        for security in self.listeners.values():
            for mechanism in security.mechanisms:
                if mechanism.bearer is not None and mechanism.bearer.jwks is not None:
                    self._add_key_store(mechanism.bearer.jwks)

    def start(self) -> None:
        """Fetch the keys of identity providers, and again before they are old."""
        for store in self._key_stores.values():
            store.start(asyncio.get_running_loop())

    async def wait_for_keys(self) -> None:
        """Wait for the first answer of each identity provider, or for its timeout."""
        for store in self._key_stores.values():
            await store.wait_for_first_load()

    def close(self) -> None:
        """Fetch no more keys."""
        for store in self._key_stores.values():
            store.close()

    def reload_changed(self) -> None:
        """Load stores whose files have changed; new handshakes use them. One that cannot be used changes nothing."""
        reloaded = []
        for store in self._stores:
            try:
                if store.reload_if_changed():
                    log.info("certificate reloaded", listener=store.listener)
                    reloaded.append(store)
            except ConfigError as error:
                # The last good one stays in use; once per change, not once per check.
                log.error("certificate not reloaded", listener=store.listener, reason=error)  # noqa: TRY400 - no bug
        self._warn_of_certificates(reloaded)

    def stores(self, listener: str) -> "list[TlsStore]":
        """Return the stores of a listener: as a server, and of nodes that connect to each other as a client."""
        return [store for store in self._stores if store.listener == listener]

    def _load_contexts(self) -> None:
        """Read the key and trust stores; ConfigError for one that cannot be used."""
        for name, security in self.listeners.items():
            if security.tls is not None:
                self._contexts[name] = self._watch(name, security.tls, is_server=True)
        for name, setting in inner_listeners(self._config).items():
            if self._config.security_protocols[name] == "PLAINTEXT":
                continue
            tls, credentials = read_outbound(self._config, name, setting)
            make_context: Callable[[], ssl.SSLContext] | None = None
            if tls is not None:
                store = self._watch(name, tls, is_server=False)
                make_context = partial(getattr, store, "context")
            self._outbound[name] = OutboundSecurity(make_context, credentials)

    def _watch(self, listener: str, tls: "TlsSettings", *, is_server: bool) -> "TlsStore":
        from klamm.server.login.tls_store import TlsStore  # noqa: PLC0415 - only nodes with TLS

        try:
            store = TlsStore(
                listener,
                tls,
                self._clock,
                is_server=is_server,
                # A broker has no certificate of a controller listener that only other nodes serve.
                verifies_own=listener in self.listeners and listener in inner_listeners(self._config),
                may_change_subject=self._config.flag("ssl.allow.dn.changes"),
                may_change_names=self._config.flag("ssl.allow.san.changes"),
            )
        except ConfigError as error:
            raise ConfigError(f"listener {listener}: {error}") from None
        self._stores.append(store)
        return store

    def _warn_of_certificates(self, stores: "list[TlsStore]") -> None:
        # The listener between nodes has two stores with the same certificate.
        for store in {store.listener: store for store in stores}.values():
            for warning in store.find_warnings(own_host(self._config, store.listener)):
                log.warning("certificate needs attention", listener=store.listener, reason=warning)

    def warn_of_missing_users(self, image: MetadataImage) -> None:
        """Log the SCRAM mechanisms of listeners by which no user and no delegation token can log in."""
        if image.delegation_tokens and self._tokens.enabled:
            # A token logs in by any of them.
            return
        numbers = {number for number, _ in image.scram}
        for security in self.listeners.values():
            for mechanism in security.mechanisms:
                scram = SCRAM_MECHANISMS.get(mechanism.name)
                if scram is not None and scram.number not in numbers:
                    log.warning(
                        "SCRAM listener has no users",
                        listener=security.listener,
                        mechanism=mechanism.name,
                        hint="klamm user add NAME, or storage format --add-scram",
                    )

    def outbound(self, listener: str) -> OutboundSecurity | None:
        """Return how this node connects to a listener of other nodes; None for a PLAINTEXT one."""
        return self._outbound.get(listener)

    # Listeners

    def openers(self, services: "Services", router: FrameHandler) -> dict[str, ChannelOpener]:
        """Return what makes the channels of all listeners that are not PLAINTEXT."""
        openers: dict[str, ChannelOpener] = {}
        for name, security in self.listeners.items():
            login = self._login_settings(services, security) if security.mechanisms else None
            if uses_tls(security.protocol):
                openers[name] = partial(self._open_tls, security, login, router)
            else:
                assert login is not None
                openers[name] = partial(_open_login, login, router)
        return openers

    def _login_settings(self, services: "Services", security: ListenerSecurity) -> LoginSettings:
        config = self._config
        size = "sasl.server.max.receive.size"
        return LoginSettings(
            {mechanism.name: self._enable(services, mechanism) for mechanism in security.mechanisms},
            self._clock,
            self._budget,
            config.integer(size) if size in config.static else FRAME_BYTES_MAX,
            config.integer("socket.request.max.bytes"),
            config.integer("connection.failed.authentication.delay.ms"),
            self.login_counts,
        )

    def _enable(self, services: "Services", mechanism: SaslMechanism) -> EnabledMechanism:
        scram = SCRAM_MECHANISMS.get(mechanism.name)
        identify: Identify = identify_user
        if mechanism.bearer is not None:
            begin: BeginMechanism = partial(BearerServer, self._validator(mechanism.bearer))
            identify = identify_bearer
        elif scram is None:
            begin = partial(PlainServer, mechanism.users)
        else:
            begin = partial(_begin_scram, services, scram, self._decoys, self._tokens)
            identify = partial(identify_scram, services)
        return EnabledMechanism(begin, identify, mechanism.reauthentication_ms)

    def _add_key_store(self, jwks: JwksSettings) -> None:
        # Only nodes with OAUTHBEARER: PyJWT and cryptography are an extra, and large.
        from klamm.security.http import HttpSettings  # noqa: PLC0415
        from klamm.security.key_store import KeySource, KeyStore  # noqa: PLC0415

        if jwks not in self._key_stores:
            http = HttpSettings(jwks.timeout_ms / 1000)
            source = KeySource(jwks.url, http, jwks.refresh_ms, jwks.retry_ms, jwks.retry_max_ms)
            self._key_stores[jwks] = KeyStore(source, self._clock)

    def _validator(self, bearer: BearerSettings) -> Validate:
        if bearer.jwks is None:
            return partial(_check_unsecured, self._clock, bearer.rules)
        return partial(self._key_stores[bearer.jwks].validate, bearer.rules)

    def _open_tls(
        self,
        security: ListenerSecurity,
        login: LoginSettings | None,
        router: FrameHandler,
        net: NetServer,
        sock: socket.socket,
        listener: str,
        context: object,
    ) -> Channel:
        from klamm.net.tls_channel import TlsChannel  # noqa: PLC0415 - only listeners with TLS

        channel = TlsChannel(
            net,
            sock,
            listener,
            context,
            tls=self._contexts[listener].context,
            handshake_seconds=LOGIN_SECONDS_MAX,
            on_handshake=partial(_set_principal, security),
        )
        if login is not None:
            channel.handler = LoginHandler(net.loop, login, router, channel)
        else:
            channel.handler = _HandshakeHandler(router, self._budget)
            self._budget.add(channel, TLS_BYTES, TLS_BYTES)
        return channel


class _HandshakeHandler:
    """The handler of an SSL connection during its handshake; there are no frames yet."""

    def __init__(self, router: FrameHandler, budget: LoginBudget) -> None:
        self.router = router
        self.budget = budget

    def handle(self, channel: Channel, view: memoryview, start: int, end: int) -> None:
        """Never called: the router has taken over when the first frame is read."""
        self.router.handle(channel, view, start, end)

    def on_closed(self, channel: Channel) -> None:
        """Count the connection no more."""
        self.budget.remove(channel)


def _begin_scram(
    services: "Services", mechanism: ScramHash, decoys: ScramDecoys, tokens: TokenCredentials
) -> ScramServer:
    # At random, not by the node's own source, which a simulation seeds: a nonce that can be guessed can be replayed.
    nonce = secrets.token_urlsafe(24)
    find_keys = partial(_find_keys, services, mechanism, tokens)
    # With the image of the moment: it changes with every user.
    return ScramServer(mechanism, find_keys, nonce=nonce, make_decoy=partial(decoys.make, services.image, mechanism))


def _find_keys(
    services: "Services", mechanism: ScramHash, tokens: TokenCredentials, user: str, is_token: bool
) -> ScramKeys | None:
    if is_token:
        return tokens.find(services.image, mechanism, user)
    credential = services.image.scram.get((mechanism.number, user))
    if credential is None:
        return None
    return ScramKeys(
        bytes(credential.salt), bytes(credential.stored_key), bytes(credential.server_key), credential.iterations
    )


def _check_unsecured(clock: Clock, rules: ClaimRules, token: Secret) -> BearerIdentity:
    return check_unsecured(token.reveal(), rules, clock.now_ms() / 1000)


def _open_login(
    login: LoginSettings, router: FrameHandler, net: NetServer, sock: socket.socket, listener: str, context: object
) -> Channel:
    channel = Channel(net, sock, listener, context)
    channel.handler = LoginHandler(net.loop, login, router, channel)
    return channel


def _set_principal(security: ListenerSecurity, channel: "TlsChannel") -> None:
    """Name the peer by its certificate and let the router handle its requests; with SASL the login does both."""
    if security.protocol == "SSL":
        certificate = channel.peer_certificate()
        if certificate is not None:
            channel.principal = Principal("User", map_subject(security.mapping_rules, subject_name(certificate)))
        handshake = channel.handler
        assert isinstance(handshake, _HandshakeHandler)
        handshake.budget.remove(channel)
        channel.handler = handshake.router
