"""The loads of the coordinators: rebalances, commits, transactions, many groups, and a start with a million offsets."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import coordinator_plans as plans
from benchmarks import loaders
from benchmarks.loads import LIMIT_S, Bench, Load, Reach, Sample
from benchmarks.machine import cpu_seconds, rss_mb
from klamm.client.blocking_cluster import BlockingConnection, ClusterUnreachable
from klamm.client.core.routing import GROUP_COORDINATOR
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic

COMMITTERS = 8
PRODUCERS = 8
OFFSET_PARTITIONS = 100
HEARTBEATERS = 16


def load(bench: Bench, mode: str, plan: bytes, *arguments: object, port: int | None = None) -> dict[str, float]:
    """Run the loader on a plan."""
    with tempfile.NamedTemporaryFile(dir=bench.folder) as file:
        file.write(plan)
        file.flush()
        command = (mode, port or bench.broker.port, file.name, *arguments, LIMIT_S)
        return loaders.coordinators(*command, timeout_s=LIMIT_S)


def rebalance(members: int, rounds: float) -> Callable[[Bench], Sample]:
    """All members join anew and get their share: from the first JoinGroup to the last answer to SyncGroup."""

    def run(bench: Bench) -> Sample:
        group = plans.form_group(bench.broker.port, f"rebalance-{members}-{time.monotonic_ns()}", members)
        plan = plans.rebalance_plan(group)
        sample: Sample = {}
        with bench.measured(sample):
            result = load(bench, "rebalance", plan, max(4, bench.count(rounds)))
        plans.leave(bench.broker.port, group)
        cpu_ms = sample["cpu_s"] / result["rounds"] * 1e3
        return {**sample, "p50 ms": result["p50_ms"], "max ms": result["max_ms"], "CPU ms/rebalance": cpu_ms}

    return run


def commits(partitions: int, requests: float) -> Callable[[Bench], Sample]:
    """Commits of groups without members, a group for each connection."""

    def run(bench: Bench) -> Sample:
        # A name of its own: librdkafka keeps the partition count of a topic that was deleted and created again.
        topic = bench.fresh_topic(f"commits-{partitions}", partitions)
        frames = [[plans.commit(f"commits-{i}", topic, range(partitions))] for i in range(COMMITTERS)]
        await_group(bench.broker.port, topic, "commits-0")
        sample: Sample = {}
        with bench.measured(sample):
            result = load(
                *(bench, "pump", plans.lanes(frames), COMMITTERS, 5, bench.count(requests)),
                plans.commit_error_at(topic),
            )
        return _rates(sample, result)

    return run


def transactions(partitions: int, count: float) -> Callable[[Bench], Sample]:
    """Transactions of version 2 by some producers at once: Produce, EndTxn, with the new epoch from the start."""

    def run(bench: Bench) -> Sample:
        topic = bench.fresh_topic(f"transactions-{partitions}", partitions)
        plan = plans.transactions_plan(bench.broker.port, topic, PRODUCERS, partitions)
        sample: Sample = {}
        with bench.measured(sample):
            result = load(bench, "transactions", plan, bench.count(count))
        done = result["transactions"]
        sample["transactions/s"] = done / result["seconds"]
        sample["CPU us/transaction"] = sample["cpu_s"] / done * 1e6
        sample["retries"] = result["retries"] / done
        return sample

    return run


def many_groups(bench: Bench) -> Sample:
    """Five thousand groups of one member: form them, then answer their heartbeats."""
    count = max(HEARTBEATERS, bench.count(5000))
    connection = BlockingConnection("127.0.0.1", bench.broker.port, timeout_s=30.0)
    stamp = time.monotonic_ns()
    plans.form_group_of_one(connection, f"first-{stamp}")
    before, started = cpu_seconds(bench.broker.pid), time.monotonic()
    groups = [plans.form_group_of_one(connection, f"many-{stamp}-{i}") for i in range(count)]
    formed_s = time.monotonic() - started
    forming_cpu = cpu_seconds(bench.broker.pid) - before
    frames = [[plans.heartbeat(group) for group in groups[i::HEARTBEATERS]] for i in range(HEARTBEATERS)]
    sample: Sample = {"ms/group": formed_s / count * 1e3, "CPU ms/group": forming_cpu / count * 1e3}
    with bench.measured(sample):
        what = (HEARTBEATERS, 5, bench.count(100_000), plans.HEARTBEAT_ERROR_AT)
        result = load(bench, "pump", plans.lanes(frames), *what)
    for group in groups:
        plans.ask_until_ready(connection, LeaveGroupRequest(group_id=group.name, members=_members(group)), 3)
    connection.close()
    return _rates(sample, result)


def million_offsets(bench: Bench) -> Sample:
    """A separate node: commit, stop, start again, and fetch until both partitions of the offsets are loaded."""
    groups = max(20, bench.count(10_000))
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        node = bench.kind(Path(folder), heap_mb=1024)
        node.start()
        try:
            admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
            admin.create_topics([NewTopic("many", OFFSET_PARTITIONS, 1)])["many"].result(60)
            names = [f"group-{i}" for i in range(groups)]
            await_group(node.port, "many", names[0])
            frames = [[plans.commit(name, "many", range(OFFSET_PARTITIONS)) for name in names[i::4]] for i in range(4)]
            what = (4, 4, groups, plans.commit_error_at("many"))
            written = load(bench, "pump", plans.lanes(frames), *what, port=node.port)
            node.stop()
            bench.cache.fill()
            started = time.monotonic()
            node.spawn()
            for name in names[:20]:  # some of them lie in each partition
                await_group(node.port, "many", name, expect=1)
            loaded_s = time.monotonic() - started
            sample = {"seconds": loaded_s, "CPU s": cpu_seconds(node.pid), "RSS MB": rss_mb(node.pid)}
            sample["offsets/s"] = groups * OFFSET_PARTITIONS / written["seconds"]
            return sample
        finally:
            node.close()


def await_group(port: int, topic: str, group: str, *, expect: int | None = None) -> None:
    """Ask for the offset of a group until its coordinator answers; what it must be, where that is known."""
    request = OffsetFetchRequest(
        group_id=group, topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[0])], require_stable=True
    )
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            answer = plans.ask(port, request, 7)
        except (ClusterUnreachable, OSError):
            answer = None
        if answer is not None and not answer.error_code:
            offset = answer.topics[0].partitions[0].committed_offset
            if expect is not None and offset != expect:
                raise loaders.LoadFailed(f"{group} has offset {offset}, not {expect}")
            return
        if answer is not None:
            plans.ask(port, FindCoordinatorRequest(key=group, key_type=GROUP_COORDINATOR), 3)
        if time.monotonic() > deadline:
            raise loaders.LoadFailed(f"no coordinator for {group} after {LIMIT_S:.0f} s")
        time.sleep(0.005)


def _members(group: plans.Group) -> list[MemberIdentity]:
    return [MemberIdentity(member_id=member_id) for member_id in group.member_ids]


def _rates(sample: Sample, result: dict[str, float]) -> Sample:
    sample["requests/s"] = result["requests"] / result["seconds"]
    sample["CPU us/request"] = sample["cpu_s"] / result["requests"] * 1e6
    return sample


COORDINATORS: tuple[Load, ...] = (
    Load(
        "coordinators-rebalance-100",
        "full rebalance of 100 members",
        rebalance(100, 60),
        (Reach("p50 ms", 1.0), Reach("max ms"), Reach("CPU ms/rebalance")),
    ),
    Load(
        "coordinators-rebalance-500",
        "full rebalance of 500 members",
        rebalance(500, 16),
        (Reach("p50 ms"), Reach("max ms"), Reach("CPU ms/rebalance")),
    ),
    Load(
        "coordinators-commits-1",
        "commits of 1 offset, 8 connections, 5 in flight",
        commits(1, 60_000),
        (Reach("requests/s", 1.0), Reach("CPU us/request")),
    ),
    Load(
        "coordinators-commits-10",
        "commits of 10 offsets, 8 connections, 5 in flight",
        commits(10, 30_000),
        (Reach("requests/s", 1.0), Reach("CPU us/request")),
    ),
    Load(
        "coordinators-transactions-1",
        "transactions of 1 partition, 8 producers",
        transactions(1, 10_000),
        (Reach("transactions/s", 1.0), Reach("CPU us/transaction"), Reach("retries")),
    ),
    Load(
        "coordinators-transactions-10",
        "transactions of 10 partitions, 8 producers",
        transactions(10, 4_000),
        (Reach("transactions/s", 1.0), Reach("CPU us/transaction"), Reach("retries")),
    ),
    Load(
        "coordinators-groups-5000",
        "5,000 groups: forming one by one, then heartbeats",
        many_groups,
        (Reach("ms/group"), Reach("CPU ms/group"), Reach("requests/s"), Reach("CPU us/request")),
        warm_ups=0,
        repeats=2,
    ),
    Load(
        "coordinators-offsets-1m",
        "start with 1 M committed offsets until all are served",
        million_offsets,
        (Reach("seconds"), Reach("CPU s"), Reach("RSS MB"), Reach("offsets/s")),
        warm_ups=0,
        repeats=1,
    ),
)
