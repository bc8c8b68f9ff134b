"""kafka-leader-election: elect the preferred replica, or with unclean any that is alive."""

from __future__ import annotations

import functools
from typing import Final

from klamm.cli.kafka.message_json import NotThatJson, list_objects
from klamm.cli.kafka.options import BOOTSTRAP, Flag, Flags, Parsed, Usage, require
from klamm.cli.kafka.script import ToolFailed, connect, error_text, read_flags, run_check
from klamm.model.errors import ErrorCode

FLAGS: Final = Flags(
    "kafka-leader-election",
    BOOTSTRAP,
    Flag("admin.config", "A properties file with client settings.", "file"),
    Flag("command-config", "A properties file with client settings.", "file"),
    Flag("election-type", "preferred or unclean (required).", "type"),
    Flag("topic", "The topic; needs --partition.", "topic"),
    Flag("partition", "The partition; needs --topic.", "number"),
    Flag("all-topic-partitions", "Every partition that needs an election."),
    Flag("path-to-json-file", 'A file: {"partitions": [{"topic": "t", "partition": 0}]}', "file"),
)
_SCOPES = ("topic", "all-topic-partitions", "path-to-json-file")
Places = list[tuple[str, int]]


def main(args: list[str]) -> int:
    """Run kafka-leader-election."""
    parsed = read_flags(FLAGS, args)
    if parsed is None:
        return 0
    run_check(FLAGS, functools.partial(_check, parsed))
    kind = parsed.text("election-type").upper()
    if kind not in ("PREFERRED", "UNCLEAN"):
        raise Usage(f"Cannot parse argument '{parsed.text('election-type')}' of option election-type", flags=False)
    from klamm.cli.queries.replicas import elect_leaders
    from klamm.client.admin.replica_types import ElectionType

    places = _places(parsed)
    with connect(parsed, "admin.config") as cluster:
        results = elect_leaders(cluster, ElectionType[kind], places)
    done: list[tuple[str, int]] = []
    needless: list[tuple[str, int]] = []
    failed = []
    for place, (code, message) in results.items():
        if not code:
            done.append(place)
        elif code == ErrorCode.ELECTION_NOT_NEEDED:
            needless.append(place)
        else:
            failed.append((place, code, message))
    if done:
        print(f"Successfully completed leader election ({kind}) for partitions {_names(done)}")
    if needless:
        print(f"Valid replica already elected for partitions {_names(needless)}")
    for (topic, partition), code, message in failed:
        print(
            f"Error completing leader election ({kind}) for partition: {topic}-{partition}: {error_text(code, message)}"
        )
    if failed:
        raise ToolFailed(f"{len(failed)} replica(s) could not be elected")
    return 0


def _names(places: Places) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in places)


def _check(parsed: Parsed) -> None:
    require(parsed, "bootstrap-server", "election-type")
    if sum(parsed.has(scope) for scope in _SCOPES) != 1:
        raise Usage(f"One and only one of the following options is required: {', '.join(_SCOPES)}", flags=False)
    if parsed.has("topic") and not parsed.has("partition"):
        raise Usage("Missing required option(s): partition", flags=False)
    if parsed.has("partition") and not parsed.has("topic"):
        raise Usage("Option partition is only allowed if topic is used", flags=False)


def _places(parsed: Parsed) -> Places | None:
    if parsed.has("all-topic-partitions"):
        # None elects all partitions that need it, on the controller.
        return None
    if parsed.has("topic"):
        return [(parsed.text("topic"), parsed.integer("partition") or 0)]
    with open(parsed.text("path-to-json-file"), encoding="utf-8") as file:
        try:
            return [(str(entry["topic"]), int(entry["partition"])) for entry in list_objects(file.read(), "partitions")]
        except NotThatJson as error:
            raise ToolFailed(str(error)) from None
        except (ValueError, KeyError, TypeError):
            raise ToolFailed('Replica election data is missing "partitions" field') from None
