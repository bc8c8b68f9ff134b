"""kafka-consumer-groups: list, describe, reset and delete groups."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from klamm.cli.kafka import group_tables
from klamm.cli.kafka.options import BOOTSTRAP, COMMAND_CONFIG, Flag, Flags, Parsed, Usage, one_action
from klamm.cli.kafka.script import ToolFailed, connect, error_text, java_error, read_flags, run_check
from klamm.model.errors import ErrorCode, KlammError

if TYPE_CHECKING:
    from klamm.client.blocking_cluster import BlockingCluster

ACTIONS: Final = ("list", "describe", "delete", "reset-offsets", "delete-offsets", "validate-regex")
FLAGS: Final = Flags(
    "kafka-consumer-groups",
    BOOTSTRAP,
    COMMAND_CONFIG,
    Flag("list", "List groups."),
    Flag("describe", "Show a group's offsets, members or state."),
    Flag("delete", "Delete groups."),
    Flag("reset-offsets", "Move the offsets of groups without members."),
    Flag("delete-offsets", "Delete the offsets of topics."),
    Flag("validate-regex", "Check a regular expression for subscribing.", "pattern"),
    Flag("group", "The group; may be written several times.", "group"),
    Flag("all-groups", "Every group."),
    Flag("topic", "A topic, or some of its partitions: t:0,1", "topic"),
    Flag("all-topics", "Every topic the group has."),
    Flag("state", "With --list: only these states; with --describe: the state.", "states", optional=True),
    Flag("type", "With --list: only these types.", "types", optional=True),
    Flag("members", "With --describe: the members."),
    Flag("offsets", "With --describe: the offsets, as without it."),
    Flag("verbose", "With --describe: more columns."),
    Flag("timeout", "Longest wait, in milliseconds.", "ms"),
    Flag("dry-run", "Only show the new offsets."),
    Flag("execute", "Move the offsets."),
    Flag("export", "Print the new offsets as CSV."),
    Flag("to-earliest", "To the first offset."),
    Flag("to-latest", "To the end."),
    Flag("to-current", "To where the group is."),
    Flag("to-offset", "To an offset.", "offset"),
    Flag("to-datetime", "To a time: 2026-05-01T12:00:00.000", "time"),
    Flag("by-duration", "Back by a duration: PT2H", "duration"),
    Flag("shift-by", "By so many, forward or (negative) back.", "number"),
    Flag("from-file", "To the offsets of a CSV file.", "file"),
)
STATES: Final = (
    *("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty"),
    *("Assigning", "Reconciling"),
)
TYPES: Final = ("Consumer", "Classic")
SCENARIOS: Final = (
    *("shift-by", "from-file", "to-datetime", "by-duration"),
    *("to-latest", "to-current", "to-earliest", "to-offset"),
)
_NO_EXECUTE = (
    "WARN: No action will be performed as the --execute option is missing. In version 5.0, this command will require"
    " either --dry-run or --execute to be specified. You should add the --dry-run option explicitly if you are"
    " scripting this command and want to keep the current default behavior without prompting."
)


def main(args: list[str]) -> int:
    """Run kafka-consumer-groups. As Kafka's tool, it exits 0 when the cluster refuses, and prints the error."""
    parsed = read_flags(FLAGS, args)
    if parsed is None:
        return 0
    action = ""

    def check() -> None:
        nonlocal action
        sentence = f"Command must include exactly one action: {', '.join(f'--{name}' for name in ACTIONS)}"
        action = one_action(parsed, ACTIONS, sentence)
        if action != "validate-regex" and not parsed.has("bootstrap-server"):
            raise Usage('Missing required argument "[bootstrap-server]"')
        _check(action, parsed)

    run_check(FLAGS, check)
    if action == "validate-regex":
        return _validate(parsed.text("validate-regex"))
    with connect(parsed) as cluster:
        try:
            _numbers(parsed)
            _ACTIONS[action](cluster, parsed)
        except KlammError as error:
            print(f"\nError: Executing consumer group command failed due to {java_error(error)}")
        except Usage as usage:
            if usage.flags:
                raise ToolFailed(f"{usage}\n{FLAGS.usage()}") from None
            print(f"\nError: Executing consumer group command failed due to {usage}")
    return 0


