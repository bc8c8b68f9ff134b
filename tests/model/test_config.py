"""Settings are read as Kafka reads them, and refused in words that help."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.model.broker_catalog.own import OWN
from klamm.model.broker_configs import (
    BROKER_CONFIGS,
    DYNAMIC_ONLY,
    broker_key,
    known_by_name,
    listener_base,
    validate_dynamic_broker_config,
)
from klamm.model.config import MAX_INT, MAX_LONG, REQUIRED, ConfigDef, ConfigKey, ConfigType, format_value
from klamm.model.errors import ConfigError
from klamm.model.group_configs import CLIENT_METRICS_CONFIGS, GROUP_CONFIGS
from klamm.model.topic_configs import (
    CHECKED_CODECS,
    TOPIC_CONFIGS,
    TOPIC_SYNONYMS,
    topic_defaults,
    validate_topic_configs,
)

OWN_NAMES = {key.name for key in OWN}
CATALOGUES = {
    "broker": BROKER_CONFIGS,
    "topic": TOPIC_CONFIGS,
    "group": GROUP_CONFIGS,
    "client-metrics": CLIENT_METRICS_CONFIGS,
}


def golden(kind: str) -> dict[str, tuple[str, ...]]:
    lines = (Path(__file__).parent / "golden" / "definitions.tsv").read_text().splitlines()
    rows = (line.split("\t") for line in lines)
    return {row[1]: tuple(row[2:]) for row in rows if row[0] == kind}


def facts(key: ConfigKey) -> tuple[str, ...]:
    default = "\\R" if key.default is REQUIRED else "\\N" if key.default_text is None else key.default_text
    internal = str(key.internal).lower()
    return key.type.name, default, key.importance.value, internal, key.update_mode.value


@pytest.mark.parametrize("kind", CATALOGUES)
def test_the_catalogue_holds_exactly_kafkas_settings(kind):
    ours = {
        key.name: facts(key) for key in CATALOGUES[kind] if key.name not in (*DYNAMIC_ONLY, CHECKED_CODECS, *OWN_NAMES)
    }
    assert ours == golden(kind)


def test_klamms_own_setting_is_one_of_topics_and_of_brokers():
    """Its name says whose it is; every other setting is Kafka's."""
    for catalogue in (TOPIC_CONFIGS, BROKER_CONFIGS):
        own = {key.name for key in catalogue if key.name.startswith("klamm.")}
        assert own - OWN_NAMES == {CHECKED_CODECS}
        assert catalogue.default(CHECKED_CODECS) == ("gzip", "lz4", "snappy", "zstd")
        assert accepted(catalogue, CHECKED_CODECS, "")
        assert accepted(catalogue, CHECKED_CODECS, "lz4,zstd")
        assert not accepted(catalogue, CHECKED_CODECS, "brotli")
    assert topic_defaults({CHECKED_CODECS: ("lz4",)})[CHECKED_CODECS] == ("lz4",)


@pytest.mark.parametrize("catalogue", CATALOGUES.values(), ids=CATALOGUES)
def test_every_default_obeys_its_own_rule_and_has_a_doc(catalogue):
    for key in catalogue:
        assert key.doc.endswith((".", "...")), key.name
        if key.default_text is not None:
            assert key.parse(key.default_text) == key.default, key.name


def test_kafka_and_klamm_accept_the_same_texts():
    header, *rows = (Path(__file__).parent / "golden" / "probes.tsv").read_text().splitlines()
    probes = ["" if text == "\\E" else text for text in header.split("\t")[1:]]
    for row in rows:
        kind, name, verdicts = row.split("\t")
        ours = "".join("1" if accepted(CATALOGUES[kind], name, text) else "0" for text in probes)
        differing = [text for text, a, b in zip(probes, ours, verdicts, strict=True) if a != b]
        assert differing == [], f"{kind} setting {name}"


def accepted(catalogue: ConfigDef, name: str, text: str) -> bool:
    try:
        catalogue.parse(name, text)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("retention.ms", "+5", 5),
        ("retention.ms", " 5 ", 5),
        ("retention.ms", "-1", -1),
        ("retention.ms", str(MAX_LONG), MAX_LONG),
        ("max.message.bytes", str(MAX_INT), MAX_INT),
        ("preallocate", "TRUE", True),
        ("cleanup.policy", "compact , delete", ("compact", "delete")),
        ("cleanup.policy", "compact,compact", ("compact",)),
        ("cleanup.policy", "", ()),
        ("min.cleanable.dirty.ratio", "0.5d", 0.5),
        ("min.cleanable.dirty.ratio", "+.5", 0.5),
        ("min.cleanable.dirty.ratio", "0x1p-1", 0.5),
        ("compression.gzip.level", "-1", -1),
        ("leader.replication.throttled.replicas", "*", ("*",)),
        ("leader.replication.throttled.replicas", "0:1,1:2", ("0:1", "1:2")),
    ],
)
def test_text_is_read_as_kafka_reads_it(name, text, value):
    assert TOPIC_CONFIGS.parse(name, text) == value


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("retention.ms", "1_000", "a whole number"),
        ("retention.ms", "5.0", "a whole number"),
        ("retention.ms", "0x5", "a whole number"),
        ("retention.ms", "9223372036854775808", "between -9223372036854775808 and 9223372036854775807"),
        ("retention.ms", "-2", "write at least -1"),
        ("segment.bytes", "1024", "write at least 1048576"),
        ("segment.bytes", "2147483648", "a whole number between"),
        ("preallocate", "yes", "true or false"),
        ("cleanup.policy", "compact,", "missing"),
        ("cleanup.policy", "none", "one or more of compact, delete"),
        ("compression.type", "none", "write one of uncompressed, zstd"),
        ("compression.gzip.level", "0", "from 1 to 9, or -1"),
        ("min.cleanable.dirty.ratio", "1.0001", "from 0 to 1"),
        ("min.cleanable.dirty.ratio", "much", "a number"),
        ("leader.replication.throttled.replicas", "0:1:2", "write \\* or a list like"),
        ("retention_ms", "1", "did you mean retention.ms"),
        ("retentoin.ms", "1", "did you mean retention.ms"),
        ("xyzzy", "1", "^xyzzy is not a topic setting$"),
    ],
)
def test_a_wrong_topic_setting_is_refused_in_words_that_help(name, text, words):
    with pytest.raises(ConfigError, match=words):
        TOPIC_CONFIGS.parse(name, text)


