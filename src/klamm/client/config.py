"""The settings of producers, consumers and admins, by Kafka's names; the error for a wrong name suggests the nearest.

    Producer({"bootstrap.servers": "localhost:9092", "linger.ms": 5})
    Producer(bootstrap_servers="localhost:9092", linger_ms=5)

Both forms may be mixed. Values are text, as in a properties file, or Python values; objects are accepted where Java
takes class names (serializers, deserializers, partitioner, ssl.context). `unsupported_settings` has the settings of
Java's clients that this client does not have.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from klamm.client.core.durations import duration_ns
from klamm.client.oauth_settings import OAUTH
from klamm.client.unsupported_settings import IGNORED, REFUSED, is_mistyped_login, refusal
from klamm.model.config import (
    MAX_INT,
    REQUIRED,
    ConfigDef,
    ConfigKey,
    ConfigType,
    format_value,
)
from klamm.model.config_rules import ConfigRule, addresses, at_least, between, list_of, not_empty, one_of

B, S, INT, L, LIST, OBJECT = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.LIST,
    ConfigType.CLASS,
)


ConfigValue = str | int | float | bool | Sequence[str] | None
"""The value of a setting of a topic, broker or group in Python."""


def value_text(name: str, value: Any) -> str:
    """A setting's value as Kafka writes it; TypeError names the setting whose value has no text form."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))  # 7 * 86_400e3 is a number of milliseconds; "1" and "1.0" are the same ratio
    if isinstance(value, bool | float):
        return str(format_value(value if isinstance(value, bool) else float(value)))
    if hasattr(value, "__index__"):
        return str(int(value))
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    raise TypeError(f"{name}={value!r} has no text form: write text, a number, true or false, or a list of texts")


def reset_span_ns(policy: str) -> int | None:
    """How far back auto.offset.reset=by_duration:... begins (KIP-1106); None for the other values."""
    word, _, duration = policy.partition(":")
    return duration_ns(duration) if word == "by_duration" else None


def _reset(value: Any) -> str:
    fine = value in ("latest", "earliest", "none")
    if not fine and str(value).startswith("by_duration:"):
        with contextlib.suppress(ValueError):
            fine = (reset_span_ns(value) or 0) >= 0
        if not fine:
            return (
                "write a duration of days, hours, minutes and seconds, PnDTnHnMn.nS and not negative, "
                "e.g. by_duration:P7D or by_duration:PT1.5S"
            )
    return "" if fine else "write earliest, latest, none or by_duration:<ISO 8601 duration>, e.g. by_duration:PT1H"


def _bootstrap(value: Any) -> str:
    return addresses().complaint(value) if value else "write host:port,... e.g. localhost:9092"


