"""WITH options and SET settings: the names of each kind of statement, and their valid values.

An unknown name is a problem that suggests the nearest known one. `kafka.` introduces a setting of the client, `option.`
in a SINK or SOURCE one of Spark's format, `spark.` in SET one of Spark, and `registry.` one of the registry.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from klamm.client.config import CONSUMER_CONFIGS, PRODUCER_CONFIGS
from klamm.pipeline.core.connector_options import JAVA_SETTINGS
from klamm.pipeline.core.lake_tables import FORMATS as LAKE_FORMATS
from klamm.pipeline.sql.core.problems import SqlProblem, join_words, suggest
from klamm.pipeline.sql.core.secrets import is_secret
from klamm.pipeline.sql.core.statements import Create, Set, Value

REGISTRY_FORMATS: Final = ("avro", "json_schema", "protobuf")
"""Formats whose records have a schema in a registry."""
FORMATS: Final = ("json", "csv", "string", "raw", *REGISTRY_FORMATS)
SINGLE: Final = ("string", "raw")
"""Formats whose value is one column."""
CHANGE_FORMATS: Final = ("debezium", "cdc")
"""Formats of records that say what happened to a row."""
KEY_FORMATS: Final = ("string", "json", *REGISTRY_FORMATS)
CONNECTORS: Final = ("files", "jdbc", "rate", "postgres")
FILE_FORMATS: Final = ("parquet", "json", "csv", "orc", "text")
SINK_FORMATS: Final = (*LAKE_FORMATS, "console", "noop")
BAD_RECORDS: Final = ("dead_letter", "drop", "fail")
_UNITS_MS: Final = {
    "millisecond": 1,
    "ms": 1,
    "second": 1000,
    "s": 1000,
    "minute": 60_000,
    "min": 60_000,
    "m": 60_000,
    "hour": 3_600_000,
    "h": 3_600_000,
    "day": 86_400_000,
    "d": 86_400_000,
    "week": 604_800_000,
}

Check = Callable[[str], str | None]


def duration_ms(text: str) -> int | None:
    """Parse `10 seconds`, `1 minute`, `500 ms` to milliseconds; None when it is no duration."""
    match = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]+)\s*", text)
    if match is None:
        return None
    unit = match[2].lower()
    # Singular and plural, as in Spark's intervals.
    size = _UNITS_MS.get(unit) or (_UNITS_MS.get(unit[:-1]) if unit.endswith("s") else None)
    return None if size is None else int(match[1]) * size


def name_list(text: str) -> tuple[str, ...]:
    """Return the names of `a, b`."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _one_of(*words: str) -> Check:
    def check(text: str) -> str | None:
        return None if text.lower() in words else f"write {join_words(words)}{suggest(text, words)}"

    return check


def _duration(text: str) -> str | None:
    return None if duration_ms(text) is not None else "write a number and a unit, e.g. '10 seconds' or '1 minute'"


def _number(least: int) -> Check:
    def check(text: str) -> str | None:
        return None if text.isdecimal() and int(text) >= least else f"write a whole number, {least} or more"

    return check


def _address(text: str) -> str | None:
    host, _, port = text.rpartition(":")
    fine = port.isdecimal() and int(port) < 65536 and (not host or host.strip() == host)
    return None if fine else "write a port, or host:port"


def _names(text: str) -> str | None:
    return None if name_list(text) else "write a column's name, or several with commas"


def _text(text: str) -> str | None:
    return None if text.strip() else "write something"


def _topic(text: str) -> str | None:
    # Kafka's limit: the folder <topic>-<partition> has to fit into a file name of 255 characters.
    fine = re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", text) and text not in (".", "..")
    return None if fine else "a topic's name has up to 249 of a-z A-Z 0-9 . _ -"


def _registry(text: str) -> str | None:
    urls = [url.strip() for url in text.split(",")]
    # A variable is expanded when the pipeline runs; its value is not known here.
    fine = all(url.startswith(("http://", "https://", "${")) for url in urls)
    return None if fine else "write where the registry is: 'http://host:8081'"


def _database(text: str) -> str | None:
    fine = text.startswith(("jdbc:", "postgresql://", "postgres://", "${"))
    return None if fine else "write the database's address: 'jdbc:postgresql://host/db'"


def _table(text: str) -> str | None:
    fine = all(re.fullmatch(r"\w[\w-]*", part) for part in text.split("."))
    return None if fine else "write a table's name in its catalog: 'namespace.name'"


def starting_ms(text: str) -> int | None:
    """Return the time at which reading begins, in milliseconds since 1970; without a zone it is UTC. None: no time."""
    try:
        moment = dt.datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    # Integer arithmetic: timestamp() is a float, which could be a millisecond off.
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)


