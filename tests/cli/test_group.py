"""`klamm group` against a node: what a person types and reads."""

import json

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition

from harness.members import ConfluentMember, settled, wait_until
from harness.wire import unique
from klamm.cli.group_seek import SeekTarget, parse_target, parse_topic
from klamm.cli.main import cli
from klamm.cli.queries.offsets import EARLIEST, LATEST


@pytest.fixture
def run(klamm):
    def call(*args, code=0):
        result = CliRunner().invoke(cli, ["group", *args, "-b", klamm.bootstrap])
        assert result.exit_code == code, result.output
        return result.output

    return call


@pytest.fixture
def topic(klamm, wire):
    name = wire.create_topic(partitions=3)
    producer = Producer({"bootstrap.servers": klamm.bootstrap, "log_level": 2})
    for i in range(30):
        producer.produce(name, str(i), partition=i % 3, timestamp=1_000_000 + i // 3 * 1000)
    producer.flush(20)
    return name


@pytest.fixture
def group(klamm, topic):
    """A group that has read four records of every partition and is gone."""
    name = unique("g")
    consumer = Consumer({"bootstrap.servers": klamm.bootstrap, "group.id": name, "log_level": 2})
    consumer.commit(offsets=[TopicPartition(topic, p, 4) for p in range(3)], asynchronous=False)
    consumer.close()
    return name


def offsets(run, group):
    return [row["offset"] for row in json.loads(run("show", group, "-o", "json"))["offsets"]]


def test_a_group_is_listed(run, group):
    rows = {row["group"]: row for row in json.loads(run("ls", "-o", "json"))}
    assert rows[group] == {"group": group, "type": "classic", "protocol": "", "state": "Empty", "coordinator": 1}
    line = next(line for line in run("ls", "--state", "Empty", "-o", "table").splitlines() if line.startswith(group))
    assert line.split() == [group, "classic", "-", "Empty", "1"]
    assert group not in run("ls", "--state", "Stable")
    assert group not in run("ls", "--type", "consumer")


def test_a_group_is_shown_with_its_lag(run, group, topic):
    shown = json.loads(run("show", group, "-o", "json"))
    assert (shown["state"], shown["type"], shown["members"]) == ("Empty", "classic", [])
    assert shown["offsets"][0] == {
        "topic": topic, "partition": 0, "offset": 4, "end": 10, "lag": 6, "member": "", "metadata": "",
    }  # fmt: skip
    text = run("show", group, "-o", "table")
    assert "state Empty" in text
    assert "no members" in text
    assert f"{topic}          0       4   10    6" in text


def test_members_and_what_they_own_are_shown(run, klamm, topic):
    name = unique("g")
    members = [ConfluentMember(klamm.bootstrap, name, topic, instance_id=i) for i in "ab"]
    try:
        wait_until(lambda: settled(members, 3))
        wait_until(lambda: json.loads(run("show", name, "-o", "json"))["state"] == "Stable")
        shown = json.loads(run("show", name, "-o", "json"))
        assert shown["assignor"] == "range"
        assert sorted((m["instance"], m["host"]) for m in shown["members"]) == [("a", "127.0.0.1"), ("b", "127.0.0.1")]
        assert sum(m["partitions"] for m in shown["members"]) == 3
        assert all(row["member"] for row in shown["offsets"])
        refused = run("seek", name, "--to", "earliest", "--topic", topic, code=1)
        assert "has 2 members (" in refused
        assert "stop them first, nothing was changed" in refused
        assert "it has members" in run("delete", name, code=1)
    finally:
        for member in members:
            member.stop()


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("earliest", [0, 0, 0]),
        ("latest", [10, 10, 10]),
        ("7", [7, 7, 7]),
        ("999", [10, 10, 10]),
        ("+3", [7, 7, 7]),
        ("-100", [0, 0, 0]),
        ("1970-01-01T00:16:42Z", [2, 2, 2]),
        ("2039-01-01T00:00:00Z", [10, 10, 10]),
    ],
)
def test_seeking(run, group, to, expected):
    answer = run("seek", group, f"--to={to}", "-o", "json")
    rows = json.loads(answer[answer.index("[\n") :])
    assert [row["offset"] for row in rows] == expected
    assert {row["before"] for row in rows} == {4}
    assert offsets(run, group) == expected


