"""kafka-consumer-groups and its neighbours, and internal topics as Kafka's own formatters and decoders read them."""

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from compat import toolchain
from compat.brokers import Broker
from compat.clients import JavaClient, Record, ToolOutput
from compat.crowds import Crowd

TOOLS = "org.apache.kafka.tools."
GROUPS = TOOLS + "consumer.group.ConsumerGroupCommand"
CONSOLE = TOOLS + "consumer.ConsoleConsumer"
BASE_TIME = 1_700_000_000_000
Run = Callable[..., ToolOutput]


@pytest.fixture
def run(java: JavaClient, broker: Broker) -> Run:
    """Run a tool against the broker and require its success."""

    def run_tool(main: str, *args: str) -> ToolOutput:
        output = java.tool(main, "--bootstrap-server", broker.bootstrap, *args)
        assert output.exit == 0, output.text  # kafka-consumer-groups exits with 0 after failures too
        return output

    return run_tool


@pytest.fixture
def crowd(broker: Broker, java: JavaClient, topic: str, request: pytest.FixtureRequest) -> Iterator[Crowd]:
    way = getattr(request, "param", "range")
    made = Crowd(broker, java, topic, way, 4)
    yield made
    made.close()


def table(text: str) -> list[dict[str, str]]:
    """Rows under a header of column names; columns are split at blanks."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    head = next(i for i, words in enumerate(lines) if words[0] == "GROUP")
    return [dict(zip(lines[head], words, strict=False)) for words in lines[head + 1 :]]


@pytest.mark.parametrize(
    ("crowd", "kind"), [("range", "Classic"), ("consumer-uniform", "Consumer")], indirect=["crowd"]
)
def test_a_group_with_members(run: Run, crowd: Crowd, java: JavaClient, broker: Broker, kind: str) -> None:
    group = crowd.group
    crowd.write(5)
    crowd.join(java, 2)
    crowd.settle()
    crowd.drain()
    assert group in run(GROUPS, "--list").out.split()
    states = run(GROUPS, "--list", "--state", "stable", "--type", kind.lower()).out
    assert re.search(rf"{group}\s+{kind}\s+Stable", states), states
    listed = run(TOOLS + "GroupsCommand", "--list").out
    assert re.search(rf"{group}\s+{kind}\s+consumer", listed), listed
    assert group in run(TOOLS + "GroupsCommand", "--list", "--consumer").out
    assert group not in run(TOOLS + "GroupsCommand", "--list", "--share").out

    def committed() -> bool:
        rows = table(run(GROUPS, "--describe", "--group", group).out)
        return {row["PARTITION"]: (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) for row in rows} == {
            str(p): ("5", "5", "0") for p in range(4)
        }

    crowd.wait(committed, "the commits do not show")
    rows = table(run(GROUPS, "--describe", "--group", group, "--offsets", "--verbose").out)
    assert {row["CLIENT-ID"] for row in rows} == {member.name for member in crowd.present}
    assert {row["TOPIC"] for row in rows} == {crowd.topic}

    members = table(run(GROUPS, "--describe", "--group", group, "--members").out)
    assert {(row["CLIENT-ID"], row["#PARTITIONS"]) for row in members} == {(m.name, "2") for m in crowd.present}
    verbose = run(GROUPS, "--describe", "--group", group, "--members", "--verbose").out
    for member in crowd.present:
        share = ",".join(map(str, sorted(member.owned)))
        assert re.search(rf"{member.name}\s.*{crowd.topic}[:(]{share}", verbose), verbose
    state = run(GROUPS, "--describe", "--group", group, "--state").out
    strategy = "range" if kind == "Classic" else "uniform"
    address = rf"127\.0\.0\.1:{broker.port}\s+\(1\)"
    assert re.search(rf"{group}\s+{address}\s+{strategy}\s+Stable\s+2", state), state

    busy = run(GROUPS, "--delete", "--group", group)
    assert "not empty" in busy.text.lower(), busy.text
    refused = run(GROUPS, "--reset-offsets", "--group", group, "--all-topics", "--to-earliest", "--execute")
    assert "Assignments can only be reset if the group" in refused.text, refused.text
    subscribed = run(GROUPS, "--delete-offsets", "--group", group, "--topic", crowd.topic)
    assert "actively subscribed" in subscribed.text, subscribed.text

    crowd.leave(*crowd.present)
    gone = run(GROUPS, "--describe", "--group", group)
    assert "has no active members" in gone.text
    assert re.search(rf"{group}\s+{address}\s.*Empty\s+0", run(GROUPS, "--describe", "--group", group, "--state").out)
    assert {row["CONSUMER-ID"] for row in table(gone.out)} == {"-"}
    run(GROUPS, "--delete", "--group", group)
    assert group not in run(GROUPS, "--list").out.split()
    missing = run(GROUPS, "--describe", "--group", group)
    assert "not found" in missing.text.lower() or "does not exist" in missing.text.lower(), missing.text


def test_reset_offsets_in_all_forms(run: Run, java: JavaClient, broker: Broker, topic: str, tmp_path: Path) -> None:
    """A group that never had a member: the tool alone creates, moves and deletes its offsets."""
    java.create(broker.bootstrap, topic, 2)
    now_ms = int(time.time() * 1000)
    for partition in (0, 1):
        times = [BASE_TIME + 60_000 * i for i in range(10)] + [now_ms - 1000 + i for i in range(10)]
        java.produce(broker.bootstrap, topic, [Record(b"v", timestamp=at, partition=partition) for at in times])
    group = f"group-{topic}"

    def reset(*how: str, execute: bool = True, scope: tuple[str, ...] = ("--topic", topic)) -> dict[int, int]:
        what = "--execute" if execute else "--dry-run"
        return new_offsets(run(GROUPS, "--reset-offsets", "--group", group, *scope, *how, what).out)

    def current() -> dict[int, int]:
        rows = table(run(GROUPS, "--describe", "--group", group).out)
        return {int(row["PARTITION"]): int(row["CURRENT-OFFSET"]) for row in rows}

    at = datetime.fromtimestamp((BASE_TIME + 3 * 60_000) / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.000")
    assert reset("--to-earliest", execute=False) == {0: 0, 1: 0}
    missing = run(GROUPS, "--describe", "--group", group)
    assert group in missing.text, "a dry run made the group"
    forms: list[tuple[tuple[str, ...], int]] = [
        (("--to-earliest",), 0),
        (("--to-latest",), 20),
        (("--to-offset", "7"), 7),
        (("--to-offset", "99"), 20),
        (("--shift-by", "-5"), 15),
        (("--shift-by", "-100"), 0),
        (("--shift-by", "4"), 4),
        (("--to-datetime", at), 3),
        (("--by-duration", "P1D"), 10),
        (("--by-duration", "P10000D"), 0),
    ]
    for how, expected in forms:
        before = 20 if how == ("--to-earliest",) else current()
        assert reset(*how, execute=False) == {0: expected, 1: expected}, how
        assert how == ("--to-earliest",) or current() == before, f"a dry run moved offsets: {how}"
        assert reset(*how) == {0: expected, 1: expected}, how
        assert current() == {0: expected, 1: expected}, how
    assert reset("--to-offset", "11", scope=("--topic", f"{topic}:1")) == {1: 11}
    assert reset("--to-current", scope=("--all-topics",)) == {0: 0, 1: 11}
    exported = run(
        GROUPS, "--reset-offsets", "--group", group, "--topic", topic, "--to-current", "--export", "--dry-run"
    )
    lines = [line.replace('"', "") for line in exported.out.splitlines() if line.count(",") == 2]
    assert sorted(lines) == [f"{topic},0,0", f"{topic},1,11"], exported.out
    plan = tmp_path / "plan.csv"
    plan.write_text(f"{topic},0,2\n{topic},1,13\n")
    assert reset("--from-file", str(plan), scope=()) == {0: 2, 1: 13}
    assert current() == {0: 2, 1: 13}

    one = run(GROUPS, "--delete-offsets", "--group", group, "--topic", f"{topic}:0").out
    assert re.search(rf"{topic}\s+0\s+Successful", one), one
    assert current() == {1: 13}
    run(GROUPS, "--delete", "--group", group)
    assert group not in run(GROUPS, "--list").out.split()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_verifiable_clients(java: JavaClient, broker: Broker, topic: str, protocol: str) -> None:
    """The tools of Kafka's system tests: what the one acknowledges the other reads and commits."""
    java.create(broker.bootstrap, topic, 3)
    where = ("--bootstrap-server", broker.bootstrap, "--topic", topic)
    # It flushes on the way out of its process, so it needs one of its own.
    command = [*toolchain.java_command(heap_mb=128, log_level="off"), TOOLS + "VerifiableProducer", *where]
    command += ["--max-messages", "300", "--acks", "-1"]
    made = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert made.returncode == 0, made.stderr
    acked = [one for one in json_lines(made.stdout) if one["name"] == "producer_send_success"]
    assert len(acked) == 300, made.stdout[-2000:]

    options = ("--group-id", f"group-{topic}", "--group-protocol", protocol, "--max-messages", "300", "--verbose")
    read = java.tool(TOOLS + "VerifiableConsumer", *where, *options, "--reset-policy", "earliest")
    assert read.exit == 0, read.text
    events = json_lines(read.out)
    assert sum(one["name"] == "partitions_assigned" for one in events) >= 1
    data = {(one["partition"], one["offset"]) for one in events if one["name"] == "record_data"}
    assert data == {(one["partition"], one["offset"]) for one in acked}
    commits = [one for one in events if one["name"] == "offsets_committed"]
    assert commits, read.text[-2000:]
    assert all(one["success"] for one in commits)
    assert sum(one["offset"] for one in latest_commit(commits).values()) == 300


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_console_consumers_of_one_group_go_on_where_the_last_ended(
    run: Run, java: JavaClient, broker: Broker, topic: str, protocol: str
) -> None:
    java.create(broker.bootstrap, topic)
    java.produce(broker.bootstrap, topic, [Record(b"%d" % i, key=b"k%d" % i) for i in range(10)])
    group = ("--topic", topic, "--group", f"group-{topic}", "--timeout-ms", "10000")
    settings = ("--command-property", f"group.protocol={protocol}", "--formatter-property", "print.key=true")
    first = run(CONSOLE, *group, *settings, "--from-beginning", "--max-messages", "4")
    assert first.out.split("\n")[:4] == [f"k{i}\t{i}" for i in range(4)]
    second = run(CONSOLE, *group, *settings, "--max-messages", "6")
    assert second.out.split("\n")[:6] == [f"k{i}\t{i}" for i in range(4, 10)]


