"""The sasl.oauthbearer.* settings of a client, or of a node at other nodes, as credentials."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from klamm.model.errors import ConfigError
from klamm.security.bearer_tokens import (
    BearerCredentials,
    FileProvider,
    JwtBearerProvider,
    OidcProvider,
    TokenEndpoint,
    UnsecuredProvider,
)
from klamm.security.core.jaas import LoginModule
from klamm.security.core.oauthbearer import OAUTHBEARER, check_extension
from klamm.security.core.secret import Secret
from klamm.security.core.token_refresh import RefreshRules
from klamm.security.token_assertions import ALGORITHMS, GRANT_TYPE, AssertionFile, AssertionSigner

URL: Final = "sasl.oauthbearer.token.endpoint.url"
_JWT_BEARER: Final = "JwtBearerJwtRetriever"
_RETRIEVER: Final = "sasl.oauthbearer.jwt.retriever.class"
_RETRIEVERS: Final = ("", "DefaultJwtRetriever", "ClientCredentialsJwtRetriever", "FileJwtRetriever", _JWT_BEARER)
_GRANT_TYPE: Final = "sasl.oauthbearer.grant.type"
_ASSERTION: Final = "sasl.oauthbearer.assertion."
_HANDLERS: Final = ("", "OAuthBearerLoginCallbackHandler", "OAuthBearerUnsecuredLoginCallbackHandler")
_UNSECURED: Final = "unsecuredLogin"
_LIFETIME: Final = f"{_UNSECURED}LifetimeSeconds"
# librdkafka's names behind Java's.
_CLIENT_ID: Final = ("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id")
_CLIENT_SECRET: Final = ("sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.client.secret")
_REFRESH: Final = (
    "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter",
    "sasl.login.refresh.min.period.seconds",
    "sasl.login.refresh.buffer.seconds",
)
_HOW: Final = f"write {URL} with {_CLIENT_ID[0]} and {_CLIENT_SECRET[0]}"

Read = Callable[[str], Any]
"""The value of a setting; None if it is not set."""


def read_bearer_credentials(read: Read, module: LoginModule | None) -> BearerCredentials:
    """Return what sasl.oauthbearer.* and the JAAS line say; ConfigError if they name no source of tokens."""
    _check_classes(read)
    options = dict(module.options) if module is not None else {}
    if module is not None and module.class_name != "OAuthBearerLoginModule":
        raise ConfigError(f"sasl.jaas.config has {module.class_name}; {OAUTHBEARER} needs OAuthBearerLoginModule")
    extensions = _read_extensions(read, options)
    url = _text(read, URL)
    if not url:
        claims = {name: value for name, value in options.items() if name.startswith(_UNSECURED)}
        if not claims:
            raise ConfigError(f"{OAUTHBEARER} needs a token; {_HOW}")
        provider = _unsecured_provider(claims)
        return BearerCredentials(provider, str(provider.claims["sub"]), extensions, _refresh_rules(read))
    return _read_endpoint(read, url, options, extensions)


def _read_endpoint(
    read: Read, url: str, options: Mapping[str, Secret], extensions: Mapping[str, str]
) -> BearerCredentials:
    from klamm.security.http import HttpSettings, file_path  # noqa: PLC0415 - slow to import

    rules = _refresh_rules(read)
    path = file_path(url)
    if path is not None:
        return BearerCredentials(FileProvider(path), extensions=extensions, rules=rules)
    if not url.startswith(("https://", "http://")):
        raise ConfigError(f"{URL}={url} is no URL; write https://HOST/PATH or file:///PATH")
    timeout_ms = max(read(name) or 10_000 for name in ("sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms"))
    endpoint = TokenEndpoint(
        url,
        HttpSettings(timeout_ms / 1000, _text(read, "https.ca.location") or None),
        read("sasl.login.retry.backoff.ms") or 100,
        read("sasl.login.retry.backoff.max.ms") or 10_000,
    )
    scope = _first(read, ("sasl.oauthbearer.scope",), options.get("scope"))
    if _text(read, _RETRIEVER).endswith(_JWT_BEARER) or _text(read, _GRANT_TYPE) == GRANT_TYPE:
        assertion = _read_assertion(read)
        user = assertion.claims.get("sub", "") if isinstance(assertion, AssertionSigner) else ""
        provider = JwtBearerProvider(endpoint, assertion, scope)
        return BearerCredentials(provider, user or "the subject of the assertion", extensions, rules)
    client_id = _first(read, _CLIENT_ID, options.get("clientId"))
    client_secret = _first(read, _CLIENT_SECRET, options.get("clientSecret"))
    if not client_id or not client_secret:
        raise ConfigError(f"{URL} needs a client id and a client secret; {_HOW}")
    urlencode = bool(read("sasl.oauthbearer.header.urlencode"))
    client = OidcProvider(endpoint, client_id, Secret(client_secret), scope, urlencode)
    return BearerCredentials(client, client_id, extensions, rules)


def _read_assertion(read: Read) -> AssertionFile | AssertionSigner:
    """Return the source of assertions; ConfigError if the settings name none."""
    path = _text(read, f"{_ASSERTION}file")
    if path:
        return AssertionFile(path)
    key_path = _text(read, f"{_ASSERTION}private.key.file")
    if not key_path:
        raise ConfigError(
            f"{GRANT_TYPE} needs an assertion; write {_ASSERTION}private.key.file with the key that signs it, "
            f"or {_ASSERTION}file with a signed one"
        )
    algorithm = (_text(read, f"{_ASSERTION}algorithm") or ALGORITHMS[0]).upper()
    if algorithm not in ALGORITHMS:
        raise ConfigError(f"{_ASSERTION}algorithm={algorithm} is not supported; write one of {', '.join(ALGORITHMS)}")
    passphrase = read(f"{_ASSERTION}private.key.passphrase")
    claims = {name: _text(read, f"{_ASSERTION}claim.{name}") for name in ("iss", "sub", "aud")}
    default = AssertionSigner("")
    lifetime_s, valid_before_s = (read(f"{_ASSERTION}claim.{name}.seconds") for name in ("exp", "nbf"))
    return AssertionSigner(
        key_path,
        Secret(str(passphrase)) if passphrase else None,
        algorithm,
        {name: value for name, value in claims.items() if value},
        default.lifetime_s if lifetime_s is None else lifetime_s,
        default.valid_before_s if valid_before_s is None else valid_before_s,
        bool(read(f"{_ASSERTION}claim.jti.include")),
        _text(read, f"{_ASSERTION}template.file") or None,
    )


def _check_classes(read: Read) -> None:
    for setting, known in (
        (_RETRIEVER, _RETRIEVERS),
        ("sasl.login.callback.handler.class", _HANDLERS),
        ("sasl.login.class", ("", "OAuthBearerRefreshingLogin")),
    ):
        name = _text(read, setting).rpartition(".")[2]
        if name not in known:
            raise ConfigError(f"{setting}={name} is Java code, which Klamm does not run; remove it")


def _read_extensions(read: Read, options: Mapping[str, Secret]) -> dict[str, str]:
    """Return those of the JAAS line (extension_NAME) and of librdkafka's setting (NAME=VALUE,...)."""
    prefix = "extension_"
    extensions = {
        name.removeprefix(prefix): value.reveal() for name, value in options.items() if name.startswith(prefix)
    }
    for pair in filter(None, _text(read, "sasl.oauthbearer.extensions").split(",")):
        name, _, value = pair.partition("=")
        extensions[name.strip()] = value.strip()
    for name, value in extensions.items():
        try:
            check_extension(name, value)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    return extensions


