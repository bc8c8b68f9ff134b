"""Settings of Kafka's Java clients that this client does not obey, and the words for each.

Reporting and tuning that only Java's clients have is passed over, with one line in the log. What would change what is
sent, who may read it or which records count is refused instead: a client that goes on without its interceptors or its
password is not the one that was asked for. Pure.
"""

from __future__ import annotations

from typing import Any, Final

PASSED_OVER: Final = {
    "auto.include.jmx.reporter": "there is no JMX",
    "client.dns.lookup": "all addresses of a name are tried",
    "enable.metrics.push": "metrics are not pushed to brokers",
    "internal.throw.on.fetch.stable.offset.unsupported": "brokers that old are not spoken to",
    "metadata.cluster.check.enable": "the cluster's id is not checked",
    "metadata.max.idle.ms": "topics stay known as long as the client lives",
    "metric.reporters": "metrics have no reporters",
    "metrics.num.samples": "metrics have no samples",
    "metrics.recording.level": "metrics have no levels",
    "metrics.sample.window.ms": "metrics have no samples",
    "partitioner.rack.aware": "partitions are chosen without regard to racks",
    "socket.connection.setup.timeout.max.ms": "socket.connection.setup.timeout.ms is the same for every attempt",
}
"""Harmless ones, and what holds instead."""

_TLS: Final = "is about Java's TLS: make an ssl.SSLContext and give it as ssl.context"
_TRUST: Final = "is about Java's trust store: write the authorities to a PEM file and name it in ssl.ca.location"
_KEYS: Final = (
    "is about Java's key store: write certificate and key to PEM files and name them in ssl.certificate.location and "
    "ssl.key.location"
)
_SASL: Final = "belongs to SASL, which this client does not speak yet: use security.protocol=SSL or PLAINTEXT"
_SHARE: Final = "belongs to share consumers, which this client does not have"

REFUSED: Final = {
    "bootstrap.controllers": "asks controllers themselves: write brokers in bootstrap.servers, which pass it on",
    "config.providers": "names Java classes that look values up: look them up first and give the values",
    "interceptor.classes": "names Java classes: change records before send, and read them after poll, in a function",
    "partitioner.class": "names a Java class: give partitioner a function or a name, e.g. partitioner=round_robin",
    "sasl.jaas.config": _SASL,
    "sasl.mechanism": _SASL,
    "security.providers": "names Java classes: make an ssl.SSLContext and give it as ssl.context",
    "share.acknowledgement.mode": _SHARE,
    "share.acquire.mode": _SHARE,
    "ssl.cipher.suites": _TLS,
    "ssl.enabled.protocols": _TLS,
    "ssl.engine.factory.class": _TLS,
    "ssl.keymanager.algorithm": _TLS,
    "ssl.keystore.certificate.chain": _KEYS,
    "ssl.keystore.key": _KEYS,
    "ssl.keystore.location": _KEYS,
    "ssl.keystore.password": _KEYS,
    "ssl.keystore.type": _KEYS,
    "ssl.protocol": _TLS,
    "ssl.provider": _TLS,
    "ssl.secure.random.implementation": _TLS,
    "ssl.trustmanager.algorithm": _TLS,
    "ssl.truststore.certificates": _TRUST,
    "ssl.truststore.location": _TRUST,
    "ssl.truststore.password": _TRUST,
    "ssl.truststore.type": _TRUST,
    "transaction.two.phase.commit.enable": "lets a transaction stay open without end, which is not done here",
}
"""Those that cannot be passed over, and what to do instead."""


def refusal(name: str) -> str | None:
    """What is said of a setting that is Kafka's but not ours; None when it is not one."""
    reason = REFUSED.get(name)
    if reason is None and name.startswith("sasl."):
        reason = _SASL
    return reason and f"{name} {reason}"


def says_nothing(value: Any) -> bool:
    """Whether a value leaves a feature off, as Java's defaults do: then there is nothing to refuse."""
    return value is None or value is False or value in ("", "false") or value in ((), [])
