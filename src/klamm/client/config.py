"""The settings of producers, consumers and admins, by Kafka's names; a mistake is answered with the nearest right one.

    Producer({"bootstrap.servers": "localhost:9092", "linger.ms": 5})
    Producer(bootstrap_servers="localhost:9092", linger_ms=5)

Both forms may be mixed. Values are text, as in a properties file, or what they mean in Python; objects are taken where
Java takes class names (serializers, deserializers, partitioner, ssl.context). `kafka_settings` has what else Java's
clients know.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from klamm.client.core.durations import duration_ns
from klamm.client.unsupported_settings import PASSED_OVER, REFUSED, refusal, says_nothing
from klamm.model.config import (
    MAX_INT,
    MAX_LONG,
    REQUIRED,
    ConfigDef,
    ConfigKey,
    ConfigType,
    Required,
    format_value,
)
from klamm.model.config_rules import ConfigRule, addresses, at_least, between, list_of, not_empty, one_of
from klamm.model.errors import ConfigError

_log = logging.getLogger(__name__)

B, S, INT, L, LIST, OBJECT = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.LIST,
    ConfigType.CLASS,
)


ConfigValue = str | int | float | bool | Sequence[str] | None
"""A setting of a topic, broker or group as people write it in Python."""


def value_text(name: str, value: Any) -> str:
    """A setting's value as Kafka writes it; TypeError names the setting whose value has no text."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))  # 7 * 86_400e3 is a number of milliseconds; a ratio of 1 means the same as one of 1.0
    if isinstance(value, bool | float):
        return str(format_value(value if isinstance(value, bool) else float(value)))
    if hasattr(value, "__index__"):
        return str(int(value))
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    raise TypeError(f"{name}={value!r} has no text: write text, a number, true or false, or a list of texts")


def reset_span_ns(policy: str) -> int | None:
    """How far back auto.offset.reset=by_duration:... begins; None for the other words."""
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


def _protocol(value: Any) -> str:
    words = one_of("PLAINTEXT", "SSL", any_case=True).complaint(value)
    return f"SASL is not spoken yet, {words}" if words and str(value).upper().startswith("SASL") else words


COMMON: Final = (
    ConfigKey(
        "bootstrap.servers",
        LIST,
        REQUIRED,
        "Addresses to find the cluster by.",
        rule=ConfigRule("host:port,...", _bootstrap),
    ),
    ConfigKey(
        "bootstrap.timeout.ms",
        INT,
        30_000,
        "How long a new client waits until a broker answers; 0 tries each address once.",
        rule=at_least(0),
    ),
    ConfigKey("client.id", S, "klamm", "The name brokers log and measure this client by."),
    ConfigKey(
        "statistics.interval.ms",
        INT,
        0,
        "Call statistics.callback with the metrics every so many milliseconds; 0 never does.",
        rule=at_least(0),
    ),
    ConfigKey("statistics.callback", OBJECT, None, "A function that is called with a dict of metrics; be quick in it."),
    ConfigKey("client.rack", S, "", "Where this client is; fetches go to a replica of the same rack."),
    ConfigKey("request.timeout.ms", INT, 30_000, "How long to wait for an answer.", rule=at_least(1)),
    ConfigKey("connections.max.idle.ms", L, 540_000, "Close a connection that was idle for so long."),
    ConfigKey("socket.connection.setup.timeout.ms", L, 10_000, "How long to wait for a connection.", rule=at_least(1)),
    ConfigKey("reconnect.backoff.ms", L, 50, "Wait before connecting again.", rule=at_least(0)),
    ConfigKey("reconnect.backoff.max.ms", L, 1_000, "The longest such wait; it doubles.", rule=at_least(0)),
    ConfigKey("retry.backoff.ms", L, 100, "Wait before asking again.", rule=at_least(0)),
    ConfigKey("retry.backoff.max.ms", L, 1_000, "The longest such wait; it doubles.", rule=at_least(0)),
    ConfigKey("metadata.max.age.ms", L, 300_000, "Ask again who leads what after so long.", rule=at_least(0)),
    ConfigKey(
        "metadata.recovery.strategy",
        S,
        "rebootstrap",
        "Whether to begin with bootstrap.servers again when no known broker answers.",
        rule=one_of("none", "rebootstrap"),
    ),
    ConfigKey(
        "metadata.recovery.rebootstrap.trigger.ms", L, 300_000, "Do so after this long without.", rule=at_least(0)
    ),
    ConfigKey("send.buffer.bytes", INT, 131_072, "SO_SNDBUF; -1 leaves it to the system.", rule=at_least(-1)),
    ConfigKey("receive.buffer.bytes", INT, 65_536, "SO_RCVBUF; -1 leaves it to the system.", rule=at_least(-1)),
    ConfigKey(
        "receive.message.max.bytes", INT, 512 << 20, "The largest answer a broker may send.", rule=at_least(1 << 20)
    ),
    ConfigKey(
        "security.protocol",
        S,
        "PLAINTEXT",
        "How to speak to brokers.",
        rule=ConfigRule("PLAINTEXT, SSL", _protocol),
    ),
    ConfigKey("ssl.context", OBJECT, None, "An ssl.SSLContext; replaces the files below."),
    ConfigKey("ssl.ca.location", S, None, "A PEM file with the authorities to believe."),
    ConfigKey("ssl.certificate.location", S, None, "A PEM file with this client's certificate."),
    ConfigKey("ssl.key.location", S, None, "A PEM file with the key of that certificate."),
    ConfigKey("ssl.key.password", ConfigType.PASSWORD, None, "The password of the key."),
    ConfigKey(
        "ssl.endpoint.identification.algorithm",
        S,
        "https",
        "https checks that certificates name the host; empty does not.",
    ),
)