COMMON: Final = (
    ConfigKey(
        "bootstrap.servers",
        LIST,
        REQUIRED,
        "Addresses of some brokers, from which the others are found.",
        rule=ConfigRule("host:port,...", _bootstrap),
    ),
    ConfigKey(
        "bootstrap.timeout.ms",
        INT,
        30_000,
        "How long a new client waits for the first response of a broker; 0 tries every address once.",
        rule=at_least(0),
    ),
    ConfigKey("client.id", S, "klamm", "The name of this client in the logs, metrics and quotas of brokers."),
    ConfigKey(
        "statistics.interval.ms",
        INT,
        0,
        "Interval of calls of statistics.callback; 0 disables them.",
        rule=at_least(0),
    ),
    ConfigKey(
        "statistics.callback",
        OBJECT,
        None,
        "A function that is called with a dict of metrics on the client's event loop; it must return quickly.",
    ),
    ConfigKey("client.rack", S, "", "The rack of this client; it fetches from a replica of the same rack."),
    ConfigKey("request.timeout.ms", INT, 30_000, "How long to wait for a response.", rule=at_least(1)),
    ConfigKey("connections.max.idle.ms", L, 540_000, "Close a connection after it was idle for so long."),
    ConfigKey("socket.connection.setup.timeout.ms", L, 10_000, "How long to wait for a connection.", rule=at_least(1)),
    ConfigKey("reconnect.backoff.ms", L, 50, "The first wait before reconnecting; it doubles.", rule=at_least(0)),
    ConfigKey("reconnect.backoff.max.ms", L, 1_000, "The longest wait before reconnecting.", rule=at_least(0)),
    ConfigKey("retry.backoff.ms", L, 100, "The first wait before a retry; it doubles.", rule=at_least(0)),
    ConfigKey("retry.backoff.max.ms", L, 1_000, "The longest wait before a retry.", rule=at_least(0)),
    ConfigKey("metadata.max.age.ms", L, 300_000, "Refresh metadata that is older than this.", rule=at_least(0)),
    ConfigKey(
        "metadata.recovery.strategy",
        S,
        "rebootstrap",
        "Whether bootstrap.servers are tried again when no known broker answers.",
        rule=one_of("none", "rebootstrap"),
    ),
    ConfigKey(
        "metadata.recovery.rebootstrap.trigger.ms",
        L,
        300_000,
        "After so long without a broker, forget the known brokers and use bootstrap.servers only.",
        rule=at_least(0),
    ),
    ConfigKey("send.buffer.bytes", INT, 131_072, "SO_SNDBUF; -1 leaves it to the system.", rule=at_least(-1)),
    ConfigKey("receive.buffer.bytes", INT, 65_536, "SO_RCVBUF; -1 leaves it to the system.", rule=at_least(-1)),
    ConfigKey(
        "receive.message.max.bytes", INT, 512 << 20, "The largest response that is accepted.", rule=at_least(1 << 20)
    ),
    ConfigKey(
        "security.protocol",
        S,
        "PLAINTEXT",
        "The protocol of the brokers' listener.",
        rule=one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", any_case=True),
    ),
    ConfigKey("ssl.context", OBJECT, None, "An ssl.SSLContext; replaces the files below."),
    ConfigKey("sasl.mechanism", S, None, "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER."),
    ConfigKey("sasl.mechanisms", S, None, "As sasl.mechanism, by librdkafka's name."),
    ConfigKey("sasl.username", S, None, "The user to log in as."),
    ConfigKey("sasl.password", ConfigType.PASSWORD, None, "The password of that user."),
    ConfigKey("sasl.jaas.config", ConfigType.PASSWORD, None, "User and password as Java's clients have them."),
    *OAUTH,
    # librdkafka's names for PEM files, then Java's.
    ConfigKey("ssl.ca.location", S, None, "A PEM file with the trusted certificate authorities."),
    ConfigKey("ssl.certificate.location", S, None, "A PEM file with this client's certificate."),
    ConfigKey("ssl.key.location", S, None, "A PEM file with the key of that certificate."),
    ConfigKey("ssl.key.password", ConfigType.PASSWORD, None, "The password of the key."),
    ConfigKey(
        "ssl.endpoint.identification.algorithm",
        S,
        "https",
        "https verifies that the certificate names the host; empty does not.",
    ),
    ConfigKey("ssl.truststore.type", S, None, "PEM; Java's own formats are refused."),
    ConfigKey("ssl.truststore.location", S, None, "As ssl.ca.location."),
    ConfigKey("ssl.truststore.certificates", ConfigType.PASSWORD, None, "The authorities as PEM text."),
    ConfigKey("ssl.truststore.password", ConfigType.PASSWORD, None, "Refused: PEM files have no password."),
    ConfigKey("ssl.keystore.type", S, None, "PEM; Java's own formats are refused."),
    ConfigKey("ssl.keystore.location", S, None, "A PEM file with key and certificate of this client."),
    ConfigKey("ssl.keystore.key", ConfigType.PASSWORD, None, "The key as PEM text."),
    ConfigKey("ssl.keystore.certificate.chain", ConfigType.PASSWORD, None, "The certificates as PEM text."),
    ConfigKey("ssl.keystore.password", ConfigType.PASSWORD, None, "Refused: ssl.key.password is that of the key."),
    ConfigKey("ssl.enabled.protocols", LIST, ("TLSv1.2", "TLSv1.3"), "The enabled versions of TLS."),
    ConfigKey("ssl.cipher.suites", LIST, (), "Enabled cipher suites by their IANA names; empty for all."),
)


class ClientConfigDef(ConfigDef):
    """The settings of one kind of client, and what the error says for a name that this kind does not have."""

    def __init__(self, role: str, keys: Iterable[ConfigKey], ignored: Mapping[str, str] = IGNORED) -> None:
        keys_ignored = (ConfigKey(name, OBJECT, None, f"Has no effect: {why}.") for name, why in ignored.items())
        super().__init__(f"{role} setting", (*keys, *keys_ignored))
        self.role = role
        self.ignored = ignored

    def unknown(self, name: str) -> str:
        """The error text for a name that this kind of client does not have."""
        dotted = name.lower().replace("_", ".")
        known = refusal(dotted) if dotted not in self else None
        if known is not None and not is_mistyped_login(dotted):
            return known
        owners = [definition.role for definition in DEFINITIONS if name in definition]
        if owners:
            return f"{name} is a setting of {' and '.join(f'{owner}s' for owner in owners)}; {self._article()} has none"
        elsewhere = _elsewhere(name)
        if elsewhere:
            return f"{name} is not {self._article()} setting but {elsewhere}: Admin.alter_configs can change it"
        near = self._near(dotted)
        return f"{name} is not {self._article()} setting" + (f"; did you mean {near}" if near else "")

    def _article(self) -> str:
        return f"an {self.role}" if self.role[0] in "aeiou" else f"a {self.role}"

    def _near(self, name: str) -> str:
        """The nearest names, with a question mark: of this kind of client, of other kinds, of refused settings."""
        scores = {key: score for key in self.keys if (score := similarity(name, key)) >= 0.6}
        for known in (*(key.name for other in DEFINITIONS for key in other), *REFUSED):
            # A handicap: of two names that are equally near, the one that works here is suggested.
            if known not in self and (score := similarity(name, known) - 0.1) >= 0.6:
                scores[known] = score
        if not scores:
            return ""
        best = max(scores.values())
        nearest = [name for name, score in scores.items() if score == best][:3]
        if nearest[0] in self:
            return " or ".join(filter(None, (", ".join(nearest[:-1]), nearest[-1]))) + "?"
        return f"{nearest[0]}? {refusal(nearest[0]) or self.unknown(nearest[0])}"


