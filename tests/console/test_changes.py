"""Changes that pages make, the commands they show, logins by a proxy, and the cures of the overview."""

import re
import shlex

import httpx2
import pytest

from klamm.client import Consumer
from klamm.client.admin.types import QuorumDescription, QuorumReplica
from klamm.client.core.reassign_throttle import RATES
from klamm.console.clusters import ConsoleCluster
from klamm.console.core.cluster_signs import ClusterSigns
from klamm.console.core.commands import CommandTarget, consume_command, describe_security, kcat_command
from klamm.console.core.partition_columns import PartitionSample
from klamm.console.core.samples import (
    BrokerSample,
    ClusterSample,
    GroupSample,
    LogDirSample,
    TopicSample,
)
from klamm.console.service import ConsoleConfig
from klamm.console.settings import parse_settings
from klamm.model.config_resources import ConfigResource
from klamm.model.ids import TopicPartition
from klamm.testing import unique

from .served import ServedConsole

PATIENCE_POLLS = 60


# Members


@pytest.mark.parametrize("instance", [None, "static-1"])
def test_a_member_is_removed(broker, console, visit, instance):
    topic, group = unique("topic"), unique("group")
    with broker.admin() as admin:
        admin.create_topic(topic, num_partitions=2)
    settings = {"group.id": group, "client.id": "worker", **({"group.instance.id": instance} if instance else {})}
    consumer = Consumer(bootstrap_servers=broker.bootstrap, **settings)
    try:
        consumer.subscribe([topic])
        for _ in range(PATIENCE_POLLS):
            consumer.poll(0.2)
            if len(consumer.assignment()) == 2:
                break
        console.collect()
        path = f"/c/test/groups/{group}"
        page = visit.get(path)
        form = page.partition("/remove-member")[2].partition("</form>")[0]
        fields = dict(re.findall(r'name="(member|instance)" value="([^"]*)"', form))
        assert fields["instance"] == (instance or "")
        page = visit.post(path, f"{path}/remove-member", **fields)
        assert f"Removed {instance or fields['member']} from {group}" in page
        with broker.admin() as admin:
            members = admin.describe_groups([group])[group].members
        assert fields["member"] not in [member.member_id for member in members]
        assert "remove member" in visit.get("/c/test/audit")
    finally:
        consumer.close()


def test_no_name_removes_no_member(broker, console, visit):
    group, topic = unique("group"), unique("topic")
    with broker.admin() as admin:
        admin.create_topic(topic)
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): 0})
    console.collect()
    # The API takes an empty list for all members: a form without a name must not reach it.
    visit.post(f"/c/test/groups/{group}", f"/c/test/groups/{group}/remove-member", 400)


# Commands

SECURED = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanisms": "SCRAM-SHA-512",
    "sasl.username": "console",
    "sasl.password": "hunter2",
    "ssl.truststore.location": "/etc/console/ca.pem",
}


def test_commands_have_the_security_settings_with_placeholders():
    target = CommandTarget(None, "a:9093", describe_security(SECURED))
    options = (
        "-X security.protocol=SASL_SSL -X sasl.mechanism=SCRAM-SHA-512 -X sasl.username=USER -X sasl.password=PASSWORD"
        " -X ssl.ca.location=CA.pem"
    )
    assert consume_command(target, "orders", start="5") == f"klamm consume orders --from 5 -b a:9093 {options}"
    assert kcat_command(target, "orders", 1, 5) == f"kcat -b a:9093 {options} -t orders -p 1 -o 5 -c 1 -C"
    # A context has its settings with it; kcat knows no contexts.
    target = CommandTarget("prod", "a:9093", describe_security(SECURED))
    assert consume_command(target, "orders") == "klamm consume orders --ctx prod"
    assert options in kcat_command(target, "orders", 1, 5)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, []),
        ({"security.protocol": "PLAINTEXT", "sasl.username": ""}, ["security.protocol"]),
        ({"sasl.jaas.config": 'x required username="u" password="hunter2";'}, ["sasl.username", "sasl.password"]),
        (
            {"ssl.certificate.location": "/hunter2/c.pem", "ssl.key.password": "hunter2"},
            ["ssl.certificate.location", "ssl.key.location", "ssl.key.password"],
        ),
        (
            {"sasl.oauthbearer.token.endpoint.url": "https://hunter2", "sasl.oauthbearer.client.secret": "hunter2"},
            [f"sasl.oauthbearer.{name}" for name in ("method", "token.endpoint.url", "client.id", "client.secret")],
        ),
    ],
)
def test_no_secret_is_in_a_command(settings, names):
    shown = describe_security(settings)
    assert [name for name, _ in shown] == names
    assert "hunter2" not in str(shown)


