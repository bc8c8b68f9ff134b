"""Groups of every type: share and streams groups of Kafka 4, and consumers with the protocol of KIP-848."""

import re

import pytest

from klamm.client import Admin, Consumer
from klamm.client.errors import GroupNotFoundError
from klamm.console.clusters import ConsoleCluster
from klamm.console.core.commands import CommandTarget, group_command
from klamm.console.service import ConsoleConfig
from klamm.testing import unique

from .kafka_peer import KafkaPeer
from .served import ServedConsole


@pytest.fixture(scope="module")
def peer():
    with KafkaPeer() as peer:
        yield peer


@pytest.fixture(scope="module")
def peer_console(peer):
    with ServedConsole(ConsoleConfig((ConsoleCluster("test", peer.bootstrap),), interval_s=600)) as console:
        console.collect()
        yield console


@pytest.fixture
def peer_visit(peer_console):
    visit = peer_console.visitor()
    yield visit
    visit.client.close()


def text_of(page):
    """The words of a page, without tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def test_an_admin_describes_share_groups(peer):
    with Admin(bootstrap_servers=peer.bootstrap) as admin:
        group = admin.describe_share_groups(["workers"])["workers"]
        assert (group.type, group.state, group.assignor) == ("share", "Stable", "simple")
        assert [member.client_id for member in group.members] == ["worker-1", "worker-2"]
        assert [member.host for member in group.members] == ["10.0.0.1", "10.0.0.1"]
        (place, offset), *others = admin.list_share_group_offsets("workers").items()
        assert (place.topic, place.partition, offset.start_offset, offset.lag) == ("jobs", 0, 60, 37)
        assert not others  # the group has not begun in the other partition
        with pytest.raises(GroupNotFoundError):
            admin.describe_share_groups(["wordcount"])


def test_an_admin_describes_streams_groups(peer):
    with Admin(bootstrap_servers=peer.bootstrap) as admin:
        group = admin.describe_streams_groups(["wordcount"])["wordcount"]
        assert group.topology.subtopologies[0].changelog_topics == ("wordcount-store-changelog",)
        (member,) = group.members
        assert (member.tasks.active, member.tasks.standby) == (("0_0",), ("0_1",))
        assert [(place.topic, place.partition) for place in member.assignment] == [("words", 0)]
        with pytest.raises(GroupNotFoundError):
            admin.describe_streams_groups(["workers"])


def test_the_list_has_groups_of_all_types_with_their_lag(peer_visit):
    page = text_of(peer_visit.get("/c/test/groups"))
    assert re.search(r"workers\s+Stable\s+share\s+1\s+37", page), page
    assert re.search(r"wordcount\s+Stable\s+streams\s+1\s+20", page), page


def test_a_share_group_has_a_page(peer_visit):
    page = peer_visit.get("/c/test/groups/workers")
    words = text_of(page)
    assert "worker-1" in words
    assert "worker-2" in words
    assert re.search(r"Unread records\s+37", words)  # as the broker reports it, not the distance to the end
    assert "Start offset" in words
    # What the page lacks, it says, and it offers no form that would fail.
    assert "Offsets of a share group cannot be reset here" in words
    assert "kafka-share-groups.sh" in words
    assert "remove-member" not in page
    assert "Reset offsets" not in page
    assert peer_visit.client.get("/c/test/groups/workers/reset").status_code == 409


def test_a_streams_group_has_a_page_with_its_topology_and_tasks(peer_visit):
    page = peer_visit.get("/c/test/groups/wordcount")
    words = text_of(page)
    assert "wordcount-store-changelog" in words
    assert re.search(r"0_0.*standby 0_1", words)
    assert re.search(r"Unread records\s+20", words)
    assert "remove-member" not in page


def test_a_group_of_no_type_is_not_found(peer_visit):
    page = peer_visit.get("/c/test/groups/absent", 404)
    assert "absent" in page


def test_a_group_with_the_consumer_protocol_has_epochs_and_members(broker, console, visit):
    topic, group = unique("topic"), unique("group")
    with broker.admin() as admin, broker.producer() as producer:
        admin.create_topic(topic, num_partitions=3)
        for partition in range(3):
            producer.send(topic, b"x", partition=partition)
        producer.flush()
    settings = {"group.id": group, "group.protocol": "consumer", "auto.offset.reset": "earliest", "client.id": "modern"}
    with Consumer(bootstrap_servers=broker.bootstrap, **settings) as consumer:
        consumer.subscribe([topic])
        seen = 0
        while seen < 3:
            seen += len(consumer.poll(1.0))
        consumer.commit()
        console.collect()
        assert re.search(rf"{group}\s+Stable\s+consumer\s+1\s+0", text_of(visit.get(f"/c/test/groups?q={group}")))
        page = visit.get(f"/c/test/groups/{group}")
        words = text_of(page)
        assert re.search(r"Protocol\s+consumer", words)
        assert re.search(r"Group epoch\s+\d+", words)
        assert re.search(r"modern\s+127\.0\.0\.1", words)
        # Brokers take LeaveGroup from members of the classic protocol only.
        assert "remove-member" not in page
        assert "leave when their client stops" in words


def test_the_command_of_a_group_is_on_its_page(peer_visit):
    target = CommandTarget(None, "broker:9092")
    assert group_command(target, "a b") == "klamm group show 'a b' -b broker:9092"
    assert "klamm group show workers" in text_of(peer_visit.get("/c/test/groups/workers"))