class ClientConfigDef(ConfigDef):
    """The settings of one kind of client; knows whose a name is that this kind does not have."""

    def __init__(self, role: str, keys: Iterable[ConfigKey], passed_over: Mapping[str, str] = PASSED_OVER) -> None:
        ignored = (ConfigKey(name, OBJECT, None, f"Has no effect: {why}.") for name, why in passed_over.items())
        super().__init__(f"{role} setting", (*keys, *ignored))
        self.role = role
        self.passed_over = passed_over

    def unknown(self, name: str) -> str:
        """The sentence for a name this kind of client does not have."""
        dotted = name.lower().replace("_", ".")
        known = refusal(dotted) if dotted not in self else None
        if known is not None:
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
        """What was meant, with a question mark: the best of our names, of other clients' and of those refused."""
        scores = {key: score for key in self.keys if (score := likeness(name, key)) >= 0.6}
        for known in (*(key.name for other in DEFINITIONS for key in other), *REFUSED):
            if known not in self and (score := likeness(name, known) - 0.1) >= 0.6:
                scores[known] = score
        if not scores:
            return ""
        best = max(scores.values())
        nearest = [name for name, score in scores.items() if score == best][:3]
        if nearest[0] in self:
            return " or ".join(filter(None, (", ".join(nearest[:-1]), nearest[-1]))) + "?"
        return f"{nearest[0]}? {refusal(nearest[0]) or self.unknown(nearest[0])}"


def likeness(name: str, known: str) -> float:
    """How near two names are, 0 to 1; a name that stops early is nearly as good as a whole one."""
    import difflib  # noqa: PLC0415 - only people who mistype wait for it

    def ratio(other: str) -> float:
        return difflib.SequenceMatcher(None, name, other).ratio()

    beginning = ".".join(known.split(".")[: name.count(".") + 1])
    return max(ratio(known), 0.95 * ratio(beginning))


def _elsewhere(name: str) -> str:
    from klamm.model.broker_configs import BROKER_CONFIGS  # noqa: PLC0415 - only people who mistype wait for it
    from klamm.model.topic_configs import TOPIC_CONFIGS  # noqa: PLC0415

    return "one of topics" if name in TOPIC_CONFIGS else "one of brokers" if name in BROKER_CONFIGS else ""