def test_the_commands_of_a_record_are_on_its_page(broker, console, visit):
    topic = unique("copied")
    with broker.admin() as admin, broker.producer() as producer:
        admin.create_topic(topic)
        producer.send(topic, b"x").result(30)
    console.collect()
    page = visit.get(f"/c/test/topics/{topic}/messages/0/0")
    commands = [shlex.split(text) for text in re.findall(r'data-copy="([^"]+)"', page)]
    assert commands == [
        ["klamm", "consume", topic, "-p", "0", "--from", "0", "-n", "1", "-b", broker.bootstrap],
        ["kcat", "-b", broker.bootstrap, "-t", topic, "-p", "0", "-o", "0", "-c", "1", "-C"],
    ]


# Proxy


def test_the_header_of_a_proxy_is_not_taken_from_other_addresses(broker):
    settings = parse_settings('[proxy]\nheader = "X-User"\nfrom = ["10.1.2.3"]\nroles = ["admin"]\n')
    with ServedConsole(ConsoleConfig((ConsoleCluster("test", broker.bootstrap),), settings, interval_s=600)) as console:
        console.collect()
        # The test connects from 127.0.0.1, which is no proxy here, whatever other headers name.
        for headers in (
            {"X-User": "mallory"},
            {"X-User": "mallory", "X-Forwarded-For": "10.1.2.3"},
            {"X-User": "mallory", "Forwarded": "for=10.1.2.3", "X-Real-IP": "10.1.2.3"},
        ):
            with httpx2.Client(base_url=console.url, headers=headers) as client:
                answer = client.get("/c/test/topics")
                assert answer.status_code == 303
                assert answer.headers["location"].startswith("/login")
                assert "mallory" not in client.get("/login").text
                assert client.post("/c/test/new-topic", data={"name": "x"}).status_code in (303, 403)
    with broker.admin() as admin:
        assert "x" not in admin.list_topics()


# Cures


def bad_sample(time_ms):
    """A cluster in which everything is wrong that the overview knows."""
    full = LogDirSample("/data", 0, 100, 3)
    brokers = (
        BrokerSample(1, "one", 9092, log_dirs=(full,)),
        BrokerSample(2, "two", 9092, log_dirs=(LogDirSample("/data", 56, -1, -1),)),
        BrokerSample(3, "three", 9092, fenced=True),
    )
    topics = {
        "offline": TopicSample("offline", False, (PartitionSample(0, -1, (3,), (3,), 0, 9, 9),)),
        "behind": TopicSample("behind", False, (PartitionSample(0, 1, (1, 3), (1,), 0, 9000, 9),)),
        "moved": TopicSample("moved", False, (PartitionSample(0, 2, (1, 2), (1, 2), 0, 9, 9),)),
    }
    place = {TopicPartition("behind", 0): 0}
    groups = {
        "idle": GroupSample("idle", "classic", "consumer", "Empty", 1, place, 1),
        "late": GroupSample("late", "classic", "consumer", "Stable", 1, place, 1, time_ms - 600_000),
    }
    return ClusterSample(time_ms, "id", 1, brokers, topics, groups, collected_s=1, partial=("quotas: refused",))