def similarity(name: str, known: str) -> float:
    """How near two names are, 0 to 1; a name that stops early is nearly as good as a whole one."""
    import difflib  # noqa: PLC0415 - needed for errors only

    def ratio(other: str) -> float:
        return difflib.SequenceMatcher(None, name, other).ratio()

    beginning = ".".join(known.split(".")[: name.count(".") + 1])
    return max(ratio(known), 0.95 * ratio(beginning))


def _elsewhere(name: str) -> str:
    from klamm.model.broker_configs import BROKER_CONFIGS  # noqa: PLC0415 - needed for errors only
    from klamm.model.topic_configs import TOPIC_CONFIGS  # noqa: PLC0415

    return "one of topics" if name in TOPIC_CONFIGS else "one of brokers" if name in BROKER_CONFIGS else ""


PRODUCER_CONFIGS: Final = ClientConfigDef(
    "producer",
    (
        *COMMON,
        ConfigKey(
            "acks",
            S,
            "all",
            "Which replicas must store a record before it is acknowledged: all in sync, 1 the leader, 0 none.",
            rule=one_of("all", "-1", "0", "1"),
        ),
        ConfigKey("batch.size", INT, 16_384, "The largest batch of records of a partition.", rule=at_least(0)),
        # 5 since Kafka 4.0 (KIP-1030), 0 before.
        ConfigKey("linger.ms", L, 5, "How long a record waits for others to share its batch.", rule=at_least(0)),
        ConfigKey("buffer.memory", L, 33_554_432, "Bytes of records that may wait to be sent.", rule=at_least(0)),
        ConfigKey("max.block.ms", L, 60_000, "How long send waits for buffer.memory or metadata.", rule=at_least(0)),
        ConfigKey("max.request.size", INT, 1_048_576, "The largest request, and record.", rule=at_least(0)),
        # Brokers keep five batches of a producer to recognise duplicates: idempotence allows no more in flight.
        ConfigKey(
            "max.in.flight.requests.per.connection",
            INT,
            5,
            "Produce requests without response, per broker.",
            rule=at_least(1),
        ),
        ConfigKey(
            "compression.type",
            S,
            "none",
            "The codec of batches.",
            rule=one_of("none", "gzip", "snappy", "lz4", "zstd"),
        ),
        # The ranges of KIP-390, which are those of the libraries; -1 is zlib's own default.
        ConfigKey("compression.gzip.level", INT, -1, "The level of gzip.", rule=between(-1, 9)),
        ConfigKey("compression.lz4.level", INT, 9, "The level of lz4.", rule=between(1, 17)),
        ConfigKey("compression.zstd.level", INT, 3, "The level of zstd.", rule=between(-131_072, 22)),
        ConfigKey("enable.idempotence", B, True, "Retries cause neither duplicates nor a change of order."),
        # Unlimited in effect: delivery.timeout.ms bounds the retries (KIP-91).
        ConfigKey("retries", INT, MAX_INT, "How often a request is retried.", rule=between(0, MAX_INT)),
        ConfigKey("delivery.timeout.ms", INT, 120_000, "A record not stored by then fails.", rule=at_least(0)),
        ConfigKey("transactional.id", S, None, "The name of this producer across restarts.", rule=not_empty()),
        ConfigKey(
            "transaction.timeout.ms",
            INT,
            60_000,
            "The coordinator aborts a transaction that is open for longer.",
            rule=at_least(1),
        ),
        ConfigKey(
            "partitioner",
            OBJECT,
            "default",
            "default (murmur2 by key, sticky without), murmur2, murmur2_random, consistent, consistent_random, "
            "round_robin, or a function.",
        ),
        ConfigKey("partitioner.ignore.keys", B, False, "Distribute keyed records like those without key."),
        ConfigKey(
            "partitioner.adaptive.partitioning.enable",
            B,
            True,
            "Partitions with short queues get more records without key.",
        ),
        ConfigKey(
            "partitioner.availability.timeout.ms",
            L,
            0,
            "Records without key skip partitions whose broker took no batch for so long; 0 disables it.",
            rule=at_least(0),
        ),
        ConfigKey("key.serializer", OBJECT, None, "Serializes keys: a function, or bytes, str, json."),
        ConfigKey("value.serializer", OBJECT, None, "Serializes values, as key.serializer does keys."),
        ConfigKey("allow.auto.create.topics", B, True, "Let the broker create a topic that is written to."),
    ),
)

