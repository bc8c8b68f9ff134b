"""The reference promises which settings are in use; the code keeps it, in both directions."""

import re
from pathlib import Path

import klamm
from klamm.model.broker_configs import BROKER_CONFIGS
from klamm.model.topic_configs import TOPIC_CONFIGS, TOPIC_SYNONYMS

SOURCE = Path(klamm.__file__).parent
DECLARATIONS = {"broker_configs.py", "topic_configs.py", "group_configs.py", "config_describe.py"}
INHERITED = {synonym: topic for topic, synonyms in TOPIC_SYNONYMS.items() for synonym in synonyms}


def source() -> str:
    """Every room but the declarations themselves."""
    files = (path for path in SOURCE.rglob("*.py") if "broker_catalog" not in path.parts)
    return "\n".join(path.read_text() for path in files if path.name not in DECLARATIONS)


def test_a_setting_in_use_is_read_somewhere():
    text = source()
    unread = [key.name for key in BROKER_CONFIGS if key.served and f'"{key.name}"' not in text]
    assert [name for name in unread if name not in INHERITED] == []


def test_a_setting_that_is_read_is_in_use():
    read = re.findall(r'config\.(?:integer|flag|text|value)\(\s*"([a-z.]+)"', source())
    assert len(read) > 10
    assert [name for name in read if not BROKER_CONFIGS.key(name).served] == []


def test_a_broker_setting_that_topics_inherit_is_in_use_with_them():
    differing = [
        name for name, topic in INHERITED.items() if BROKER_CONFIGS.key(name).served != TOPIC_CONFIGS.key(topic).served
    ]
    assert differing == []
