"""Settings of OAuth tokens."""

from typing import Final

from klamm.model.config import ConfigKey, ConfigType, Importance
from klamm.model.config_rules import between, list_of, one_of

OAUTH: Final = (
    ConfigKey(
        "sasl.oauthbearer.jwt.retriever.class",
        ConfigType.CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
        "Class that fetches a token.",
    ),
    ConfigKey(
        "sasl.oauthbearer.jwt.validator.class",
        ConfigType.CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
        "Class that checks a token.",
    ),
    ConfigKey("sasl.oauthbearer.scope", ConfigType.STRING, None, "Rights asked for with a token."),
    ConfigKey(
        "sasl.oauthbearer.client.credentials.client.id",
        ConfigType.STRING,
        None,
        "Id this node shows to the identity provider.",
    ),
    ConfigKey(
        "sasl.oauthbearer.client.credentials.client.secret", ConfigType.PASSWORD, None, "Secret that goes with that id."
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.algorithm",
        ConfigType.STRING,
        "RS256",
        "Algorithm a signed claim is made with.",
        rule=one_of("ES256", "RS256", any_case=True),
    ),
    ConfigKey("sasl.oauthbearer.assertion.claim.aud", ConfigType.STRING, None, "Whom the signed claim is meant for."),
    ConfigKey(
        "sasl.oauthbearer.assertion.claim.exp.seconds",
        ConfigType.INT,
        300,
        "How long the signed claim is good for.",
        rule=between(0, 86_400),
        importance=Importance.LOW,
    ),
    ConfigKey("sasl.oauthbearer.assertion.claim.iss", ConfigType.STRING, None, "Who makes the signed claim."),
    ConfigKey(
        "sasl.oauthbearer.assertion.claim.jti.include",
        ConfigType.BOOLEAN,
        False,
        "Whether the signed claim carries an id of its own.",
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.claim.nbf.seconds",
        ConfigType.INT,
        60,
        "How far before now the signed claim begins to be good.",
        rule=between(0, 3600),
        importance=Importance.LOW,
    ),
    ConfigKey("sasl.oauthbearer.assertion.claim.sub", ConfigType.STRING, None, "Whom the signed claim speaks of."),
    ConfigKey("sasl.oauthbearer.assertion.file", ConfigType.STRING, None, "File with a ready signed claim."),
    ConfigKey(
        "sasl.oauthbearer.assertion.private.key.file",
        ConfigType.STRING,
        None,
        "File with the key claims are signed with.",
    ),
    ConfigKey("sasl.oauthbearer.assertion.private.key.passphrase", ConfigType.PASSWORD, None, "Password of that file."),
    ConfigKey(
        "sasl.oauthbearer.assertion.template.file",
        ConfigType.STRING,
        None,
        "File with further parts of the signed claim.",
    ),
    ConfigKey(
        "sasl.oauthbearer.scope.claim.name",
        ConfigType.STRING,
        "scope",
        "Name of the claim that holds the rights.",
        importance=Importance.LOW,
    ),
    ConfigKey(
        "sasl.oauthbearer.sub.claim.name",
        ConfigType.STRING,
        "sub",
        "Name of the claim that holds the user.",
        importance=Importance.LOW,
    ),
    ConfigKey("sasl.oauthbearer.token.endpoint.url", ConfigType.STRING, None, "Where tokens are fetched."),
    ConfigKey(
        "sasl.oauthbearer.jwks.endpoint.url", ConfigType.STRING, None, "Where the provider's public keys are fetched."
    ),
    ConfigKey(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        ConfigType.LONG,
        3_600_000,
        "Pause between two fetches of those keys.",
        importance=Importance.LOW,
    ),
    ConfigKey(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        ConfigType.LONG,
        100,
        "First pause before a failed fetch of the keys is retried.",
        importance=Importance.LOW,
    ),
    ConfigKey(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        ConfigType.LONG,
        10_000,
        "Longest pause before a failed fetch of the keys is retried.",
        importance=Importance.LOW,
    ),
    ConfigKey(
        "sasl.oauthbearer.clock.skew.seconds",
        ConfigType.INT,
        30,
        "How far two clocks may differ when a token is checked.",
        importance=Importance.LOW,
    ),
    ConfigKey(
        "sasl.oauthbearer.expected.audience",
        ConfigType.LIST,
        (),
        "Audiences a token may be made for.",
        rule=list_of(),
        importance=Importance.HIGH,
    ),
    ConfigKey(
        "sasl.oauthbearer.expected.issuer",
        ConfigType.STRING,
        None,
        "Issuer a token must come from.",
        importance=Importance.HIGH,
    ),
)
