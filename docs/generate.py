"""Writes the reference pages from the code they describe; `--check` only checks whether they are up to date.

The types of a client's settings, src/klamm/client/settings.py, are written from their definitions in the same way.

python docs/generate.py            write docs/reference/*.md
python docs/generate.py --check    exit with 1 when a page is stale
"""  # noqa: INP001 - a script, not a package

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path

import click

import klamm.client
import klamm.client.errors
import klamm.testing
from klamm.cli.exit_codes import MEANINGS
from klamm.cli.main import cli
from klamm.client.config import COMMON, DEFINITIONS
from klamm.client.errors import KafkaError
from klamm.client.unsupported_settings import IGNORED, REFUSED
from klamm.model.broker_configs import BROKER_CONFIGS, FAMILIES
from klamm.model.config import REQUIRED, ConfigKey, ConfigType
from klamm.model.group_configs import CLIENT_METRICS_CONFIGS, GROUP_CONFIGS
from klamm.model.topic_configs import TOPIC_CONFIGS, TOPIC_SYNONYMS
from klamm.server.requests.routes import routes

REFERENCE = Path(__file__).parent / "reference"

NOTE = "<!-- Written by docs/generate.py; change the code and run `make docs`. -->\n"
LEGEND = """\
*In use* says whether a setting changes anything in Klamm today; the others are accepted, kept and shown, so that files
and tools written for Kafka work unchanged.
"""


def topic_configs() -> str:
    """Settings of topics."""
    lines = [
        "# Topic settings\n",
        NOTE,
        "Set them when a topic is created or with `kafka-configs --entity-type topics`. A setting that is not set",
        "takes the value of the broker setting beside it.\n",
        LEGEND,
        *_table("Setting", TOPIC_CONFIGS, ("Broker setting", lambda key: _codes(TOPIC_SYNONYMS.get(key.name, ())))),
    ]
    return _page(lines)


def broker_configs() -> str:
    """Settings of brokers and controllers."""
    served = sum(key.served for key in BROKER_CONFIGS)
    lines = [
        "# Broker settings\n",
        NOTE,
        f"Every setting of Kafka 4.3's server.properties: {len(BROKER_CONFIGS)}, of which {served} are in use here.\n",
        LEGEND,
        "*Changes*: `read-only` settings need a restart; `per-broker` ones can be set on a running broker,",
        "`cluster-wide` ones on one or on all of them. A setting may be given to one listener alone as",
        "`listener.name.<listener>.<setting>`.",
    ]
    for title, family in FAMILIES.items():
        lines += [f"\n## {title}\n", *_table("Setting", family, ("Changes", lambda key: key.update_mode.value))]
    return _page(lines)


def group_configs() -> str:
    """Settings of groups and client metrics."""
    lines = [
        "# Group and client-metrics settings\n",
        NOTE,
        "Set them with `kafka-configs --entity-type groups` and `kafka-client-metrics`. They are checked and described",
        "but not in use yet.\n",
        "## Groups\n",
        *_table("Setting", GROUP_CONFIGS),
        "\n## Client metrics\n",
        *_table("Setting", CLIENT_METRICS_CONFIGS),
    ]
    return _page(lines)


def commands() -> str:
    """The command line."""
    lines = [
        "# Commands\n",
        NOTE,
        "Exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in MEANINGS.items()) + ".",
    ]
    for path, help_text in _helps(cli, None, "klamm"):
        lines.append(f"\n## {path}\n\n```text\n{help_text}\n```")
    return _page(lines)


def apis() -> str:
    """The requests a node answers."""
    broker, controller = routes("broker"), routes("controller")
    titles = ["Key", "API", "Versions", "Broker listener", "Controller listener"]
    lines = [
        "# Requests and versions\n",
        NOTE,
        "The APIs and versions that a node advertises in ApiVersions. An API that is not listed is not served.",
        "Produce 0-2 are advertised for older clients and refused, as in Kafka.\n",
        _row(titles),
        _row(["---"] * len(titles)),
    ]
    for key in sorted(broker.keys() | controller.keys()):
        api = (broker.get(key) or controller[key]).api
        low, high = api.advertised
        cells = [str(key), api.name, f"{low}-{high}" if low != high else str(low)]
        lines.append(_row([*cells, *("yes" if key in routed else "" for routed in (broker, controller))]))
    return _page(lines)