def _unsecured_provider(options: Mapping[str, Secret]) -> UnsecuredProvider:
    claims: dict[str, Any] = {}
    for name, secret in options.items():
        value = secret.reveal()
        kind, _, claim = name.removeprefix(_UNSECURED).partition("Claim_")
        if kind == "String" and claim:
            claims[claim] = value
        elif kind == "List" and claim:
            claims[claim] = value[1:].split(value[0]) if value else []
        elif name != _LIFETIME:
            raise ConfigError(f"sasl.jaas.config: option {name} is not supported")
    lifetime = options[_LIFETIME].reveal() if _LIFETIME in options else "3600"
    if not lifetime.isdecimal() or not claims.get("sub"):
        raise ConfigError(f"sasl.jaas.config: write {_UNSECURED}StringClaim_sub=USER, and {_LIFETIME} as a number")
    return UnsecuredProvider(claims, int(lifetime))


def _refresh_rules(read: Read) -> RefreshRules:
    values = [read(name) for name in _REFRESH]
    default = RefreshRules()
    defaults = (default.window_factor, default.window_jitter, default.min_period_s, default.buffer_s)
    return RefreshRules(*(known if value is None else value for value, known in zip(values, defaults, strict=True)))


def _first(read: Read, names: tuple[str, ...], option: Secret | None) -> str:
    values = (_text(read, name) for name in names)
    return next(filter(None, values), "") or (option.reveal() if option is not None else "")


def _text(read: Read, name: str) -> str:
    return str(read(name) or "").strip()
