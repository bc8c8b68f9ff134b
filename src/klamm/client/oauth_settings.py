"""Settings of logins with bearer tokens (OAUTHBEARER), by Java's names and librdkafka's."""

from __future__ import annotations

from typing import Final

from klamm.model.config import ConfigKey, ConfigType
from klamm.model.config_rules import at_least, between, one_of
from klamm.security.token_assertions import GRANT_TYPE

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
    ConfigKey(
        "sasl.oauthbearer.grant.type",
        S,
        "client_credentials",
        "How tokens are requested: with a client's secret, or with an assertion, as Java's JwtBearerJwtRetriever does.",
        rule=one_of("client_credentials", GRANT_TYPE),
    ),
    # Assertions (KIP-1139): a client with a private key in place of a secret.
    ConfigKey("sasl.oauthbearer.assertion.file", S, None, "A file with a signed assertion."),
    ConfigKey("sasl.oauthbearer.assertion.private.key.file", S, None, "A PEM file with the key that signs assertions."),
    ConfigKey(
        "sasl.oauthbearer.assertion.private.key.passphrase", PASSWORD, None, "The password of an encrypted key file."
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.algorithm",
        S,
        "RS256",
        "The signature algorithm of assertions.",
        rule=one_of("RS256", "ES256", any_case=True),
    ),
    ConfigKey("sasl.oauthbearer.assertion.claim.iss", S, None, "The issuer (iss) of assertions."),
    ConfigKey("sasl.oauthbearer.assertion.claim.sub", S, None, "The subject (sub) of assertions."),
    ConfigKey("sasl.oauthbearer.assertion.claim.aud", S, None, "The audience (aud) of assertions."),
    ConfigKey(
        "sasl.oauthbearer.assertion.claim.exp.seconds",
        INT,
        300,
        "The lifetime (exp) of assertions.",
        rule=between(0, 86_400),
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.claim.nbf.seconds",
        INT,
        60,
        "How long before now assertions become valid (nbf).",
        rule=between(0, 3600),
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.claim.jti.include",
        ConfigType.BOOLEAN,
        False,
        "Whether assertions have a unique id (jti).",
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.template.file",
        S,
        None,
        "A JSON file with the objects header and payload: further fields and claims of assertions.",
    ),
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