PRODUCER_CONFIGS: Final = ClientConfigDef(
    "producer",
    (
        *COMMON,
        ConfigKey("acks", S, "all", "Who must have a record before it counts.", rule=one_of("all", "-1", "0", "1")),
        ConfigKey("batch.size", INT, 16_384, "Bytes of records sent together to a partition.", rule=at_least(0)),
        ConfigKey("linger.ms", L, 5, "How long a record may wait for others to go with.", rule=at_least(0)),
        ConfigKey("buffer.memory", L, 33_554_432, "Bytes of records that may wait to be sent.", rule=at_least(0)),
        ConfigKey("max.block.ms", L, 60_000, "How long send may wait for room or metadata.", rule=at_least(0)),
        ConfigKey("max.request.size", INT, 1_048_576, "The largest request, and record.", rule=at_least(0)),
        ConfigKey("max.in.flight.requests.per.connection", INT, 5, "Requests without answer.", rule=at_least(1)),
        ConfigKey(
            "compression.type",
            S,
            "none",
            "How batches are packed.",
            rule=one_of("none", "gzip", "snappy", "lz4", "zstd"),
        ),
        ConfigKey("compression.gzip.level", INT, -1, "gzip's level.", rule=between(-1, 9)),
        ConfigKey("compression.lz4.level", INT, 9, "lz4's level.", rule=between(1, 17)),
        ConfigKey("compression.zstd.level", INT, 3, "zstd's level.", rule=between(-131_072, 22)),
        ConfigKey("enable.idempotence", B, True, "No duplicates, order kept, whatever is retried."),
        ConfigKey("retries", INT, MAX_INT, "How often to try again.", rule=between(0, MAX_INT)),
        ConfigKey("delivery.timeout.ms", INT, 120_000, "Until when a record is stored or failed.", rule=at_least(0)),
        ConfigKey("transactional.id", S, None, "The name of this producer across restarts.", rule=not_empty()),
        ConfigKey("transaction.timeout.ms", INT, 60_000, "Abort after so long without an end.", rule=at_least(1)),
        ConfigKey(
            "partitioner",
            OBJECT,
            "default",
            "default (murmur2 by key, sticky without), murmur2, murmur2_random, consistent, consistent_random, "
            "round_robin, or a function.",
        ),
        ConfigKey("partitioner.ignore.keys", B, False, "Spread keyed records like those without key."),
        ConfigKey("partitioner.adaptive.partitioning.enable", B, True, "Give fast brokers more."),
        ConfigKey("partitioner.availability.timeout.ms", L, 0, "Pass over brokers this slow.", rule=at_least(0)),
        ConfigKey("key.serializer", OBJECT, None, "Makes bytes of keys: a function, or bytes, str, json."),
        ConfigKey("value.serializer", OBJECT, None, "Makes bytes of values."),
        ConfigKey("allow.auto.create.topics", B, True, "Let the broker create a topic that is written to."),
    ),
)

CONSUMER_CONFIGS: Final = ClientConfigDef(
    "consumer",
    (
        *COMMON,
        ConfigKey("group.id", S, None, "The group this consumer reads with.", rule=not_empty()),
        ConfigKey("group.instance.id", S, None, "The name of a static member.", rule=not_empty()),
        ConfigKey("group.protocol", S, "classic", "Who assigns.", rule=one_of("classic", "consumer", any_case=True)),
        ConfigKey("group.remote.assignor", S, None, "The coordinator's assignor: uniform or range."),
        ConfigKey(
            "partition.assignment.strategy",
            LIST,
            ("range", "cooperative-sticky"),
            "The classic protocol's assignors, best first: range, roundrobin, sticky, cooperative-sticky.",
            rule=list_of(empty=False),
        ),
        ConfigKey("session.timeout.ms", INT, 45_000, "A member silent for so long is gone.", rule=at_least(1)),
        ConfigKey("heartbeat.interval.ms", INT, 3_000, "Time between two signs of life.", rule=at_least(1)),
        ConfigKey("max.poll.interval.ms", INT, 300_000, "A member that polls no more is gone.", rule=at_least(1)),
        ConfigKey("max.poll.records", INT, 500, "Records one poll returns at most.", rule=at_least(1)),
        ConfigKey("enable.auto.commit", B, True, "Commit what was polled, every auto.commit.interval.ms."),
        ConfigKey("auto.commit.interval.ms", INT, 5_000, "Time between two such commits.", rule=at_least(0)),
        ConfigKey(
            "auto.offset.reset",
            S,
            "latest",
            "Where to begin without a valid offset.",
            rule=ConfigRule("earliest, latest, none or by_duration:...", _reset),
        ),
        ConfigKey("fetch.min.bytes", INT, 1, "Answer when so much is there.", rule=at_least(0)),
        ConfigKey("fetch.max.bytes", INT, 52_428_800, "The most one fetch returns.", rule=at_least(0)),
        ConfigKey("fetch.max.wait.ms", INT, 500, "Answer after so long anyway.", rule=at_least(0)),
        ConfigKey("max.partition.fetch.bytes", INT, 1_048_576, "The same per partition.", rule=at_least(0)),
        ConfigKey("queued.max.messages.kbytes", INT, 65_536, "How much is fetched ahead.", rule=at_least(1)),
        ConfigKey("check.crcs", B, True, "Check every batch's checksum."),
        ConfigKey(
            "isolation.level",
            S,
            "read_uncommitted",
            "Whether open and aborted transactions are seen.",
            rule=one_of("read_uncommitted", "read_committed"),
        ),
        ConfigKey("exclude.internal.topics", B, True, "A pattern does not match internal topics."),
        ConfigKey("allow.auto.create.topics", B, True, "Let the broker create a topic that is read."),
        ConfigKey("default.api.timeout.ms", INT, 60_000, "How long calls may take.", rule=at_least(0)),
        ConfigKey(
            "on.error",
            OBJECT,
            "raise",
            "What to do with a record that cannot be read: raise, skip, or a function that is called with the error "
            "before the record is skipped.",
        ),
        ConfigKey("key.deserializer", OBJECT, None, "Makes something of key bytes: a function, or bytes, str, json."),
        ConfigKey("value.deserializer", OBJECT, None, "Makes something of value bytes."),
    ),
)