def _starting(text: str) -> str | None:
    if text.lower() in ("earliest", "latest") or text.lstrip().startswith("{"):
        return None
    moment_ms = starting_ms(text)
    if moment_ms is not None and moment_ms >= 0:
        return None
    return "write earliest, latest, a time such as '2026-05-01T00:00:00Z', or JSON with an offset for each partition"


def _timestamp_format(text: str) -> str | None:
    has_date = all(re.search(f"[{letters}]", text) for letters in ("yu", "ML", "d"))
    if text.lower() in ("iso", "seconds", "millis", "micros") or has_date:
        return None
    return "write iso, seconds, millis, micros or a pattern such as 'yyyy-MM-dd HH:mm:ss'"


_TOPIC_OPTIONS: Final[Mapping[str, Check]] = {
    "topic": _topic,
    "format": _one_of(*FORMATS),
    "key": _names,
    "key_format": _one_of(*KEY_FORMATS),
    "registry": _registry,
    "subject": _text,
    "key_subject": _text,
    "message": _text,
    "timestamp": _names,
    "watermark": _duration,
    "deduplicate": _names,
    "on_data_loss": _one_of("fail", "continue"),
    "partitions": _number(1),
    "replication": _number(1),
}
CDC_OPTIONS: Final = ("op_column", "upsert_ops", "delete_ops", "row_column", "before_column")
"""Options of format cdc."""
_PARSE_OPTIONS: Final[Mapping[str, Check]] = {
    "parsing": _one_of("strict", "lenient"),
    "timestamp_format": _timestamp_format,
}
_READ_OPTIONS: Final[Mapping[str, Check]] = {
    "bad_records": _one_of(*BAD_RECORDS),
    "dead_letter_topic": _topic,
    "starting": _starting,
    "max_records": _number(1),
    **_PARSE_OPTIONS,
    "format": _one_of(*FORMATS, *CHANGE_FORMATS),
    "order_by": _names,
    **dict.fromkeys(CDC_OPTIONS, _names),
}
_REGISTRY_WRITE_OPTIONS: Final[Mapping[str, Check]] = {
    "schema": _one_of("derive", "latest"),
    "framing": _one_of("prefix", "header"),
}
_WRITE_OPTIONS: Final[Mapping[str, Check]] = {
    "trigger": _duration,
    "emit": _one_of("changes", "final"),
    "late_topic": _topic,
    **_REGISTRY_WRITE_OPTIONS,
}

KIND_OPTIONS: Final[Mapping[str, Mapping[str, Check]]] = {
    "stream": {**_TOPIC_OPTIONS, **_READ_OPTIONS},
    "table": {**_TOPIC_OPTIONS, **_READ_OPTIONS},
    "stream as": {**_TOPIC_OPTIONS, **_WRITE_OPTIONS},
    "table as": {**_TOPIC_OPTIONS, **_WRITE_OPTIONS, "delete_when": _text},
    "view as": {},
    "sink as": {
        "format": _one_of(*SINK_FORMATS),
        "path": _text,
        "table": _table,
        "partition_by": _names,
        "mode": _one_of("append", "upsert"),
        "key": _names,
        "order_by": _names,
        "delete_when": _text,
        "trigger": _duration,
        "late_topic": _topic,
    },
    "source": {
        **{name: check for name, check in _TOPIC_OPTIONS.items() if name != "format"},
        **_REGISTRY_WRITE_OPTIONS,
        "connector": _one_of(*CONNECTORS),
        "format": _one_of("json", "csv", "string", *REGISTRY_FORMATS),
        "bad_records": _one_of(*BAD_RECORDS),
        "dead_letter_topic": _topic,
        **_PARSE_OPTIONS,
        "path": _text,
        "file_format": _one_of(*FILE_FORMATS),
        "rows_per_second": _number(1),
        "trigger": _duration,
        "url": _database,
        "table": _text,
        "query": _text,
        "cursor": _text,
        "delay": _duration,
        "starting": _one_of("earliest", "latest"),
        "batch_size": _number(1),
        "fetch_size": _number(0),
        "driver": _text,
        "driver_jar": _text,
        "user": _text,
        "password": _text,
        "slot": _text,
        "publication": _text,
    },
}

