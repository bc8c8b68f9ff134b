"""Writes the reference pages from the code they describe; `--check` only tells whether they are up to date.

python docs/generate.py            write docs/reference/*.md
python docs/generate.py --check    exit with 1 when a page is stale
"""  # noqa: INP001 - a script, not a package

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from klamm.cli.exits import MEANINGS
from klamm.cli.main import cli
from klamm.model.broker_configs import BROKER_CONFIGS, FAMILIES
from klamm.model.config import REQUIRED, ConfigKey
from klamm.model.group_configs import CLIENT_METRICS_CONFIGS, GROUP_CONFIGS
from klamm.model.topic_configs import TOPIC_CONFIGS, TOPIC_SYNONYMS
from klamm.server.routes import routes

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
        "What a node tells ApiVersions, and so what clients may send. An API is listed when it is whole; clients do",
        "without the others. Produce 0-2 are advertised for the sake of older clients and refused, as Kafka does.\n",
        _row(titles),
        _row(["---"] * len(titles)),
    ]
    for key in sorted(broker.keys() | controller.keys()):
        api = (broker.get(key) or controller[key]).api
        low, high = api.advertised
        cells = [str(key), api.name, f"{low}-{high}" if low != high else str(low)]
        lines.append(_row([*cells, *("yes" if key in each else "" for each in (broker, controller))]))
    return _page(lines)


PAGES: dict[str, Callable[[], str]] = {
    "apis.md": apis,
    "broker-configs.md": broker_configs,
    "commands.md": commands,
    "group-configs.md": group_configs,
    "topic-configs.md": topic_configs,
}


def stale_pages() -> list[str]:
    """Names of pages that do not say what the code says."""
    return [name for name, page in PAGES.items() if _read(REFERENCE / name) != page()]


def main(arguments: list[str]) -> int:
    """Write or check all pages."""
    if arguments == ["--check"]:
        stale = stale_pages()
        for name in stale:
            sys.stderr.write(f"docs/reference/{name} is stale; run `make docs`\n")
        return 1 if stale else 0
    REFERENCE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")
    return 0


def _table(
    first: str, keys: Iterable[ConfigKey], extra: tuple[str, Callable[[ConfigKey], str]] | None = None
) -> list[str]:
    titles = [first, "Type", "Default", "Valid values", *([extra[0]] if extra else []), "In use", "Meaning"]
    rows = [_row(titles), _row(["---"] * len(titles))]
    for key in sorted(keys, key=lambda each: each.name):
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
            found = command.get_command(context, child)
            if found is not None:
                yield from _helps(found, context, child)


def _page(lines: Iterable[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