@pytest.fixture
def half_read(klamm, topic):
    """A group that has committed in one partition of three; the older fixture commits in all, and hid the rest."""
    name = unique("g")
    consumer = Consumer({"bootstrap.servers": klamm.bootstrap, "group.id": name, "log_level": 2})
    consumer.commit(offsets=[TopicPartition(topic, 1, 4)], asynchronous=False)
    consumer.close()
    return name


def test_groups_are_listed_with_their_lag(run, half_read):
    rows = {row["group"]: row for row in json.loads(run("ls", "--lag", "-o", "json"))}
    assert (rows[half_read]["members"], rows[half_read]["lag"]) == (0, 26)


def test_partitions_without_a_commit_lag_too(run, half_read):
    shown = json.loads(run("show", half_read, "-o", "json"))["offsets"]
    assert [(row["partition"], row["offset"], row["end"], row["lag"]) for row in shown] == [
        (0, None, 10, 10), (1, 4, 10, 6), (2, None, 10, 10),
    ]  # fmt: skip
    assert "lag 26\n" in run("show", half_read, "-o", "table")


def test_seeking_moves_partitions_without_a_commit(run, half_read):
    run("seek", half_read, "--to", "earliest")
    assert offsets(run, half_read) == [0, 0, 0]


def test_an_offset_beyond_the_end_is_told(run, group, topic):
    """It was taken for the end without a word."""
    answer = run("seek", group, "--to", "999999", "-o", "json")
    assert f"{topic}-0 ends at 10, and is moved there" in answer
    assert answer.count("and is moved there") == 3
    assert f"{topic}-2 begins at 0, and is moved there" in run("seek", group, "--to=-999", "--topic", f"{topic}:2")
    assert "and is moved" not in run("seek", group, "--to", "latest")


def test_members_are_told_of_before_anything_else(run, klamm, topic):
    """Also checked where the offsets were right already: the command printed "Nothing to change"."""
    name = unique("g")
    run("seek", name, "--to", "latest", "--topic", topic)
    member = ConfluentMember(klamm.bootstrap, name, topic)
    try:
        wait_until(lambda: settled([member], 3))
        for words in (("--to", "latest"), ("--to", "latest", "--dry-run"), ("--to", "5", "--topic", topic)):
            assert f"{name} has 1 member (" in run("seek", name, *words, code=1)
    finally:
        member.stop()


def test_seeking_some_partitions_and_trying_first(run, group, topic):
    assert "dry run" in run("seek", group, "--to", "latest", "--dry-run")
    assert offsets(run, group) == [4, 4, 4]
    run("seek", group, "--to", "latest", "--topic", f"{topic}:0,2")
    assert offsets(run, group) == [10, 4, 10]


def test_a_group_can_be_given_offsets_before_it_exists(run, topic):
    name = unique("g")
    run("seek", name, "--to", "5", "--topic", topic)
    assert offsets(run, name) == [5, 5, 5]


def test_what_cannot_be_done_is_said_in_a_sentence(run, group, topic):
    assert "no group unknown" in run("show", "unknown", code=3)
    assert "no group unknown" in run("delete", "unknown", code=3)
    assert "is no position" in run("seek", group, "--to", "somewhere", code=2)
    assert "write TOPIC:0,1,2" in run("seek", group, "--to", "1", "--topic", "t:x", code=2)
    assert "no topic ghost" in run("seek", group, "--to", "1", "--topic", "ghost", code=3)
    assert "3 partitions" in run("seek", group, "--to", "1", "--topic", f"{topic}:7", code=3)
    group = unique("g")
    assert "GROUP_ID_NOT_FOUND" in run("seek", group, "--to", "earliest", "--yes", code=3)
    assert run("seek", group, "--to", "1", "--topic", topic, "--dry-run").count("unset -> 1") == 3


def test_deleting(run, group):
    assert "no terminal to confirm" in run("delete", group, code=6)
    assert run("delete", group, "--yes") == f"Deleted {group}.\n"
    assert group not in run("ls")


def test_places_as_people_write_them():
    assert parse_target("earliest") == SeekTarget(timestamp=EARLIEST)
    assert parse_target("latest") == SeekTarget(timestamp=LATEST)
    assert parse_target("12") == SeekTarget(offset=12)
    assert parse_target("-3") == SeekTarget(step=-3)
    assert parse_target("1970-01-01T00:00:01+00:00") == SeekTarget(timestamp=1000)
    assert parse_topic("t") == ("t", None)
    assert parse_topic("t:4,2") == ("t", [4, 2])
