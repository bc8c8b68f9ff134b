"""Settings that Kafka does not have."""

from typing import Final

from klamm.model.config import ConfigKey, ConfigType, Importance
from klamm.model.config_rules import list_of

INSECURE_LISTENERS: Final = "klamm.insecure.listeners"
AUDIT_TOPIC: Final = "klamm.audit.topic"

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
)
