"""WITH options and settings: which there are for each kind of statement, and what they may say.

A name nobody knows is refused with the nearest right one. `kafka.` introduces a setting of the client, in a SINK and a
SOURCE `option.` one of Spark's format, in SET `spark.` one of Spark and `registry.` one of the registry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from klamm.client.config import CONSUMER_CONFIGS, PRODUCER_CONFIGS
from klamm.pipeline.core.lake_tables import FORMATS as LAKE_FORMATS
from klamm.pipeline.sql.core.problems import Problem, join_words, suggest
from klamm.pipeline.sql.core.secrets import is_secret
from klamm.pipeline.sql.core.statements import Create, Set, Value

REGISTRY_FORMATS: Final = ("avro", "json_schema", "protobuf")
"""Formats whose records name a schema of a registry."""
FORMATS: Final = ("json", "csv", "string", "raw", *REGISTRY_FORMATS)
KEY_FORMATS: Final = ("string", "json", *REGISTRY_FORMATS)
CONNECTORS: Final = ("files", "jdbc", "rate")
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
    """Milliseconds of `10 seconds`, `1 minute`, `500 ms`; None when it is no duration."""
    match = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]+)\s*", text)
    if match is None:
        return None
    unit = match[2].lower()
    size = _UNITS_MS.get(unit) or (_UNITS_MS.get(unit[:-1]) if unit.endswith("s") else None)
    return None if size is None else int(match[1]) * size


def name_list(text: str) -> tuple[str, ...]:
    """Names of `a, b`."""
    return tuple(each.strip() for each in text.split(",") if each.strip())


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
    fine = re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", text) and text not in (".", "..")
    return None if fine else "a topic's name has up to 249 of a-z A-Z 0-9 . _ -"


def _registry(text: str) -> str | None:
    urls = [each.strip() for each in text.split(",")]
    fine = all(url.startswith(("http://", "https://", "${")) for url in urls)
    return None if fine else "write where the registry is: 'http://host:8081'"


def _jdbc(text: str) -> str | None:
    return None if text.startswith(("jdbc:", "${")) else "write the database's address: 'jdbc:postgresql://host/db'"


def _table(text: str) -> str | None:
    fine = all(re.fullmatch(r"\w[\w-]*", each) for each in text.split("."))
    return None if fine else "write a table's name in its catalog: 'namespace.name'"


def _starting(text: str) -> str | None:
    if text.lower() in ("earliest", "latest") or text.lstrip().startswith("{"):
        return None
    return "write earliest, latest or JSON with an offset for each partition"


_FORM: Final[Mapping[str, Check]] = {
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
    "partitions": _number(1),
    "replication": _number(1),
}
_READ: Final[Mapping[str, Check]] = {
    "bad_records": _one_of(*BAD_RECORDS),
    "dead_letter_topic": _topic,
    "starting": _starting,
    "max_records": _number(1),
}
_REGISTERS: Final[Mapping[str, Check]] = {
    "schema": _one_of("derive", "latest"),
    "framing": _one_of("prefix", "header"),
}
_WRITE: Final[Mapping[str, Check]] = {"trigger": _duration, "emit": _one_of("changes", "final"), **_REGISTERS}

KIND_OPTIONS: Final[Mapping[str, Mapping[str, Check]]] = {
    "stream": {**_FORM, **_READ},
    "table": {**_FORM, **_READ},
    "stream as": {**_FORM, **_WRITE},
    "table as": {**_FORM, **_WRITE, "delete_when": _text},
    "view as": {},
    "sink as": {
        "format": _one_of(*SINK_FORMATS),
        "path": _text,
        "table": _table,
        "partition_by": _names,
        "trigger": _duration,
    },
    "source": {
        **{name: check for name, check in _FORM.items() if name != "format"},
        **_REGISTERS,
        "connector": _one_of(*CONNECTORS),
        "format": _one_of("json", "csv", "string", *REGISTRY_FORMATS),
        "bad_records": _one_of(*BAD_RECORDS),
        "dead_letter_topic": _topic,
        "path": _text,
        "file_format": _one_of(*FILE_FORMATS),
        "rows_per_second": _number(1),
        "trigger": _duration,
        "url": _jdbc,
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
    "partitions": _number(1),
    "replication": _number(1),
    "restarts": _number(0),
    "metrics": _address,
    "registry": _registry,
}
REGISTRY_SETTINGS: Final = ("basic.auth.user.info", "bearer.auth.token", "ssl.ca.location")
"""What `registry.` introduces in SET."""
CONNECTOR_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "files": ("path", "file_format", "bad_records", "dead_letter_topic"),
    "rate": ("rows_per_second",),
    "jdbc": (
        *("url", "table", "query", "cursor", "delay", "starting", "batch_size", "fetch_size"),
        *("driver", "driver_jar", "user", "password"),
    ),
}
"""Options that only one connector has."""
_PREFIXES: Final = {
    "stream": ("kafka.",),
    "table": ("kafka.",),
    "source": ("kafka.", "option."),
    "sink": ("option.",),
}
_OURS: Final = ("bootstrap.servers", "group.id", "isolation.level", "transactional.id", "auto.offset.reset")


def option_kind(create: Create) -> str:
    """Which options a statement takes."""
    return f"{create.kind} as" if create.select is not None else create.kind


def check_options(create: Create) -> Iterator[Problem]:
    """What is wrong with a statement's options."""
    kind = option_kind(create)
    known = KIND_OPTIONS.get(kind, {})
    prefixes = _PREFIXES.get(create.kind, ())
    for name, value in create.options.items():
        check = known.get(name)
        if check is not None:
            yield from _checked(name, value, check)
        elif "kafka." in prefixes and name.startswith("kafka."):
            yield from _client_setting(name, value)
        elif not name.startswith(prefixes or ("\0",)):
            elsewhere = [each for each, some in KIND_OPTIONS.items() if name in some]
            words = f"{name} is no option of a {kind.upper()}{' SELECT' if create.select else ''}"
            hint = suggest(name, known)
            if elsewhere:
                hint = f"; it is one of {join_words([each.upper() for each in elsewhere], 'and')}"
            yield Problem(value.name_offset, words + hint)


