"""Settings of logins with bearer tokens (OAUTHBEARER), by Java's names and librdkafka's."""

from __future__ import annotations

from typing import Final

from klamm.model.config import ConfigKey, ConfigType
from klamm.model.config_rules import at_least, between, one_of

S, PASSWORD, INT, L = ConfigType.STRING, ConfigType.PASSWORD, ConfigType.INT, ConfigType.LONG

OAUTH: Final = (
    ConfigKey(
        "sasl.oauth.token.provider",
        ConfigType.CLASS,
        None,
        "A function, async or not, or an object with a method token; returns a bearer token, or a tuple of the token "
        "and the time in seconds at which it expires.",
    ),
    ConfigKey(
        "sasl.oauthbearer.token.endpoint.url", S, None, "URL from which tokens are requested, or a file: with a token."
    ),
    ConfigKey("sasl.oauthbearer.client.credentials.client.id", S, None, "Client id at the identity provider."),
    ConfigKey("sasl.oauthbearer.client.credentials.client.secret", PASSWORD, None, "The secret of that client id."),
    ConfigKey("sasl.oauthbearer.scope", S, None, "Scope that is requested with a token."),
    ConfigKey(
        "sasl.oauthbearer.header.urlencode",
        ConfigType.BOOLEAN,
        False,
        "Whether client id and secret are URL-encoded in the request of a token (RFC 6749).",
    ),
    # librdkafka's.
    ConfigKey(
        "sasl.oauthbearer.method",
        S,
        "default",
        "oidc requests tokens from an identity provider, as token.endpoint.url alone does, too.",
        rule=one_of("default", "oidc", any_case=True),
    ),
    ConfigKey("sasl.oauthbearer.client.id", S, None, "As sasl.oauthbearer.client.credentials.client.id."),
    ConfigKey(
        "sasl.oauthbearer.client.secret", PASSWORD, None, "As sasl.oauthbearer.client.credentials.client.secret."
    ),
    ConfigKey("sasl.oauthbearer.extensions", S, None, "Extensions that are sent with the token: name=value,..."),
    ConfigKey("https.ca.location", S, None, "A PEM file with the authorities trusted for the identity provider."),
    # Java's classes: those of Kafka itself are accepted, others are refused.
    ConfigKey(
        "sasl.oauthbearer.jwt.retriever.class", S, None, "Accepted for Java's default classes; refused otherwise."
    ),
    ConfigKey("sasl.login.callback.handler.class", S, None, "Accepted for Java's default classes; refused otherwise."),
    ConfigKey("sasl.login.class", S, None, "Accepted for Java's default classes; refused otherwise."),
    ConfigKey(
        "sasl.login.connect.timeout.ms", INT, None, "How long to wait for a connection to the identity provider."
    ),
    ConfigKey("sasl.login.read.timeout.ms", INT, None, "How long to wait for the identity provider's response."),
    ConfigKey("sasl.login.retry.backoff.ms", L, 100, "The first wait before a token is requested again; it doubles."),
    ConfigKey(
        "sasl.login.retry.backoff.max.ms", L, 10_000, "For how long a token is requested again.", rule=at_least(0)
    ),
    ConfigKey(
        "sasl.login.refresh.window.factor",
        ConfigType.DOUBLE,
        0.8,
        "Part of a token's lifetime after which the next login gets another one.",
        rule=between(0.5, 1.0),
    ),
    ConfigKey(
        "sasl.login.refresh.window.jitter",
        ConfigType.DOUBLE,
        0.05,
        "Random part added to it.",
        rule=between(0.0, 0.25),
    ),
    ConfigKey(
        "sasl.login.refresh.min.period.seconds",
        ConfigType.SHORT,
        60,
        "Shortest time between two requests of tokens.",
        rule=between(0, 900),
    ),
    ConfigKey(
        "sasl.login.refresh.buffer.seconds",
        ConfigType.SHORT,
        300,
        "Time before a token expires by which it is replaced.",
        rule=between(0, 3600),
    ),
)