def client_configs() -> str:
    """Settings of producers, consumers and admins."""
    lines = [
        "# Client settings\n",
        NOTE,
        "Settings of `klamm.client`. Write them in a dict by their names, or as keywords with underscores for dots:",
        '`Producer({"linger.ms": 5})` and `Producer(linger_ms=5)` mean the same. Values may be text, as in a',
        "properties file.\n",
        "The keywords are typed: `ProducerSettings`, `ConsumerSettings` and `AdminSettings` in",
        "`klamm.client.settings` are typed dicts.",
    ]
    common = {key.name for key in COMMON}
    lines += ["\n## All clients\n", *_client_table(COMMON)]
    for definition in DEFINITIONS:
        own = [key for key in definition if key.name not in common | definition.ignored.keys()]
        lines += [f"\n## {definition.role.capitalize()}\n", *_client_table(own)]
    lines += [
        "\n## Settings of Java's clients that have no effect\n",
        "They are ignored, with one warning in the log.\n",
        _row(["Setting", "Why"]),
        _row(["---", "---"]),
        *(_row([f"`{name}`", why]) for name, why in sorted(IGNORED.items())),
        "\n## Settings of Java's clients that are refused\n",
        "If they were ignored, the client would behave differently. Every `sasl.*` setting is refused too.\n",
        _row(["Setting", "What to do"]),
        _row(["---", "---"]),
        *(_row([f"`{name}`", f"It {words}."]) for name, words in sorted(REFUSED.items())),
    ]
    return _page(lines)


def _client_table(keys: Iterable[ConfigKey]) -> list[str]:
    titles = ["Setting", "Type", "Default", "Valid values", "Meaning"]
    rows = [_row(titles), _row(["---"] * len(titles))]
    for key in sorted(keys, key=lambda key: key.name):
        kind = "object" if key.type is ConfigType.CLASS else key.type.name.lower()
        rows.append(_row([f"`{key.name}`", kind, _default(key), key.rule.text if key.rule else "", key.doc]))
    return rows


def python_api() -> str:
    """The classes and functions of the Python client."""
    lines = [
        "# Python API\n",
        NOTE,
        "The public names of `klamm.client` and `klamm.testing`. Every client exists twice, with the same methods:",
        "the asyncio one (`AsyncProducer`, `AsyncConsumer`, `AsyncAdmin`) has coroutines where the blocking one waits.",
        "[The guide](../guides/python-client.md) has examples; [settings](client-configs.md) have their own page.",
    ]
    for module, names in API.items():
        for name in names:
            lines += _describe(getattr(module, name), f"{module.__name__}.{name}")
    errors = sorted(
        (
            kind
            for kind in vars(klamm.client.errors).values()
            if isinstance(kind, type) and issubclass(kind, KafkaError)
        ),
        key=lambda kind: kind.__name__,
    )
    lines += ["\n## Errors\n", _row(["Error", "Is a", "Meaning"]), _row(["---", "---", "---"])]
    lines += [_row([f"`{kind.__name__}`", f"`{kind.__base__.__name__}`", _first_line(kind)]) for kind in errors]
    return _page(lines)


API = {
    klamm.client: [
        "Producer",
        "Delivery",
        "Consumer",
        "Admin",
        "read_topic",
        "Record",
        "RecordMetadata",
        "TopicPartition",
        "OffsetAndMetadata",
        "OffsetAndTimestamp",
        "NewTopic",
        "NewPartitions",
    ],
    klamm.testing: ["broker", "cluster", "Broker", "Cluster"],
}
"""What is described, in this order; the asyncio clients have the methods of the blocking ones."""


def _describe(item: object, path: str) -> list[str]:
    """A class with its public methods, or a function."""
    name = path.rpartition(".")[2]
    lines = [f"\n## {name}\n"]
    if not isinstance(item, type):
        return [*lines, _code(name, item), _text(item)]
    lines.append(_text(item))
    fields = getattr(item, "_fields", None) or tuple(getattr(item, "__dataclass_fields__", ()))
    if fields:
        lines.append(f"\nFields: {_codes(fields)}.")
    for member, value in inspect.getmembers(item):
        if member.startswith("_") or member in (fields or ()) or member in ("count", "index"):
            continue
        if isinstance(value, property):
            lines += [f"\n### {name}.{member}\n", _text(value)]
        elif inspect.isfunction(value) and inspect.getdoc(value):
            lines += [f"\n### {name}.{member}\n", _code(member, value), _text(value)]
    return lines


def _code(name: str, function: object) -> str:
    signature = inspect.signature(function)  # type: ignore[arg-type]
    arguments = [argument for argument in signature.parameters.values() if argument.name != "self"]
    signature = signature.replace(parameters=arguments)
    words = str(signature).replace("'", "")
    return f"```python\n{name}{words}\n```\n"


def _text(item: object) -> str:
    """A docstring; what is indented in it is an example."""
    lines, example = [], []
    for line in [*(inspect.getdoc(item) or "").splitlines(), ""]:
        if line.startswith(("with ", "async with ")) or (example and (line.startswith("    ") or not line)):
            example.append(line)
            continue
        if example:
            lines += ["```python", *example, "```"]
            example = []
        lines.append(line)
    if any(example):
        lines += ["```python", *[line for line in example if line], "```"]
    return "\n".join(lines).strip()


def _first_line(item: object) -> str:
    return (inspect.getdoc(item) or "").partition("\n")[0]


