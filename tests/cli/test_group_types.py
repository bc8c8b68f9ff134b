"""`klamm group` about share and streams groups, which Apache Kafka 4 serves and Klamm's nodes do not."""

import functools
import json

import pytest
from click.testing import CliRunner

from console.kafka_peer import KafkaPeer
from klamm.cli.main import cli
from klamm.cli.queries.groups import find_group
from klamm.client.admin.group_types import ShareGroupOffset
from klamm.client.blocking_cluster import BlockingCluster
from klamm.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)


@pytest.fixture(scope="module")
def peer():
    with KafkaPeer() as peer:
        yield peer


def call(peer, *args, code=0):
    result = CliRunner().invoke(cli, ["group", *args, "-b", peer.bootstrap])
    assert result.exit_code == code, result.output
    return result.output


def test_a_share_group_is_shown_with_members_start_offsets_and_lag(peer):
    shown = json.loads(call(peer, "show", "workers", "-o", "json"))
    assert (shown["type"], shown["state"], shown["assignor"], shown["epoch"]) == ("share", "Stable", "simple", 3)
    assert shown["coordinator"] == peer.bootstrap
    assert shown["members"][0] == {
        "member": "member-1",
        "instance": None,
        "client": "worker-1",
        "host": "10.0.0.1",
        "epoch": 3,
        "partitions": 2,
        "topics": ["jobs"],
    }
    owners = "member-1, member-2"
    assert shown["offsets"] == [
        # The lag as the broker counts it, not the distance to the end.
        {"topic": "jobs", "partition": 0, "offset": 60, "end": 100, "lag": 37, "member": owners, "metadata": ""},
        {"topic": "jobs", "partition": 1, "offset": None, "end": 100, "lag": None, "member": owners, "metadata": ""},
    ]
    lines = call(peer, "show", "workers", "-o", "table").splitlines()
    assert lines[0] == (
        f"workers: type share, state Stable, assignor simple, coordinator {peer.bootstrap}, epoch 3, lag 37"
    )
    assert "2 start offsets" in lines
    assert ["member-1", "worker-1", "10.0.0.1", "3", "2", "jobs"] in [line.split() for line in lines]


def test_a_streams_group_is_shown_with_tasks_and_topology(peer):
    shown = json.loads(call(peer, "show", "wordcount", "-o", "json"))
    assert (shown["type"], shown["state"], shown["epoch"]) == ("streams", "Stable", 7)
    (member,) = shown["members"]
    assert member["tasks"] == {"active": ["0_0"], "standby": ["0_1"], "warmup": []}
    assert member["topics"] == ["words"]
    assert shown["topology"]["subtopologies"][0]["changelogs"] == ["wordcount-store-changelog"]
    rows = [(row["topic"], row["partition"], row["offset"], row["lag"], row["member"]) for row in shown["offsets"]]
    assert rows == [("words", 0, 90, 10, "streams-1"), ("words", 1, 90, 10, "")]
    lines = call(peer, "show", "wordcount", "-o", "table").splitlines()
    assert lines[0].endswith("epoch 7, lag 20")
    assert ["streams-1", "-", "app-1", "10.0.0.2", "7", "0_0", "0_1", "-"] in [line.split() for line in lines]


def test_csv_has_the_offsets_of_all_types(peer):
    for group, row in (("workers", 'jobs,0,60,100,37,"member-1, member-2",'), ("wordcount", "words,1,90,100,10,,")):
        head, *rows = call(peer, "show", group, "-o", "csv").splitlines()
        assert head == "topic,partition,offset,end,lag,member,metadata"
        assert row in rows


def test_a_lag_that_the_broker_does_not_report_is_unknown():
    def without_lag(request, _version):
        offset = DescribeShareGroupOffsetsResponsePartition(partition_index=0, start_offset=60, leader_epoch=0, lag=-1)
        topic = DescribeShareGroupOffsetsResponseTopic(topic_name="jobs", partitions=[offset])
        group = DescribeShareGroupOffsetsResponseGroup(group_id=request.groups[0].group_id, topics=[topic])
        return DescribeShareGroupOffsetsResponse(groups=[group])

    with KafkaPeer(DescribeShareGroupOffsets=without_lag) as peer:
        assert json.loads(call(peer, "show", "workers", "-o", "json"))["offsets"][0]["lag"] is None
        assert call(peer, "show", "workers", "-o", "table").splitlines()[0].endswith("lag -")


def test_the_list_has_members_and_lag_of_all_types(peer):
    rows = json.loads(call(peer, "ls", "--lag", "-o", "json"))
    assert [(row["group"], row["type"], row["members"], row["lag"]) for row in rows] == [
        ("wordcount", "streams", 1, 20),
        ("workers", "share", 2, 37),
    ]


def test_the_list_asks_for_each_group_by_its_type():
    requests = []

    def record(name, answer, request, version):
        requests.append(name)
        return answer(request, version)

    with KafkaPeer() as peer:
        for name in ("ConsumerGroupDescribe", "DescribeGroups", "ShareGroupDescribe", "StreamsGroupDescribe"):
            peer.answers[name] = functools.partial(record, name, peer.answers[name])
        call(peer, "ls", "--lag")
    assert sorted(requests) == ["ShareGroupDescribe", "StreamsGroupDescribe"]


def test_kafkas_tool_asks_for_groups_of_consumers_alone(peer):
    """Another type is no group to it: its offsets are not those of consumers."""
    with BlockingCluster(peer.bootstrap) as cluster:
        assert find_group(cluster, "workers", "consumer") is None
        assert find_group(cluster, "workers").type == "share"
        assert find_group(cluster, "absent") is None


@pytest.mark.parametrize(
    ("offset", "end", "unread_from"),
    [
        (ShareGroupOffset(60, 37), 100, 63),
        (ShareGroupOffset(60, 0), 100, 100),
        (ShareGroupOffset(60, 90), 100, 60),
        (ShareGroupOffset(60), 100, 60),
        (ShareGroupOffset(60, 37), None, 60),
    ],
)
def test_unread_records_of_a_share_group_are_counted_from_the_end(offset, end, unread_from):
    assert offset.unread_from(end) == unread_from


def test_a_missing_group_is_named(peer):
    assert "there is no group absent; `klamm group ls` lists those there are" in call(peer, "show", "absent", code=3)


def test_offsets_of_a_share_group_are_not_moved(peer):
    text = call(peer, "seek", "workers", "--to", "earliest", "--yes", code=1)
    assert "workers is a share group" in text
    assert "nothing was changed" in text