CONSUMER_CONFIGS: Final = ClientConfigDef(
    "consumer",
    (
        *COMMON,
        ConfigKey("group.id", S, None, "The group of this consumer.", rule=not_empty()),
        ConfigKey("group.instance.id", S, None, "The name of a static member.", rule=not_empty()),
        ConfigKey(
            "group.protocol",
            S,
            "classic",
            "classic: a member assigns partitions; consumer: the coordinator does (KIP-848).",
            rule=one_of("classic", "consumer", any_case=True),
        ),
        ConfigKey("group.remote.assignor", S, None, "The coordinator's assignor: uniform or range."),
        ConfigKey(
            "partition.assignment.strategy",
            LIST,
            # Java's default: eager by range, with cooperative-sticky offered for a rolling change (KIP-429).
            ("range", "cooperative-sticky"),
            "Assignors of the classic protocol, preferred first: range, roundrobin, sticky, cooperative-sticky.",
            rule=list_of(empty=False),
        ),
        ConfigKey(
            "session.timeout.ms",
            INT,
            45_000,
            "The coordinator removes a member without heartbeats for so long.",
            rule=at_least(1),
        ),
        ConfigKey("heartbeat.interval.ms", INT, 3_000, "Time between two heartbeats.", rule=at_least(1)),
        ConfigKey(
            "max.poll.interval.ms", INT, 300_000, "A member without a poll for so long leaves.", rule=at_least(1)
        ),
        ConfigKey("max.poll.records", INT, 500, "Records that a poll returns at most.", rule=at_least(1)),
        ConfigKey("enable.auto.commit", B, True, "Commit positions every auto.commit.interval.ms."),
        ConfigKey("auto.commit.interval.ms", INT, 5_000, "Time between two automatic commits.", rule=at_least(0)),
        ConfigKey(
            "auto.offset.reset",
            S,
            "latest",
            "Where reading begins without a committed offset, or when the offset is out of range.",
            rule=ConfigRule("earliest, latest, none or by_duration:...", _reset),
        ),
        ConfigKey("fetch.min.bytes", INT, 1, "The broker waits until a fetch has so many bytes.", rule=at_least(0)),
        ConfigKey("fetch.max.bytes", INT, 52_428_800, "The largest fetch response.", rule=at_least(0)),
        ConfigKey("fetch.max.wait.ms", INT, 500, "The broker answers a fetch after so long anyway.", rule=at_least(0)),
        ConfigKey("max.partition.fetch.bytes", INT, 1_048_576, "The same per partition.", rule=at_least(0)),
        # A name of librdkafka: Java has no bound over all partitions.
        ConfigKey("queued.max.messages.kbytes", INT, 65_536, "Kilobytes that are fetched ahead.", rule=at_least(1)),
        ConfigKey("check.crcs", B, True, "Verify the checksum of every batch."),
        ConfigKey(
            "isolation.level",
            S,
            "read_uncommitted",
            "Whether records of open and aborted transactions are returned.",
            rule=one_of("read_uncommitted", "read_committed"),
        ),
        ConfigKey("exclude.internal.topics", B, True, "A pattern does not match internal topics."),
        ConfigKey("allow.auto.create.topics", B, True, "Let the broker create a topic that is read."),
        ConfigKey("default.api.timeout.ms", INT, 60_000, "How long a call may take.", rule=at_least(0)),
        ConfigKey(
            "on.error",
            OBJECT,
            "raise",
            "What to do with a record that cannot be read: raise, skip, or a function that is called with the error "
            "before the record is skipped.",
        ),
        ConfigKey("key.deserializer", OBJECT, None, "Deserializes keys: a function, or bytes, str, json."),
        ConfigKey("value.deserializer", OBJECT, None, "Deserializes values, as key.deserializer does keys."),
    ),
)

ADMIN_CONFIGS: Final = ClientConfigDef(
    "admin",
    (
        *COMMON,
        ConfigKey("default.api.timeout.ms", INT, 60_000, "How long a call may take.", rule=at_least(0)),
    ),
    {**IGNORED, "retries": "default.api.timeout.ms bounds the retries"},
)

DEFINITIONS: Final = (PRODUCER_CONFIGS, CONSUMER_CONFIGS, ADMIN_CONFIGS)