VOTERS = (QuorumReplica(1, b"", 500, None, None), QuorumReplica(2, b"", 9, None, None))
BAD_SIGNS = ClusterSigns(
    stuck_transactions=2,
    minimums={"behind": 2},
    quorum=QuorumDescription(1, 1, 500, VOTERS, (), {}),
    registry_error="refused",
    stalled_moves=(TopicPartition("behind", 0),),
    left_throttle=1000,
)
CURES = {
    "1 partition without a leader": ("/topics?state=offline&internal=1", "offline"),
    "1 partition under-replicated": ("/topics?state=under-replicated&internal=1", "behind"),
    "1 partition led by another than the preferred replica": ("/brokers#elect", "Elect preferred leaders"),
    "1 topic with one replica": ("/topics?sort=replicas", "offline"),
    "Broker 3 is fenced": ("/brokers", "fenced"),
    "Log dir failed: /data of broker 2": ("/brokers", "failed"),
    "Disk 97 % full: /data of broker 1": ("/topics?sort=-size&internal=1", "behind"),
    "1 group without members and with unread records": ("/groups?state=Empty&sort=-lag", "idle"),
    "1 partition below min.insync.replicas": ("/topics?state=under-replicated&internal=1", "behind"),
    "1 group with members more than 5 min behind": ("/groups?sort=-behind", "late"),
    "1 voter of the quorum behind": ("/brokers#quorum", "Controller quorum"),
    "1 move without progress": ("/reassignments", "Under way"),
    "A throttle is left": ("/reassignments", "Under way"),
    # This cluster has no registry; of one that has, the page says why it does not answer.
    "The schema registry cannot be used": ("/schemas", "registry"),
    "2 transactions open for more than 15 minutes": ("/transactions", "Transactions"),
    "Part of the cluster could not be read": ("/brokers", "Brokers"),
}


def test_each_finding_has_its_cure_one_click_away(broker, console, visit):
    (link,) = console.service.links
    try:
        link.publish(bad_sample(console.service.app.parts.now_ms()), BAD_SIGNS)
        overview = visit.get("/c/test")
        items = re.findall(r'<b>([^<]+)</b><p>[^<]*</p></div><a class="button" href="/c/test/([^"]+)">', overview)
        shown = {title: "/" + path.replace("&amp;", "&") for title, path in items}
        assert shown == {title: path for title, (path, _) in CURES.items()}
        for title, (path, words) in CURES.items():
            page = visit.get("/c/test" + path.partition("#")[0], 404 if path == "/schemas" else 200)
            assert words in page.partition("<main")[2], title
            if "#" in path:
                assert f'id="{path.partition("#")[2]}"' in page
    finally:
        console.collect()


def test_a_quorum_without_a_leader_is_a_finding_when_it_lasts(broker, console, visit):
    (link,) = console.service.links
    try:
        link.publish(link.sample, ClusterSigns(quorum_error="no answer"))
        assert "The controller quorum has no leader" in visit.get("/c/test")
    finally:
        console.collect()
    assert "The controller quorum has no leader" not in visit.get("/c/test")


def test_a_throttle_that_is_left_is_found_and_removed(broker):
    """In a console of its own: one that has looked looks again after a minute."""
    with broker.admin() as admin:
        brokers = [ConfigResource.broker(node.id) for node in admin.describe_cluster().brokers]
        admin.alter_configs({broker: {RATES[0]: "1048576"} for broker in brokers})
    config = ConsoleConfig((ConsoleCluster("test", broker.bootstrap),), interval_s=600)
    with ServedConsole(config) as console:
        console.collect()
        visit = console.visitor()
        assert "A throttle is left" in visit.get("/c/test")
        visit.post("/c/test/reassignments", "/c/test/reassignments/unthrottle")
        assert "A throttle is left" not in visit.get("/c/test")
        visit.client.close()


def test_a_registry_that_does_not_answer_is_found(broker):
    cluster = ConsoleCluster("test", broker.bootstrap, registry_url="http://127.0.0.1:9")
    with ServedConsole(ConsoleConfig((cluster,), interval_s=600)) as console:
        visit = console.visitor()
        for _ in range(PATIENCE_POLLS):
            console.collect()
            if "The schema registry cannot be used" in visit.get("/c/test"):
                break
        else:
            raise AssertionError(visit.get("/c/test"))
        visit.client.close()