ADMIN_CONFIGS: Final = ClientConfigDef(
    "admin",
    (
        *COMMON,
        ConfigKey("default.api.timeout.ms", INT, 60_000, "How long calls may take.", rule=at_least(0)),
    ),
    {**PASSED_OVER, "retries": "default.api.timeout.ms bounds how often is asked again"},
)

DEFINITIONS: Final = (PRODUCER_CONFIGS, CONSUMER_CONFIGS, ADMIN_CONFIGS)
_said: Final[set[str]] = set()
"""Names passed over that the log has told of."""


class ClientSettings(Mapping[str, Any]):
    """The values of one client: those given, checked, and the defaults of the rest."""

    def __init__(
        self, definition: ClientConfigDef, given: Mapping[str, Any] | None, keywords: Mapping[str, Any] | None = None
    ) -> None:
        if not isinstance(given, Mapping | None):
            raise TypeError(f'settings are a mapping, e.g. {{"bootstrap.servers": "localhost:9092"}}, not {given!r}')
        self.by_name: dict[str, Any] = {}
        self.given: set[str] = set()
        for name, value in (given or {}).items():
            self._set(definition, name, value)
        for keyword, value in (keywords or {}).items():
            name = keyword.replace("_", ".")
            before = self.by_name.get(name)
            self._set(definition, name, value)
            if before is not None and self.by_name[name] != before:
                raise ConfigError(f"{name} is given twice with different values, as {name} and as {keyword}: keep one")
        for key in definition:
            if key.name not in self.by_name:
                if isinstance(key.default, Required):
                    raise ConfigError(f"{key.name} is missing: write host:port, e.g. localhost:9092")
                self.by_name[key.name] = key.default
        callback = self.by_name["statistics.callback"]
        _agree(callback is None or callable(callback), f"statistics.callback={callback!r} is no function")

    def _set(self, definition: ClientConfigDef, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise ConfigError(f"{name!r} is no name of a setting: names are text, e.g. bootstrap.servers")
        if name not in definition and refusal(name) is not None and says_nothing(value):
            return
        key = definition.key(name)
        if value is None:
            return
        if name in definition.passed_over and name not in _said and not says_nothing(value):
            _said.add(name)
            _log.warning("%s has no effect here: %s", name, definition.passed_over[name])
        if key.type is OBJECT:
            parsed = value
        elif key.type is LIST and isinstance(value, Iterable) and not isinstance(value, str):
            parsed = key.parse(",".join(str(getattr(item, "name", item)) for item in value))
        elif isinstance(value, bool):
            parsed = key.parse("true" if value else "false")
        elif isinstance(value, str | int | float):
            parsed = key.parse(str(value))
        else:
            raise ConfigError(f"{name}={value!r} is a {type(value).__name__}; write a number or text")
        self.by_name[name] = parsed
        self.given.add(name)

    def __getitem__(self, name: str) -> Any:
        return self.by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_name)

    def __len__(self) -> int:
        return len(self.by_name)

    def seconds(self, name: str) -> float:
        """A setting in milliseconds, as asyncio wants it."""
        return float(self.by_name[name]) / 1000

    def number(self, name: str) -> int:
        """A whole number."""
        return int(self.by_name[name])

    def text(self, name: str) -> str:
        """A text; empty when it has no value."""
        return str(self.by_name[name] or "")