def _numbers(parsed: Parsed) -> None:
    """Usage for flags that should be numbers; Kafka reads them after it has connected, and exits 0."""
    for name in ("timeout", "to-offset", "shift-by"):
        parsed.integer(name, bits=64)


def _check(action: str, parsed: Parsed) -> None:
    groups = parsed.has("group"), parsed.has("all-groups")
    if parsed.has("list") and parsed.has("group"):
        raise Usage('Option "[group]" can\'t be used with option "[list]"')
    if all(groups):
        raise Usage('Option "[group]" can\'t be used with option "[all-groups]"')
    if action == "delete" and parsed.has("topic"):
        raise Usage("The consumer does not support topic-specific offset deletion from a consumer group.")
    if action == "list":
        _words(parsed, "state", STATES)
        _words(parsed, "type", TYPES)
    if action == "describe" and sum(parsed.has(name) for name in ("members", "offsets", "state")) > 1:
        raise Usage("Option [describe] takes at most one of these options: [members], [offsets], [state]")
    if action == "describe" and parsed.get("state") is not None:
        raise Usage("Option [describe] does not take a value for [state]")
    if action == "describe" and not any(groups):
        raise Usage("Option [describe] takes one of these options: [group], [all-groups]")
    if action in ("delete", "reset-offsets") and not any(groups):
        raise Usage(f"Option [{action}] takes one of these options: [group], [all-groups]")
    if action == "delete-offsets" and not (parsed.has("group") and parsed.has("topic")):
        raise Usage("Option [delete-offsets] takes the following options: [group], [topic]")
    if action == "reset-offsets":
        if parsed.has("dry-run") and parsed.has("execute"):
            raise Usage("Option [reset-offsets] only accepts one of [dry-run], [execute]")
        if not parsed.has("dry-run") and not parsed.has("execute"):
            import sys

            print(_NO_EXECUTE, file=sys.stderr)
        if sum(parsed.has(name) for name in SCENARIOS) != 1:
            listed = ", ".join(f"[{name}]" for name in SCENARIOS)
            raise ToolFailed(
                f"Option '[reset-offsets]' requires one of the following scenarios: [{listed}]\n{FLAGS.usage()}"
            )
        if not (parsed.has("topic") or parsed.has("all-topics") or parsed.has("from-file")):
            raise Usage("One of the reset scopes should be defined: --all-topics, --topic.")


def _validate(pattern: str) -> int:
    try:
        re.compile(pattern)
    except re.error as error:
        print(f"The regular expression `{pattern}` is invalid: {error}")
    else:
        print(f"The regular expression `{pattern}` is valid.")
    return 0


