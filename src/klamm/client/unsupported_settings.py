"""Settings of Kafka's Java clients that this client does not have, and the text for each.

Reporting and tuning of Java's clients is ignored, with one line in the log. A setting that changes what is sent, who
may read it or which records are returned is refused: without its interceptors or its password a client would do
something else than was configured. Pure.
"""

from __future__ import annotations

from typing import Any, Final

from klamm.client.oauth_settings import OAUTH

_VALIDATION: Final = (
    "clock.skew.seconds",
    "expected.audience",
    "expected.issuer",
    "jwks.endpoint.refresh.ms",
    "jwks.endpoint.retry.backoff.max.ms",
    "jwks.endpoint.retry.backoff.ms",
    "jwks.endpoint.url",
    "jwt.validator.class",
    "scope.claim.name",
    "sub.claim.name",
)
"""Settings sasl.oauthbearer.* of brokers, which Java's clients have, too."""

IGNORED: Final = {
    **{f"sasl.oauthbearer.{name}": "brokers validate tokens" for name in _VALIDATION},
    "auto.include.jmx.reporter": "there is no JMX",
    "client.dns.lookup": "all addresses of a name are tried",
    "enable.metrics.push": "metrics are not pushed to brokers",
    "internal.throw.on.fetch.stable.offset.unsupported": "brokers without stable offsets are not supported",
    "metadata.cluster.check.enable": "the cluster's id is not checked",
    "metadata.max.idle.ms": "metadata of a topic is kept until the client is closed",
    "metric.reporters": "metrics have no reporters",
    "metrics.num.samples": "metrics have no samples",
    "metrics.recording.level": "metrics have no levels",
    "metrics.sample.window.ms": "metrics have no samples",
    "partitioner.rack.aware": "partitions are chosen without regard to racks",
    "socket.connection.setup.timeout.max.ms": "socket.connection.setup.timeout.ms is the same for every attempt",
}
"""Settings without effect, and what holds instead."""

_TLS: Final = "configures Java's TLS: create an ssl.SSLContext and set ssl.context"
_SASL: Final = (
    "configures a login that this client does not support: set sasl.mechanism to PLAIN or SCRAM-SHA-512, and "
    "sasl.username and sasl.password, or to OAUTHBEARER and sasl.oauthbearer.token.endpoint.url"
)
_LOGIN: Final = frozenset(
    {
        "sasl.jaas.config",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        *(key.name for key in OAUTH),
        *(name for name in IGNORED if name.startswith("sasl.")),
    }
)
"""The settings of logins that are supported."""
_MISTYPED: Final = 0.88
"""The similarity of sasl.passwd and sasl.password is 0.92; Kerberos and librdkafka's own names are below 0.88."""
_SHARE: Final = "configures share consumers, which this client does not have"

REFUSED: Final = {
    "bootstrap.controllers": "connects to controllers: set bootstrap.servers to brokers, which forward requests",
    "config.providers": "names Java classes that look values up: look them up first and set the values",
    "interceptor.classes": "names Java classes: call a function before send and after poll instead",
    "partitioner.class": "names a Java class: set partitioner to a function or a name, e.g. partitioner=round_robin",
    # Here by name, too: it is so near to sasl.login.callback.handler.class that it would be taken for a mistyped one.
    "sasl.client.callback.handler.class": _SASL,
    "security.providers": "names Java classes: create an ssl.SSLContext and set ssl.context",
    "share.acknowledgement.mode": _SHARE,
    "share.acquire.mode": _SHARE,
    "ssl.engine.factory.class": _TLS,
    "ssl.keymanager.algorithm": _TLS,
    "ssl.protocol": _TLS,
    "ssl.provider": _TLS,
    "ssl.secure.random.implementation": _TLS,
    "ssl.trustmanager.algorithm": _TLS,
    "transaction.two.phase.commit.enable": "lets a transaction stay open without limit, which is not supported",
}
"""Settings that are refused, and what to do instead."""


def refusal(name: str) -> str | None:
    """The error text for a setting of Java's clients that is refused; None for other names."""
    reason = REFUSED.get(name)
    # More than forty, and more with every release: by prefix.
    if reason is None and name.startswith("sasl.") and name not in _LOGIN:
        reason = _SASL
    return reason and f"{name} {reason}"


def is_mistyped_login(name: str) -> bool:
    """Whether a name that `refusal` knows by its prefix only is nearly that of a supported setting of logins."""
    import difflib  # noqa: PLC0415 - needed for errors only

    return name not in REFUSED and bool(difflib.get_close_matches(name, _LOGIN, 1, _MISTYPED))


def is_unset(value: Any) -> bool:
    """Whether a value leaves a feature off, as Java's defaults do: then there is no reason to refuse it."""
    return value is None or value is False or value in ("", "false") or value in ((), [])