SETTINGS: Final[Mapping[str, Check]] = {
    "name": _topic,
    "bootstrap": _text,
    "checkpoint": _text,
    "starting": _starting,
    "trigger": _duration,
    "max_records": _number(1),
    "bad_records": _one_of(*BAD_RECORDS),
    "dead_letter_topic": _topic,
    "on_data_loss": _one_of("fail", "continue"),
    **_PARSE_OPTIONS,
    "partitions": _number(1),
    "replication": _number(1),
    "restarts": _number(0),
    "metrics": _address,
    "registry": _registry,
}
REGISTRY_SETTINGS: Final = ("basic.auth.user.info", "bearer.auth.token", "ssl.ca.location")
"""Settings with the prefix `registry.` in SET."""
CONNECTOR_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "files": ("path", "file_format", "bad_records", "dead_letter_topic", "parsing", "timestamp_format"),
    "rate": ("rows_per_second",),
    "jdbc": (
        *("url", "table", "query", "cursor", "delay", "starting", "batch_size", "fetch_size"),
        *("driver", "driver_jar", "user", "password"),
    ),
    "postgres": ("url", "user", "password", "table", "slot", "publication", "starting", "batch_size"),
}
"""Options of a single connector."""
_PREFIXES: Final = {
    "stream": ("kafka.",),
    "table": ("kafka.",),
    "source": ("kafka.", "option."),
    "sink": ("option.",),
}
# Exactly-once delivery and the checkpoint depend on these.
_RESERVED: Final = ("bootstrap.servers", "group.id", "isolation.level", "transactional.id", "auto.offset.reset")


def with_defaults(create: Create, settings: Mapping[str, Value]) -> Create:
    """Return a statement with the options that SET gives to all that read values."""
    known = KIND_OPTIONS.get(option_kind(create), {})
    defaults = {name: settings[name] for name in _PARSE_OPTIONS if name in settings and name in known}
    # Only files parse text: a database and a clock have types.
    if create.kind == "source" and (option := create.options.get("connector")) and option.text.lower() != "files":
        return create
    return replace(create, options={**defaults, **create.options}) if defaults else create


def option_kind(create: Create) -> str:
    """Return the key of a statement's options in KIND_OPTIONS."""
    return f"{create.kind} as" if create.select is not None else create.kind


def check_options(create: Create) -> Iterator[SqlProblem]:
    """Yield the problems of a statement's options."""
    kind = option_kind(create)
    known = KIND_OPTIONS.get(kind, {})
    prefixes = _PREFIXES.get(create.kind, ())
    for name, value in create.options.items():
        check = known.get(name)
        if check is not None:
            yield from _check_value(name, value, check)
        elif "kafka." in prefixes and name.startswith("kafka."):
            yield from _check_client_setting(name, value)
        elif not name.startswith(prefixes):
            other_kinds = [kind_name for kind_name, options in KIND_OPTIONS.items() if name in options]
            message = f"{name} is not an option of a {kind.upper()}{' SELECT' if create.select else ''}"
            hint = suggest(name, known)
            if other_kinds:
                hint = f"; it is one of {join_words([kind_name.upper() for kind_name in other_kinds], 'and')}"
            yield SqlProblem(value.name_offset, message + hint)


def check_setting(setting: Set) -> Iterator[SqlProblem]:
    """Yield the problems of a SET."""
    check = SETTINGS.get(setting.name)
    if check is not None:
        yield from _check_value(setting.name, setting.value, check)
    elif setting.name.startswith("kafka."):
        yield from _check_client_setting(setting.name, setting.value)
    elif setting.name.startswith("registry."):
        known = [f"registry.{registry_setting}" for registry_setting in REGISTRY_SETTINGS]
        if setting.name not in known:
            message = f"there is no setting {setting.name}{suggest(setting.name, known) or f': {join_words(known)}'}"
            yield SqlProblem(setting.value.name_offset, message)
    elif not setting.name.startswith("spark."):
        hint = suggest(setting.name, SETTINGS) or f": {join_words(SETTINGS)}"
        yield SqlProblem(setting.value.name_offset, f"there is no setting {setting.name}{hint}")


def _check_value(name: str, value: Value, check: Check) -> Iterator[SqlProblem]:
    complaint = check(value.text)
    if complaint is not None:
        yield SqlProblem(value.offset, f"{name} = '{'***' if is_secret(name) else value.text}': {complaint}")


def _check_client_setting(name: str, value: Value) -> Iterator[SqlProblem]:
    setting = name.removeprefix("kafka.")
    if setting in _RESERVED:
        hint = "use SET bootstrap" if setting == "bootstrap.servers" else "the pipeline sets it"
        yield SqlProblem(value.name_offset, f"{name} cannot be set: {hint}")
    elif setting in JAVA_SETTINGS:
        yield SqlProblem(value.name_offset, f"{name} is a setting of Java's client: {JAVA_SETTINGS[setting]}")
    elif setting not in CONSUMER_CONFIGS and setting not in PRODUCER_CONFIGS:
        known = [f"kafka.{key}" for key in (*CONSUMER_CONFIGS.keys, *PRODUCER_CONFIGS.keys)]
        yield SqlProblem(value.name_offset, f"{name} is not a client setting{suggest(name, known)}")