def test_compaction_lags_must_agree_with_each_other_and_with_what_is_inherited():
    validate_topic_configs({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"})
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms=10 is larger than max\.compaction\.lag\.ms=5"):
        validate_topic_configs({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})
    with pytest.raises(ConfigError, match="write at most 7"):
        validate_topic_configs({"min.compaction.lag.ms": "10"}, {"max.compaction.lag.ms": 7})


def test_remote_storage_is_refused_where_there_is_none():
    validate_topic_configs({"remote.storage.enable": "false"})
    with pytest.raises(ConfigError, match="write false"):
        validate_topic_configs({"remote.storage.enable": "true"})


def test_topics_inherit_the_brokers_values_in_their_own_units():
    broker = {
        "log.retention.hours": 2,
        "log.retention.minutes": 5,
        "log.roll.hours": 1,
        "log.segment.bytes": 2097152,
        "message.max.bytes": 10,
        "num.partitions": 3,
    }
    assert topic_defaults(broker) == {
        "retention.ms": 300_000,
        "segment.ms": 3_600_000,
        "segment.bytes": 2097152,
        "max.message.bytes": 10,
    }
    assert topic_defaults({"log.retention.hours": -1}) == {"retention.ms": -1}


def test_every_synonym_is_a_broker_setting():
    for name, synonyms in TOPIC_SYNONYMS.items():
        assert name in TOPIC_CONFIGS
        assert all(synonym in BROKER_CONFIGS for synonym in synonyms)


def test_a_listeners_own_setting_stands_for_its_base():
    assert listener_base("listener.name.external.max.connections") == "max.connections"
    assert listener_base("listener.name.sasl.scram-sha-256.sasl.jaas.config") == "sasl.jaas.config"
    assert listener_base("max.connections") is None
    key = broker_key("listener.name.x.max.connections")
    assert key is BROKER_CONFIGS.key("max.connections")
    assert key is not None
    assert key.parse("5") == 5
    with pytest.raises(ConfigError, match="at least 0"):
        key.parse("-5")


def test_settings_of_plugins_and_older_kafkas_are_known_by_name():
    for name in ("rsm.config.bucket", "super.users", "zookeeper.connect", "inter.broker.protocol.version"):
        assert known_by_name(name)
    assert not known_by_name("log.dirs")


def test_a_running_broker_takes_only_what_it_can():
    validate_dynamic_broker_config("log.retention.ms", "5", per_broker=False)
    validate_dynamic_broker_config("log.retention.ms", None, per_broker=True)
    validate_dynamic_broker_config("leader.replication.throttled.rate", "1000", per_broker=True)
    validate_dynamic_broker_config("listeners", "PLAINTEXT://:9092", per_broker=True)
    with pytest.raises(ConfigError, match="for all brokers at once"):
        validate_dynamic_broker_config("listeners", "PLAINTEXT://:9092", per_broker=False)
    with pytest.raises(ConfigError, match="restart"):
        validate_dynamic_broker_config("node.id", "5", per_broker=True)
    with pytest.raises(ConfigError, match=r"did you mean log\.retention\.ms"):
        validate_dynamic_broker_config("log.retntion.ms", "5", per_broker=True)
    with pytest.raises(ConfigError, match="a whole number"):
        validate_dynamic_broker_config("log.retention.ms", "soon", per_broker=True)


def test_secrets_do_not_appear_in_errors():
    key = ConfigKey("a.secret", ConfigType.PASSWORD, None, "A secret.")
    assert key.sensitive
    assert "hush" not in key._pair("hush")


def test_a_setting_is_declared_once():
    key = ConfigKey("a", ConfigType.INT, 1, "A number.")
    with pytest.raises(ValueError, match="twice"):
        ConfigDef("thing", (key, key))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_survive_being_printed_as_java_prints_them(value):
    key = ConfigKey("d", ConfigType.DOUBLE, 0.0, "A number.")
    text = format_value(value)
    assert text is not None
    assert key.parse(text) == value
    assert "e" not in text
    assert "." in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e7, "1.0E7"),
        (9999999.0, "9999999.0"),
        (0.001, "0.001"),
        (0.0001, "1.0E-4"),
        (-1.5e300, "-1.5E300"),
        (0.0, "0.0"),
    ],
)
def test_java_switches_to_exponents_at_its_own_bounds(value, text):
    assert format_value(value) == text


@given(st.text())
def test_any_text_is_read_or_refused_and_nothing_else(text):
    for key in TOPIC_CONFIGS:
        try:
            key.parse(text)
        except ConfigError:
            continue
