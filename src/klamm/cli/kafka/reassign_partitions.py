"""kafka-reassign-partitions: propose, start, watch and cancel moves of replicas."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from klamm.cli.kafka.message_json import NotThatJson, list_objects
from klamm.cli.kafka.options import BOOTSTRAP, COMMAND_CONFIG, Flag, Flags, Parsed, Usage, one_action
from klamm.cli.kafka.script import ToolFailed, connect, error_text, integers, java_error, read_flags, run_check
from klamm.model.errors import KlammError

if TYPE_CHECKING:
    from klamm.client.blocking_cluster import BlockingCluster

ACTIONS: Final = ("generate", "execute", "verify", "cancel", "list")
FLAGS: Final = Flags(
    "kafka-reassign-partitions",
    BOOTSTRAP,
    Flag("bootstrap-controller", "Controllers to begin with.", "addresses"),
    COMMAND_CONFIG,
    Flag("generate", "Propose where partitions could lie."),
    Flag("execute", "Start to move partitions."),
    Flag("verify", "Show the state of a move."),
    Flag("cancel", "Cancel a move."),
    Flag("list", "List partitions that are moving."),
    Flag("reassignment-json-file", "The plan to execute, verify or cancel.", "file"),
    Flag("topics-to-move-json-file", "The topics to generate a plan for.", "file"),
    Flag("broker-list", "The brokers a generated plan uses: 1,2,3", "numbers"),
    Flag("disable-rack-aware", "Generate without regard to racks."),
    Flag("throttle", "Bytes per second a move may use between brokers.", "number"),
    Flag("replica-alter-log-dirs-throttle", "Bytes per second a move between log dirs may use.", "number"),
    Flag("timeout", "Milliseconds to wait for a move between log dirs to begin.", "ms"),
    Flag("additional", "Execute beside moves that are under way."),
    Flag("preserve-throttles", "Leave throttles as they are."),
    Flag("disallow-replication-factor-change", "Refuse a plan that changes how many replicas there are."),
)
ReplicaAssignment = dict[tuple[str, int], list[int]]
"""The replicas of each partition."""
_SENTENCE = "Command must include exactly one action: --generate, --execute, --verify, --cancel, --list"
_RATES = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
_LISTS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


_BUSY: Final = (
    "Cannot execute because there is an existing partition assignment.  Use --additional to override this and create a"
    " new partition assignment in addition to the existing one. The --additional flag can also be used to change the"
    " throttle by resubmitting the current reassignment."
)


def main(args: list[str]) -> int:
    """Run kafka-reassign-partitions."""
    parsed = read_flags(FLAGS, args)
    if parsed is None:
        return 0
    action = ""

    def check() -> None:
        nonlocal action
        action = one_action(parsed, ACTIONS, _SENTENCE)
        if not (parsed.has("bootstrap-server") or parsed.has("bootstrap-controller")):
            raise Usage("Please specify --bootstrap-server")
        if parsed.has("bootstrap-server") and parsed.has("bootstrap-controller"):
            raise Usage("Please don't specify both --bootstrap-server and --bootstrap-controller")
        # Only these two need nothing but the controller; the others describe topics and log dirs.
        if parsed.has("bootstrap-controller") and action not in ("list", "cancel"):
            raise Usage(f'Option "[bootstrap-controller]" can\'t be used with action "[{action}]"')
        needs = {"generate": ("topics-to-move-json-file", "broker-list"), "list": ()}
        for name in needs.get(action, ("reassignment-json-file",)):
            if not parsed.has(name):
                raise Usage(f'Missing required argument "[{name}]"')

    run_check(FLAGS, check)
    try:
        with connect(parsed) as cluster:
            _ACTIONS[action](cluster, parsed)
    except ToolFailed as failed:
        raise ToolFailed(str(failed), out=True) from None  # as Kafka's, beside the plan that was printed before
    except KlammError as error:
        raise ToolFailed(f"Error: {java_error(error)}", out=True) from None
    return 0


def _read(path: str, key: str) -> list[dict[str, Any]]:
    try:
        with open(path, encoding="utf-8") as file:
            return list_objects(file.read(), key)
    except OSError as error:
        raise ToolFailed(f"Error: {path}: {error.strerror}") from None
    except UnicodeError:
        raise ToolFailed(f"Error: {path} is not UTF-8") from None
    except NotThatJson as error:
        raise ToolFailed(f"Error: {error}") from None


def _plan(parsed: Parsed) -> ReplicaAssignment:
    plan: ReplicaAssignment = {}
    for entry in _read(parsed.text("reassignment-json-file"), "partitions"):
        try:
            place = str(entry["topic"]), int(entry["partition"])
            replicas = [int(broker) for broker in entry["replicas"]]
        except (KeyError, TypeError, ValueError):
            raise ToolFailed("Error: every partition needs topic, partition and replicas") from None
        if place in plan:
            raise ToolFailed(
                f"Error: Partition reassignment contains duplicate topic partitions: {place[0]}-{place[1]}"
            )
        if not replicas or len(set(replicas)) != len(replicas):
            raise ToolFailed(
                f"Error: Partition replica lists may not contain duplicate entries or be empty: {place[0]}-{place[1]}"
            )
        plan[place] = replicas
    if not plan:
        raise ToolFailed("Error: Partition reassignment list cannot be empty")
    return plan


def _current(cluster: BlockingCluster, topics: list[str]) -> dict[tuple[str, int], list[int]]:
    from klamm.cli.queries.topics import find_topics

    return {
        (topic.name, p.partition): list(p.replicas)
        for topic in find_topics(cluster, sorted(topics))
        for p in topic.partitions
    }


def _folders(cluster: BlockingCluster) -> dict[tuple[int, str, int], str]:
    from klamm.cli.queries.cluster import describe_log_dirs

    return {
        (broker_id, *partition): log_dir.path
        for broker_id, log_dir in describe_log_dirs(cluster)
        for partition, replica in log_dir.replicas.items()
        if not replica.is_future
    }


def _json(plan: ReplicaAssignment, folders: dict[tuple[int, str, int], str] | None) -> str:
    partitions = [
        {
            "topic": topic,
            "partition": index,
            "replicas": replicas,
            "log_dirs": ["any" if folders is None else folders.get((b, topic, index), "any") for b in replicas],
        }
        for (topic, index), replicas in sorted(plan.items())
    ]
    return json.dumps({"version": 1, "partitions": partitions}, separators=(",", ":"))


def _generate(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.cli.queries.cluster import describe_cluster

    try:
        topics = [str(entry["topic"]) for entry in _read(parsed.text("topics-to-move-json-file"), "topics")]
    except KeyError:
        raise ToolFailed('Error: No such field exists: "topic"') from None
    current = _current(cluster, topics)
    alive = {broker.id for broker in describe_cluster(cluster).brokers}
    wanted = integers(parsed.text("broker-list"), "Error: ")
    if len(set(wanted)) != len(wanted):
        raise ToolFailed(f"Error: Broker list contains duplicate entries: {parsed.text('broker-list')}")
    brokers = sorted(set(wanted) & alive) or sorted(wanted)
    proposed: ReplicaAssignment = {}
    for number, (place, replicas) in enumerate(sorted(current.items())):
        if len(replicas) > len(brokers):
            raise ToolFailed(
                f"Error: replication factor: {len(replicas)} larger than available brokers: {len(brokers)}"
            )
        # Round robin from another broker each time, so that leaders spread too; racks are not considered.
        proposed[place] = [brokers[(number + step) % len(brokers)] for step in range(len(replicas))]
    print(f"Current partition replica assignment\n{_json(current, _folders(cluster))}\n")
    print(f"Proposed partition reassignment configuration\n{_json(proposed, None)}")


def _execute(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.cli.queries.replicas import list_reassignments, reassign

    plan = _plan(parsed)
    moves = list_reassignments(cluster)
    if moves and not parsed.has("additional"):
        raise ToolFailed(_BUSY)
    current = _current(cluster, sorted({topic for topic, _ in plan}))
    missing = [place for place in plan if place not in current]
    if missing:
        raise ToolFailed(f"Error: Partition {missing[0][0]}-{missing[0][1]} does not exist")
    known = set(cluster.broker_ids)
    strange = sorted({broker for replicas in plan.values() for broker in replicas} - known)
    if strange:
        raise ToolFailed(f"Error: Unknown broker id {strange[0]}")
    before = {place: current[place] for place in plan}
    # Printed before anything changes: it is the only copy of the old assignment.
    print(f"Current partition replica assignment\n\n{_json(before, _folders(cluster))}\n")
    print("Save this to use as the --reassignment-json-file option during rollback")
    throttle = parsed.integer("throttle", -1, bits=64)
    if throttle is not None and throttle >= 0:
        _throttle(cluster, plan, current, throttle)
        print(
            "Warning: You must run --verify periodically, until the reassignment completes, to ensure the throttle is"
            " removed."
        )
        print(f"The inter-broker throttle limit was set to {throttle} B/s")
    failed = {place: result for place, result in reassign(cluster, plan).items() if result[0]}
    if failed:
        lines = [f"{topic}-{index}: {error_text(code, message)}" for (topic, index), (code, message) in failed.items()]
        raise ToolFailed("Error reassigning partition(s):\n" + "\n".join(lines))
    plural = "s" if len(plan) > 1 else ""
    names = ",".join(f"{topic}-{index}" for topic, index in sorted(plan))
    print(f"Successfully started partition reassignment{plural} for {names}")


def _throttle(cluster: BlockingCluster, plan: ReplicaAssignment, current: ReplicaAssignment, rate: int) -> None:
    from klamm.cli.queries import configs
    from klamm.client.admin.config_types import AlterOp

    brokers = sorted({b for place in plan for b in (*plan[place], *current[place])})
    for broker in brokers:
        operations: list[configs.AlterConfigOp] = [(AlterOp.SET, name, str(rate)) for name in _RATES[:2]]
        configs.alter(cluster, configs.BROKER, str(broker), operations)
    for topic in sorted({name for name, _ in plan}):
        # Any current replica may lead meanwhile; only new replicas are throttled as followers (KIP-73).
        leaders = [f"{i}:{b}" for (name, i) in sorted(plan) if name == topic for b in current[name, i]]
        followers = [
            f"{i}:{b}"
            for (name, i) in sorted(plan)
            if name == topic
            for b in plan[name, i]
            if b not in current[name, i]
        ]
        lists: list[configs.AlterConfigOp] = [
            (AlterOp.SET, key, ",".join(throttled)) for key, throttled in zip(_LISTS, (leaders, followers), strict=True)
        ]
        configs.alter(cluster, configs.TOPIC, topic, lists)


def _clear(cluster: BlockingCluster, plan: ReplicaAssignment) -> None:
    from klamm.cli.queries import configs
    from klamm.client.admin.config_types import AlterOp

    brokers = [str(broker) for broker in cluster.broker_ids]
    print(f"Clearing broker-level throttles on broker{'s' if len(brokers) > 1 else ''} {','.join(brokers)}")
    for broker in brokers:
        configs.alter(cluster, configs.BROKER, broker, [(AlterOp.DELETE, name, None) for name in _RATES])
    topics = sorted({name for name, _ in plan})
    print(f"Clearing topic-level throttles on topic{'s' if len(topics) > 1 else ''} {','.join(topics)}")
    for topic in topics:
        configs.alter(cluster, configs.TOPIC, topic, [(AlterOp.DELETE, name, None) for name in _LISTS])


def _verify(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.cli.queries.replicas import list_reassignments

    plan = _plan(parsed)
    moves = list_reassignments(cluster, plan)
    current = _current(cluster, sorted({topic for topic, _ in plan}))
    print("Status of partition reassignment:")
    for (topic, index), replicas in sorted(plan.items()):
        place = f"{topic}-{index}"
        if (topic, index) in moves:
            print(f"Reassignment of partition {place} is still in progress.")
        elif current.get((topic, index)) == replicas:
            print(f"Reassignment of partition {place} is completed.")
        else:
            have = ",".join(map(str, current.get((topic, index), [])))
            print(
                f"There is no active reassignment of partition {place}, but replica set is {have} rather than"
                f" {','.join(map(str, replicas))}."
            )
    print()
    # Throttles are removed by --verify, once nothing moves any more: the documented way to end a reassignment.
    if not moves and not parsed.has("preserve-throttles"):
        _clear(cluster, plan)


def _cancel(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.cli.queries.replicas import list_reassignments, reassign

    plan = _plan(parsed)
    active = [place for place in sorted(plan) if place in list_reassignments(cluster, plan)]
    if active:
        failed = {place: result for place, result in reassign(cluster, dict.fromkeys(active)).items() if result[0]}
        if failed:
            place, (code, message) = next(iter(failed.items()))
            raise ToolFailed(
                f"Error cancelling partition reassignment of {place[0]}-{place[1]}: {error_text(code, message)}"
            )
        plural = "s" if len(active) > 1 else ""
        names = ",".join(f"{topic}-{index}" for topic, index in active)
        print(f"Successfully cancelled partition reassignment{plural} for: {names}")
    else:
        print("None of the specified partition reassignments are active.")
    # Kafka's tool prints this without a line end, and moves between log dirs are not cancelled here.
    print("None of the specified partition moves are active.", end="")
    if not parsed.has("preserve-throttles"):
        _clear(cluster, plan)


def _list(cluster: BlockingCluster, _: Parsed) -> None:
    from klamm.cli.queries.replicas import list_reassignments

    moves = list_reassignments(cluster)
    if not moves:
        print("No partition reassignments found.")
        return
    print("Current partition reassignments:")
    for (topic, index), move in sorted(moves.items()):
        adding = f" adding replicas: {','.join(map(str, move.adding))}." if move.adding else ""
        removing = f" removing replicas: {','.join(map(str, move.removing))}." if move.removing else ""
        print(f"{topic}-{index}: replicas: {','.join(map(str, move.replicas))}.{adding}{removing}")


_ACTIONS: Final = {"generate": _generate, "execute": _execute, "verify": _verify, "cancel": _cancel, "list": _list}
