"""Settings that Kafka does not have."""

from typing import Final

from klamm.model.config import ConfigKey, ConfigType, Importance
from klamm.model.config_rules import list_of

INSECURE_LISTENERS: Final = "klamm.insecure.listeners"

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
)