def producer_settings(given: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> ClientSettings:
    """Read a producer's settings and check what must agree."""
    settings = ClientSettings(PRODUCER_CONFIGS, given, keywords)
    values = settings.by_name
    values["acks"] = -1 if values["acks"] in ("all", "-1") else int(values["acks"])
    if values["transactional.id"] is not None and "enable.idempotence" in settings.given:
        _agree(values["enable.idempotence"], "transactional.id needs enable.idempotence=true")
    if values["enable.idempotence"]:
        clashes = []
        if values["acks"] != -1:
            clashes.append(("acks", "acks=all"))
        if values["max.in.flight.requests.per.connection"] > 5:
            clashes.append(
                ("max.in.flight.requests.per.connection", "max.in.flight.requests.per.connection of at most 5")
            )
        if values["retries"] == 0:
            clashes.append(("retries", "retries above 0"))
        explicit = "enable.idempotence" in settings.given or values["transactional.id"] is not None
        if clashes and explicit:
            raise ConfigError(f"enable.idempotence=true needs {clashes[0][1]}")
        if clashes:  # as Kafka does: a default yields to what was asked for
            values["enable.idempotence"] = False
    if values["delivery.timeout.ms"] < min(values["linger.ms"] + values["request.timeout.ms"], MAX_LONG):
        if "delivery.timeout.ms" in settings.given:
            raise ConfigError(
                f"delivery.timeout.ms={values['delivery.timeout.ms']} is less than linger.ms + request.timeout.ms "
                f"({values['linger.ms'] + values['request.timeout.ms']}): no request could be answered in time"
            )
        values["delivery.timeout.ms"] = values["linger.ms"] + values["request.timeout.ms"]
    return settings


def consumer_settings(given: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> ClientSettings:
    """Read a consumer's settings and check what must agree."""
    settings = ClientSettings(CONSUMER_CONFIGS, given, keywords)
    values = settings.by_name
    values["group.protocol"] = values["group.protocol"].lower()
    _agree(
        values["on.error"] in ("raise", "skip") or callable(values["on.error"]),
        f"on.error={values['on.error']!r} is not known: write raise, skip, or give a function of the error",
    )
    if values["group.id"] is None:
        if values["enable.auto.commit"] and "enable.auto.commit" in settings.given:
            raise ConfigError("enable.auto.commit=true needs a group.id to commit for")
        values["enable.auto.commit"] = False
        _agree(
            values["group.instance.id"] is None, "group.instance.id needs a group.id: a static member is one of a group"
        )
    if values["group.protocol"] == "classic":
        _check_assignors(values["partition.assignment.strategy"])
        _agree(
            values["heartbeat.interval.ms"] < values["session.timeout.ms"],
            "heartbeat.interval.ms must be less than session.timeout.ms; a third of it is usual",
        )
        _agree("group.remote.assignor" not in settings.given, "group.remote.assignor needs group.protocol=consumer")
    else:
        for name in ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"):
            _agree(name not in settings.given, f"{name} is the broker's to set with group.protocol=consumer")
    return settings


def admin_settings(given: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> ClientSettings:
    """Read an admin's settings."""
    return ClientSettings(ADMIN_CONFIGS, given, keywords)


def _check_assignors(names: Iterable[str]) -> None:
    """Say now what would otherwise be said by the first poll of a group."""
    from klamm.client.consumer.core.assignors import ASSIGNORS, assignors  # noqa: PLC0415 - it needs the room above

    for name in names:
        try:
            assignors((name,))
        except ConfigError as error:
            near = max(ASSIGNORS, key=functools.partial(likeness, name.lower()))
            hint = f"; did you mean {near}?" if likeness(name.lower(), near) >= 0.6 else ""
            raise ConfigError(f"{error}{hint}") from None


def _agree(fine: bool, words: str) -> None:
    if not fine:
        raise ConfigError(words)
