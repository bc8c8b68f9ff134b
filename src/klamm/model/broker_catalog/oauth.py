"""Settings of OAuth tokens."""

from typing import Final

from klamm.model.config import ConfigKey, ConfigType, Importance
from klamm.model.config_rules import between, list_of, one_of

OAUTH: Final = (
    # This and the settings of assertions are KIP-1139; the endpoints and claim names further down are KIP-768.
    ConfigKey(
        "sasl.oauthbearer.jwt.retriever.class",
        ConfigType.CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
        "Class that retrieves tokens.",
        served=True,
    ),
    ConfigKey(
        "sasl.oauthbearer.jwt.validator.class",
        ConfigType.CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
        "Class that validates tokens.",
        served=True,
    ),
    ConfigKey("sasl.oauthbearer.scope", ConfigType.STRING, None, "Scope that is requested with a token.", served=True),
    ConfigKey(
        "sasl.oauthbearer.client.credentials.client.id",
        ConfigType.STRING,
        None,
        "Client id of this node at the identity provider.",
        served=True,
    ),
    ConfigKey(
        "sasl.oauthbearer.client.credentials.client.secret",
        ConfigType.PASSWORD,
        None,
        "Client secret of this node at the identity provider.",
        served=True,
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.algorithm",
        ConfigType.STRING,
        "RS256",
        "Signature algorithm of assertions.",
        rule=one_of("ES256", "RS256", any_case=True),
        served=True,
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.claim.aud", ConfigType.STRING, None, "Audience (aud) of assertions.", served=True
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.claim.exp.seconds",
        ConfigType.INT,
        300,
        "Lifetime (exp) of assertions.",
        rule=between(0, 86_400),
        importance=Importance.LOW,
        served=True,
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.claim.iss", ConfigType.STRING, None, "Issuer (iss) of assertions.", served=True
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.claim.jti.include",
        ConfigType.BOOLEAN,
        False,
        "Whether assertions have a unique id (jti).",
        served=True,
    ),
    # Before now: the identity provider's clock may be behind this node's.
    ConfigKey(
        "sasl.oauthbearer.assertion.claim.nbf.seconds",
        ConfigType.INT,
        60,
        "How long before now assertions become valid (nbf).",
        rule=between(0, 3600),
        importance=Importance.LOW,
        served=True,
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.claim.sub", ConfigType.STRING, None, "Subject (sub) of assertions.", served=True
    ),
    ConfigKey("sasl.oauthbearer.assertion.file", ConfigType.STRING, None, "File with a signed assertion.", served=True),
    ConfigKey(
        "sasl.oauthbearer.assertion.private.key.file",
        ConfigType.STRING,
        None,
        "File with the key that signs assertions.",
        served=True,
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.private.key.passphrase",
        ConfigType.PASSWORD,
        None,
        "Password of the key file.",
        served=True,
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.template.file",
        ConfigType.STRING,
        None,
        "File with further claims of assertions.",
        served=True,
    ),
    ConfigKey(
        "sasl.oauthbearer.scope.claim.name",
        ConfigType.STRING,
        "scope",
        "Name of the claim that contains the scope.",
        importance=Importance.LOW,
        served=True,
    ),
    ConfigKey(
        "sasl.oauthbearer.sub.claim.name",
        ConfigType.STRING,
        "sub",
        "Name of the claim that contains the subject.",
        importance=Importance.LOW,
        served=True,
    ),
    ConfigKey(
        "sasl.oauthbearer.token.endpoint.url",
        ConfigType.STRING,
        None,
        "URL from which tokens are retrieved.",
        served=True,
    ),
    ConfigKey(
        "sasl.oauthbearer.jwks.endpoint.url",
        ConfigType.STRING,
        None,
        "URL of the identity provider's public keys.",
        served=True,
    ),
    ConfigKey(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        ConfigType.LONG,
        3_600_000,
        "Interval between refreshes of the public keys.",
        importance=Importance.LOW,
        served=True,
    ),
    ConfigKey(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        ConfigType.LONG,
        100,
        "First wait before a failed refresh of the keys is retried.",
        importance=Importance.LOW,
        served=True,
    ),
    ConfigKey(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        ConfigType.LONG,
        10_000,
        "Longest wait before a failed refresh of the keys is retried.",
        importance=Importance.LOW,
        served=True,
    ),
    ConfigKey(
        "sasl.oauthbearer.clock.skew.seconds",
        ConfigType.INT,
        30,
        "Clock difference that is tolerated when a token is validated.",
        importance=Importance.LOW,
        served=True,
    ),
    ConfigKey(
        "sasl.oauthbearer.expected.audience",
        ConfigType.LIST,
        (),
        "Audiences of which a token must name one.",
        rule=list_of(),
        importance=Importance.HIGH,
        served=True,
    ),
    ConfigKey(
        "sasl.oauthbearer.expected.issuer",
        ConfigType.STRING,
        None,
        "Issuer that a token must have.",
        importance=Importance.HIGH,
        served=True,
    ),
)
