"""The settings of OAUTHBEARER: how a listener validates tokens, and where a node gets its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from klamm.model.broker_configs import BROKER_CONFIGS
from klamm.model.errors import ConfigError
from klamm.security.bearer_credentials import URL as TOKEN_URL
from klamm.security.bearer_credentials import read_bearer_credentials
from klamm.security.core.bearer_claims import ClaimRules
from klamm.security.core.oauthbearer import OAUTHBEARER

if TYPE_CHECKING:
    from klamm.model.config import SettingValue
    from klamm.security.bearer_tokens import BearerCredentials
    from klamm.security.core.jaas import LoginModule
    from klamm.server.boot.config import NodeConfig

ALLOWED_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
"""A property of the JVM in Kafka, here a line of the properties file."""

SERVER_HANDLER: Final = "sasl.server.callback.handler.class"
VALIDATOR: Final = "OAuthBearerValidatorCallbackHandler"
UNSECURED_VALIDATOR: Final = "OAuthBearerUnsecuredValidatorCallbackHandler"
_JWKS_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
_JWT_VALIDATORS: Final = ("DefaultJwtValidator", "BrokerJwtValidator")
_HOW: Final = (
    f"write {_JWKS_URL} with the address of the identity provider's keys, or, for tokens without signature,"
    f" {SERVER_HANDLER}=org.apache.kafka.common.security.oauthbearer.internals.unsecured.{UNSECURED_VALIDATOR}"
)


@dataclass(frozen=True, slots=True)
class JwksSettings:
    """Where the keys of an identity provider are."""

    url: str
    refresh_ms: int
    retry_ms: int
    retry_max_ms: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class BearerSettings:
    """How a listener validates tokens."""

    rules: ClaimRules
    jwks: JwksSettings | None
    """None for tokens without signature."""


def simple_name(value: SettingValue) -> str:
    """Return the name of a Java class without its package."""
    return str(value or "").rpartition(".")[2]


def read_bearer(config: NodeConfig, listener: str, module: LoginModule | None) -> BearerSettings:
    """Return how a listener validates tokens; ConfigError unless a setting says how."""
    if module is not None and module.class_name != "OAuthBearerLoginModule":
        raise ConfigError(f"the JAAS line of {OAUTHBEARER} has {module.class_name}; write OAuthBearerLoginModule")
    handler = simple_name(config.listener_value(listener, SERVER_HANDLER, OAUTHBEARER))
    url = _text(config, listener, _JWKS_URL)
    if handler == UNSECURED_VALIDATOR:
        if url:
            raise ConfigError(f"{_JWKS_URL} has no effect with {UNSECURED_VALIDATOR}; remove one of them")
        return BearerSettings(_unsecured_rules(module), None)
    if handler not in ("", VALIDATOR):
        raise ConfigError(f"{SERVER_HANDLER}={handler} is Java code, which Klamm does not run; {_HOW}")
    validator = simple_name(config.listener_value(listener, "sasl.oauthbearer.jwt.validator.class", OAUTHBEARER))
    if validator not in _JWT_VALIDATORS:
        raise ConfigError(
            f"sasl.oauthbearer.jwt.validator.class={validator} is Java code, which Klamm does not run; remove it"
        )
    # CVE-2026-33557, CVE-2026-110985: without keys Kafka took tokens unchecked. A missing setting refuses.
    if not url:
        raise ConfigError(f"{OAUTHBEARER} needs a way to validate tokens; {_HOW}")
    return BearerSettings(_signed_rules(config, listener), _read_jwks(config, listener, url))


def read_own_bearer(config: NodeConfig, listener: str, module: LoginModule | None) -> BearerCredentials:
    """Return where this node gets the tokens with which it logs in at a listener of other nodes."""
    url = _text(config, listener, TOKEN_URL)
    if url:
        check_url(config, TOKEN_URL, url)
    try:
        return read_bearer_credentials(partial(_read_own, config, listener), module)
    except ConfigError as error:
        raise ConfigError(f"login of this node at listener {listener}: {error}") from None


def _read_own(config: NodeConfig, listener: str, name: str) -> Any:
    # Settings of clients that brokers do not have, such as librdkafka's.
    return config.listener_value(listener, name, OAUTHBEARER) if name in BROKER_CONFIGS else None


def check_url(config: NodeConfig, name: str, url: str) -> str:
    """Return a URL that this node may connect to; ConfigError for one that is not listed (CVE-2025-27817)."""
    from urllib.parse import urlsplit  # noqa: PLC0415 - only with OAUTHBEARER

    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path:
        return url
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{name}={url} is no URL; write file:///PATH or https://HOST/PATH")
    allowed = [entry.strip() for entry in config.static.get(ALLOWED_URLS, "").split(",")]
    if url not in allowed:
        raise ConfigError(f"{name}={url} is not in {ALLOWED_URLS}; write {ALLOWED_URLS}={url}")
    return url


def read_timeout_ms(config: NodeConfig, listener: str) -> int:
    """Return how long this node waits for an identity provider."""
    names = ("sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms")
    return max(_number(config, listener, name, 10_000) for name in names)


def _read_jwks(config: NodeConfig, listener: str, url: str) -> JwksSettings:
    return JwksSettings(
        check_url(config, _JWKS_URL, url),
        _number(config, listener, "sasl.oauthbearer.jwks.endpoint.refresh.ms"),
        _number(config, listener, "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"),
        _number(config, listener, "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
        read_timeout_ms(config, listener),
    )


def _signed_rules(config: NodeConfig, listener: str) -> ClaimRules:
    audiences = config.listener_value(listener, "sasl.oauthbearer.expected.audience", OAUTHBEARER)
    assert isinstance(audiences, tuple)
    return ClaimRules(
        _text(config, listener, "sasl.oauthbearer.sub.claim.name") or "sub",
        _text(config, listener, "sasl.oauthbearer.scope.claim.name") or "scope",
        audiences,
        _text(config, listener, "sasl.oauthbearer.expected.issuer") or None,
        _number(config, listener, "sasl.oauthbearer.clock.skew.seconds"),
    )


def _unsecured_rules(module: LoginModule | None) -> ClaimRules:
    """Return the rules of the options that Kafka's handler reads from the JAAS line."""

    def read(name: str, default: str) -> str:
        secret = module.option(f"unsecuredValidator{name}") if module is not None else None
        return secret.reveal().strip() if secret is not None else default

    skew = read("AllowableClockSkewMs", "0")
    if not skew.isdecimal():
        raise ConfigError("unsecuredValidatorAllowableClockSkewMs is no number of milliseconds")
    return ClaimRules(
        read("PrincipalClaimName", "sub"),
        read("ScopeClaimName", "scope"),
        clock_skew_s=int(skew) / 1000,
        requires_issue_time=False,
        required_scopes=tuple(read("RequiredScope", "").split()),
    )


def _text(config: NodeConfig, listener: str, name: str) -> str:
    return str(config.listener_value(listener, name, OAUTHBEARER) or "").strip()


def _number(config: NodeConfig, listener: str, name: str, default: int = 0) -> int:
    value = config.listener_value(listener, name, OAUTHBEARER)
    return value if isinstance(value, int) else default
