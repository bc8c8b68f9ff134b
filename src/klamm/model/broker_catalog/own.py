"""Settings that Kafka does not have."""

from typing import Final

from klamm.model.config import ConfigKey, ConfigType, Importance
from klamm.model.config_rules import at_least, list_of, one_of

INSECURE_LISTENERS: Final = "klamm.insecure.listeners"
AUDIT_TOPIC: Final = "klamm.audit.topic"
METRICS_LISTENERS: Final = "metrics.listeners"
METRICS_NAMING: Final = "klamm.metrics.naming"
OTLP_ENDPOINT: Final = "klamm.otlp.endpoint"
OTLP_INTERVAL_MS: Final = "klamm.otlp.interval.ms"

OWN: Final = (
    ConfigKey(
        INSECURE_LISTENERS,
        ConfigType.LIST,
        (),
        "Listeners that may be open to other machines without authentication; `klamm server` refuses all others.",
        rule=list_of(),
        importance=Importance.HIGH,
        served=True,
    ),
    ConfigKey(
        AUDIT_TOPIC,
        ConfigType.STRING,
        "",
        "Topic to which brokers with an authorizer write denials as JSON, beside the log; empty for none.",
        importance=Importance.LOW,
        served=True,
    ),
    ConfigKey(
        METRICS_LISTENERS,
        ConfigType.LIST,
        (),
        "Addresses (host:port) of /metrics, /health and /ready over HTTP, without authentication; none if empty.",
        rule=list_of(),
        importance=Importance.MEDIUM,
        served=True,
    ),
    ConfigKey(
        METRICS_NAMING,
        ConfigType.STRING,
        "strimzi",
        "Spelling of Kafka's rates in metrics: strimzi (`..._total`) or confluent (`...persec`).",
        rule=one_of("strimzi", "confluent"),
        importance=Importance.LOW,
        served=True,
    ),
    ConfigKey(
        OTLP_ENDPOINT,
        ConfigType.STRING,
        "",
        "URL of an OpenTelemetry collector to which the node sends its metrics (OTLP over HTTP); empty for none.",
        importance=Importance.LOW,
        served=True,
    ),
    ConfigKey(
        OTLP_INTERVAL_MS,
        ConfigType.INT,
        60_000,
        "How often metrics are sent to klamm.otlp.endpoint.",
        rule=at_least(1000),
        importance=Importance.LOW,
        served=True,
    ),
)
