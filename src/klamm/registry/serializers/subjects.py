"""The subject that the schema of a record belongs to. Pure.

topic          <topic>-key, <topic>-value: one kind of record in a topic (the default)
record         the full name of the record: one subject wherever it is written
topic-record   <topic>-<full name>: several kinds of records in a topic, with a subject each
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from klamm.client.serde import RecordContext
from klamm.model.errors import ConfigError
from klamm.registry.framing import BadRecord

SubjectNameStrategy = Callable[[RecordContext, str | None], str]
"""(context, full name of the record) -> subject"""


def topic_subject(context: RecordContext, name: str | None) -> str:
    """Return <topic>-key or <topic>-value."""
    del name
    return f"{context.topic}-{context.part}"


def record_subject(context: RecordContext, name: str | None) -> str:
    """Return the full name of the record."""
    return _require_name(context, name)


def topic_record_subject(context: RecordContext, name: str | None) -> str:
    """Return <topic>-<full name>."""
    return f"{context.topic}-{_require_name(context, name)}"


def _require_name(context: RecordContext, name: str | None) -> str:
    if not name:
        raise BadRecord(
            f"the schema of {context.topic} has no name, which its subject.name.strategy needs: "
            "name the record (JSON Schema: title), or use the strategy topic"
        )
    return name


_STRATEGIES: Final = {"topic": topic_subject, "record": record_subject, "topic-record": topic_record_subject}
# Names of Java's classes, and the constants of Confluent's client in Python.
_ALIASES: Final = {
    "topicnamestrategy": "topic",
    "recordnamestrategy": "record",
    "topicrecordnamestrategy": "topic-record",
    "topic_record": "topic-record",
}


def find_strategy(given: Any, setting: str) -> SubjectNameStrategy:
    """Return the strategy of a setting: a name, a class name of Java's, or a function of context and record name."""
    if callable(given):
        strategy: SubjectNameStrategy = given
        return strategy
    word = str(given).rpartition(".")[2].lower()
    name = _ALIASES.get(word, word)
    if name not in _STRATEGIES:
        raise ConfigError(f"{setting}={given}; there are {', '.join(_STRATEGIES)}, or a function")
    return _STRATEGIES[name]