def check_setting(setting: Set) -> Iterator[Problem]:
    """What is wrong with a SET."""
    check = SETTINGS.get(setting.name)
    if check is not None:
        yield from _checked(setting.name, setting.value, check)
    elif setting.name.startswith("kafka."):
        yield from _client_setting(setting.name, setting.value)
    elif setting.name.startswith("registry."):
        known = [f"registry.{registry_setting}" for registry_setting in REGISTRY_SETTINGS]
        if setting.name not in known:
            words = f"there is no setting {setting.name}{suggest(setting.name, known) or f': {join_words(known)}'}"
            yield Problem(setting.value.name_offset, words)
    elif not setting.name.startswith("spark."):
        hint = suggest(setting.name, SETTINGS) or f": {join_words(SETTINGS)}"
        yield Problem(setting.value.name_offset, f"there is no setting {setting.name}{hint}")


def _checked(name: str, value: Value, check: Check) -> Iterator[Problem]:
    words = check(value.text)
    if words is not None:
        yield Problem(value.offset, f"{name} = '{'***' if is_secret(name) else value.text}': {words}")


def _client_setting(name: str, value: Value) -> Iterator[Problem]:
    setting = name.removeprefix("kafka.")
    if setting in _OURS:
        hint = "SET bootstrap says it" if setting == "bootstrap.servers" else "the pipeline sets it"
        yield Problem(value.name_offset, f"{name} is not yours to set: {hint}")
    elif setting not in CONSUMER_CONFIGS and setting not in PRODUCER_CONFIGS:
        known = [f"kafka.{key}" for key in (*CONSUMER_CONFIGS.keys, *PRODUCER_CONFIGS.keys)]
        yield Problem(value.name_offset, f"{name} is no setting of a client{suggest(name, known)}")