def _list(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.cli.queries.groups import list_groups

    states = _words(parsed, "state", STATES)
    types = _words(parsed, "type", TYPES)
    groups = [
        group
        for group in list_groups(cluster, states, types)
        # Connect and other protocols have groups too; an empty type is a simple consumer that only commits.
        if group.protocol_type in ("", "consumer") and group.type.lower() in ("classic", "consumer")
    ]
    if not parsed.has("state") and not parsed.has("type"):
        for group in groups:
            print(group.group_id)
        return
    # Widths as Java formats them; scripts cut these columns.
    width = max([15, *(len(group.group_id) for group in groups)]) + 10
    heads = ["GROUP"] + (["TYPE"] if parsed.has("type") else []) + (["STATE"] if parsed.has("state") else [])
    cells = [
        [group.group_id]
        + ([group.type.capitalize()] if parsed.has("type") else [])
        + ([group.state] if parsed.has("state") else [])
        for group in groups
    ]
    for line in (heads, *cells):
        print(" ".join([f"{line[0]:<{width}}", *(f"{cell:<20}" for cell in line[1:])]))


def _words(parsed: Parsed, name: str, known: Sequence[str]) -> list[str]:
    """The listed words in Kafka's spelling; any case is accepted."""
    text = parsed.text(name)
    if not text:
        return []
    words = [
        next((word_known for word_known in known if word_known.lower() == word.strip().lower()), "")
        for word in text.split(",")
    ]
    if "" in words:
        kind = "types" if name == "type" else name
        raise Usage(f"Invalid {kind} list '{text}'. Valid {name}s are: {', '.join(known)}")
    return words


def _names(cluster: BlockingCluster, parsed: Parsed) -> list[str]:
    if parsed.has("all-groups"):
        from klamm.cli.queries.groups import list_groups

        return [group.group_id for group in list_groups(cluster)]
    return parsed.all("group")


def _describe(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.cli.queries.groups import committed_offsets, describe_group

    for name in _names(cluster, parsed):
        group = describe_group(cluster, name)
        verbose = parsed.has("verbose")
        group_tables.print_state_notice(group)
        if parsed.has("members"):
            print(group_tables.members(group, verbose=verbose))
        elif parsed.has("state"):
            print(group_tables.state(group, verbose=verbose))
        else:
            print(group_tables.offsets(cluster, group, committed_offsets(cluster, name), verbose=verbose))


def _delete(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.cli.queries.groups import delete_groups

    names = _names(cluster, parsed)
    codes = delete_groups(cluster, names)
    failed = {name: code for name, code in codes.items() if code}
    done = [name for name in names if name not in failed]
    if not failed:
        listed = ", ".join(f"'{name}'" for name in names)
        print(f"Deletion of requested consumer groups ({listed}) was successful.")
        return
    print("\nError: Deletion of some consumer groups failed:")
    for name, code in failed.items():
        print(f"* Group '{name}' could not be deleted due to: {error_text(code)}")
    if done:
        print("\nThese consumer groups were deleted successfully: " + ", ".join(f"'{name}'" for name in done))


def _reset(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.cli.kafka.group_offsets import new_offsets
    from klamm.cli.queries.groups import commit_offsets

    moved: dict[str, dict[tuple[str, int], int]] = {}
    for name in _names(cluster, parsed):
        goals = new_offsets(cluster, parsed, name)
        # The group is active; that was printed, and the next group is tried.
        if goals is None:
            continue
        if parsed.has("execute"):
            commit_offsets(cluster, name, goals)
        moved[name] = goals
    if parsed.has("export"):
        # The CSV has the group only when there are several, as --from-file reads both forms.
        several = len(moved) > 1
        for name, goals in moved.items():
            for (topic, partition), offset in sorted(goals.items()):
                print(f"{name},{topic},{partition},{offset}" if several else f"{topic},{partition},{offset}")
        print()
        return
    rows: list[list[Any]] = [
        [name, topic, partition, offset]
        for name, goals in moved.items()
        for (topic, partition), offset in sorted(goals.items())
    ]
    print(group_tables.reset(rows))


def _delete_offsets(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.cli.kafka.group_offsets import partitions
    from klamm.cli.queries.groups import delete_offsets

    name = parsed.text("group")
    places = partitions(cluster, parsed.all("topic"), missing_ok=True)
    code, results = delete_offsets(cluster, name, places)
    if code:
        # On standard output, as all errors of this tool.
        print(f"\nError: {_REASONS.get(code, error_text(code))}".replace("GROUP", name))
        return
    if any(results.values()):
        print("\nError: Encountered some partition-level error, see the follow-up details:\n")
    else:
        print(f"Request succeeded for deleting offsets from group {name}.\n")
    width = max([15, *(len(topic) for topic, _ in results)])
    print(f"{'TOPIC':<{width}} {'PARTITION':<10} {'STATUS':<15}")
    for (topic, partition), result in sorted(results.items()):
        status = f"Error: {error_text(result)}" if result else "Successful"
        print(f"{topic:<{width}} {partition if partition >= 0 else 'Not Provided':<10} {status:<15}")


_REASONS: Final = {
    ErrorCode.GROUP_ID_NOT_FOUND: "'GROUP' is not a valid consumer group id",
}
_ACTIONS: Final = {
    "list": _list,
    "describe": _describe,
    "delete": _delete,
    "reset-offsets": _reset,
    "delete-offsets": _delete_offsets,
}