@pytest.mark.parametrize("crowd", ["range", "consumer-uniform"], indirect=True)
def test_internal_records_are_kafkas(run: Run, crowd: Crowd, java: JavaClient, broker: Broker) -> None:
    """Offsets and group records: through the console's formatters, and from the files by kafka-dump-log."""
    crowd.write(3)
    crowd.join(java, 2)
    crowd.settle()
    crowd.drain()
    crowd.leave(crowd.present[0])
    crowd.settle()
    crowd.leave(*crowd.present)
    everything = ("--topic", "__consumer_offsets", "--from-beginning", "--timeout-ms", "1500")
    formatter = TOOLS + "consumer."
    offsets = json_lines(run(CONSOLE, *everything, "--formatter", formatter + "OffsetsMessageFormatter").out)
    keys = [(one["key"]["type"], one["key"]["data"]) for one in offsets if one["key"]["data"]["group"] == crowd.group]
    assert {(kind, key["topic"], key["partition"]) for kind, key in keys} == {
        (1, crowd.topic, partition) for partition in range(4)
    }
    newest = {
        one["key"]["data"]["partition"]: one["value"]["data"]["offset"]
        for one in offsets
        if one["key"]["data"]["group"] == crowd.group
    }
    assert newest == dict.fromkeys(range(4), 3)
    if crowd.way == "range":
        shown = json_lines(run(CONSOLE, *everything, "--formatter", formatter + "GroupMetadataMessageFormatter").out)
        own = [one for one in shown if one["key"]["data"].get("group") == crowd.group]
        assert {one["key"]["type"] for one in own} == {2}
        assert max(len(one["value"]["data"]["members"]) for one in own) == 2
        last = own[-1]["value"]["data"]
        assert (last["protocolType"], last["members"]) == ("consumer", [])

    files = sorted(broker.data.glob("__consumer_offsets-*/*.log"))
    dumped = java.tool(TOOLS + "DumpLogSegments", "--offsets-decoder", "--files", ",".join(map(str, files)))
    assert dumped.exit == 0, dumped.text[-2000:]
    mine = [line for line in dumped.out.splitlines() if f'"{crowd.group}"' in line]
    kinds = {int(kind) for line in mine for kind in re.findall(r'"type":"?(\d+)', line)[:1]}
    assert kinds == ({1, 2} if crowd.way == "range" else {1, 3, 5, 6, 7, 8}), kinds
    assert not [line for line in mine if "error" in line.lower() or "unknown" in line.lower()]


def json_lines(text: str) -> list[dict]:  # type: ignore[type-arg]
    """Every object of the text; some tools print no line end between them."""
    decoder, objects, at = json.JSONDecoder(), [], text.find("{")
    while at >= 0:
        one, end = decoder.raw_decode(text, at)
        objects.append(one)
        at = text.find("{", end)
    return objects


def latest_commit(events: list[dict]) -> dict[int, dict]:  # type: ignore[type-arg]
    """The last committed offset of every partition."""
    return {one["partition"]: one for event in events for one in event["offsets"]}


def new_offsets(text: str) -> dict[int, int]:
    return {int(row["PARTITION"]): int(row["NEW-OFFSET"]) for row in table(text)}