def settings_module() -> str:
    """Typed dicts of the settings of clients, for `**settings: Unpack[...]`."""
    lines = [
        '"""The settings of clients as typed dicts, for type checkers and editors.',
        "",
        "Written by docs/generate.py from `klamm.client.config`; change that and run `make docs`.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "from collections.abc import Callable, Sequence",
        "from typing import TYPE_CHECKING, Any, TypedDict",
        "",
        "if TYPE_CHECKING:",
        "    import ssl",
        "",
        "    from klamm.client.errors import RecordError",
        "    from klamm.client.serde import Serializer",
        "",
        "",
        *_typed_dict("CommonSettings", "TypedDict, total=False", COMMON, "What all clients have in common."),
    ]
    common = {key.name for key in COMMON}
    for definition in DEFINITIONS:
        keys = [key for key in definition if key.name not in common | definition.ignored.keys() | DESERIALIZERS]
        title = f"{definition.role.capitalize()}Settings"
        words = f"The settings of {'an' if definition.role == 'admin' else 'a'} {definition.role}."
        if definition.role == "consumer":
            words += " Its deserializers are arguments of their own: they decide what records hold."
        lines += ["", "", *_typed_dict(title, "CommonSettings, total=False", keys, words)]
    return _page(lines)


DESERIALIZERS = {"key.deserializer", "value.deserializer"}
OBJECTS = {
    "ssl.context": "ssl.SSLContext",
    "statistics.callback": "Callable[[dict[str, Any]], object]",
    "sasl.oauth.token.provider": "Callable[[], object] | object",
    "partitioner": "str | Callable[[str, bytes | None, int], int]",
    "key.serializer": "Serializer",
    "value.serializer": "Serializer",
    "on.error": "str | Callable[[RecordError], object]",
}
"""Types of the settings that are not text or numbers."""
TYPES = {
    ConfigType.BOOLEAN: "bool | str",
    ConfigType.INT: "int | str",
    ConfigType.LONG: "int | str",
    ConfigType.SHORT: "int | str",
    ConfigType.DOUBLE: "float | str",
    ConfigType.LIST: "str | Sequence[str]",
    ConfigType.STRING: "str",
    ConfigType.PASSWORD: "str",
}


def _typed_dict(name: str, bases: str, keys: Iterable[ConfigKey], words: str) -> list[str]:
    lines = [f"class {name}({bases}):", f'    """{words}"""', ""]
    for key in keys:
        kind = OBJECTS[key.name] if key.type is ConfigType.CLASS else TYPES[key.type]
        if key.name == "acks":
            kind = "str | int"
        lines += [f"    {key.name.replace('.', '_')}: {kind} | None", *_wrapped(key.doc)]
    return lines


def _wrapped(words: str) -> list[str]:
    """A docstring under a field, in lines that are not too long."""
    lines = textwrap.wrap(f'"""{words}"""', 116)
    return [f"    {line}" for line in lines]


PAGES: dict[str, Callable[[], str]] = {
    "apis.md": apis,
    "broker-configs.md": broker_configs,
    "client-configs.md": client_configs,
    "commands.md": commands,
    "group-configs.md": group_configs,
    "python-api.md": python_api,
    "topic-configs.md": topic_configs,
}


SETTINGS = Path(__file__).parents[1] / "src/klamm/client/settings.py"
"""The one file that is written and not a page."""


def stale_pages() -> list[str]:
    """Names of pages that differ from the code."""
    stale = [f"docs/reference/{name}" for name, page in PAGES.items() if _read(REFERENCE / name) != page()]
    return stale if _read(SETTINGS) == settings_module() else [*stale, "src/klamm/client/settings.py"]


def main(arguments: list[str]) -> int:
    """Write or check all pages."""
    if arguments == ["--check"]:
        stale = stale_pages()
        for name in stale:
            sys.stderr.write(f"{name} is stale; run `make docs`\n")
        return 1 if stale else 0
    REFERENCE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")
    SETTINGS.write_text(settings_module(), encoding="utf-8")
    return 0


def _table(
    first: str, keys: Iterable[ConfigKey], extra: tuple[str, Callable[[ConfigKey], str]] | None = None
) -> list[str]:
    titles = [first, "Type", "Default", "Valid values", *([extra[0]] if extra else []), "In use", "Meaning"]
    rows = [_row(titles), _row(["---"] * len(titles))]
    for key in sorted(keys, key=lambda config: config.name):
        if key.internal:
            continue
        cells = [f"`{key.name}`", key.type.name.lower(), _default(key), key.rule.text if key.rule else ""]
        rows.append(_row([*cells, *([extra[1](key)] if extra else []), "yes" if key.served else "", key.doc]))
    return rows


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(key: ConfigKey) -> str:
    if key.default is REQUIRED:
        return "*required*"
    return f"`{key.default_text}`" if key.default_text else ""


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _helps(command: click.Command, parent: click.Context | None, name: str) -> Iterable[tuple[str, str]]:
    context = click.Context(command, parent=parent, info_name=name, terminal_width=100, **command.context_settings)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            subcommand = command.get_command(context, child)
            if subcommand is not None:
                yield from _helps(subcommand, context, child)


def _page(lines: Iterable[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
