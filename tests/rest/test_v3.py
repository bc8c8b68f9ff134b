"""v3 over a broker: the cluster, topics, settings, groups and ACLs as resources with links."""

import pytest

from klamm.testing import broker


@pytest.fixture(scope="module")
def secured_proxy():
    from .conftest import running_proxy

    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with broker(config=config) as running, running_proxy(running.bootstrap) as proxy:
        yield proxy


def links(value):
    """All addresses in a resource."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in ("self", "related") and isinstance(inner, str):
                yield inner
            else:
                yield from links(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from links(inner)


def test_the_cluster_leads_to_everything(proxy, topic):
    """Links are followed from the list of clusters, to a depth of three; every one is answered."""
    proxy.produce(topic, 1)
    visited, addresses = set(), [f"{proxy.url}/v3/clusters"]
    for _ in range(3):
        following = []
        for address in addresses:
            # One topic and a few of its settings stand for all.
            if address in visited or ("/topics/" in address and topic not in address and "/-/" not in address):
                continue
            if "/configs/" in address and not address.endswith(("retention.ms", "log.dirs")):
                continue
            if "/broker-configs/" in address or "/lag" in address or "consumer-groups/" in address:
                continue
            visited.add(address)
            answer = proxy.get(address)
            expected = 404 if address.endswith("/partitions/0/reassignment") else 200
            if "/acls" in address:
                expected = 400  # this broker has no authorizer
            assert answer.status == expected, (address, answer.body)
            if answer.status == 200:
                following += links(answer.json())
        addresses = following
    assert f"{proxy.url}{proxy.cluster}/topics/{topic}/configs" in visited
    assert f"{proxy.url}{proxy.cluster}/brokers" in visited


def test_links_lead_to_where_the_request_came_from(proxy):
    answer = proxy.get("/kafka/v3/clusters", host="proxy.example:9999").json()
    assert answer["metadata"]["self"] == "http://proxy.example:9999/kafka/v3/clusters"
    assert answer["data"][0]["metadata"]["resource_name"] == f"crn:///kafka={proxy.service.cluster_id}"
    assert proxy.get("/v3/clusters", host="evil/<script>").status == 421


def test_another_cluster_is_not_found(proxy):
    answer = proxy.get("/v3/clusters/other/topics")
    assert (answer.status, answer.json()) == (404, {"error_code": 404, "message": "Cluster other cannot be found."})


def test_a_topic_is_created_grown_and_deleted(proxy, klamm_name):
    name = klamm_name("created")
    body = {"topic_name": name, "partitions_count": 2, "configs": [{"name": "retention.ms", "value": "1000"}]}
    validated = proxy.post(f"{proxy.cluster}/topics", body | {"validate_only": True})
    assert (validated.status, validated.json()["partitions_count"]) == (200, 2)
    answer = proxy.post(f"{proxy.cluster}/topics", body)
    assert answer.status == 201
    created = answer.json()
    assert (created["kind"], created["topic_name"], created["replication_factor"]) == ("KafkaTopic", name, 1)
    again = proxy.post(f"{proxy.cluster}/topics", body)
    assert (again.status, again.json()["error_code"]) == (400, 40002)
    assert "already exists" in again.json()["message"]
    path = f"{proxy.cluster}/topics/{name}"
    assert proxy.get(path).json()["partitions_count"] == 2
    listed = proxy.get(f"{proxy.cluster}/topics?include_authorized_operations=true").json()["data"]
    assert name in [topic["topic_name"] for topic in listed]
    grown = proxy.request("PATCH", path, {"partitions_count": 4})
    assert (grown.status, grown.json()["partitions_count"]) == (200, 4)
    shrunk = proxy.request("PATCH", path, {"partitions_count": 1})
    assert (shrunk.status, shrunk.json()["error_code"]) == (400, 40002)
    assert [partition["partition_id"] for partition in proxy.get(f"{path}/partitions").json()["data"]] == [0, 1, 2, 3]
    assert proxy.request("DELETE", path).status == 204
    assert proxy.request("DELETE", path).json() == {
        "error_code": 40403,
        "message": "This server does not host this topic-partition.",
    }


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, 422),
        ({"topic_name": "no spaces allowed"}, 40002),
        ({"topic_name": "t", "replication_factor": 9}, 40002),
        ({"topic_name": "t", "configs": [{"name": "no.such.setting", "value": "1"}]}, 40002),
        ({"topic_name": "t", "configs": [{"name": "retention.ms", "value": "soon"}]}, 40002),
        ({"topic_name": "t", "partitions_count": "many"}, 422),
        ({"topic_name": "t", "partitions_count": 0}, 40002),
    ],
)
def test_topics_that_cannot_be_created(proxy, body, code):
    answer = proxy.post(f"{proxy.cluster}/topics", body)
    assert answer.json()["error_code"] == code, answer.body


@pytest.mark.klamm_topic(partitions=2)
def test_partitions_have_replicas_and_offsets(proxy, topic):
    path = f"{proxy.cluster}/topics/{topic}/partitions"
    proxy.produce(topic, 1)
    partition = proxy.get(f"{path}/1").json()
    assert (partition["kind"], partition["partition_id"]) == ("KafkaPartition", 1)
    [replica] = proxy.get(f"{path}/1/replicas").json()["data"]
    assert (replica["is_leader"], replica["is_in_sync"]) == (True, True)
    assert proxy.get(f"{path}/1/replicas/{replica['broker_id']}").json() == replica
    assert proxy.get(f"{path}/1/replicas/99").status == 404
    offsets = [proxy.get(f"{path}/{index}/offset").json() for index in (0, 1)]
    assert sum(offset["latest_offset"] for offset in offsets) == 1
    assert offsets[0]["earliest_offset"] == 0
    assert proxy.get(f"{path}/-/reassignment").json()["data"] == []
    assert proxy.get(f"{proxy.cluster}/topics/-/partitions/-/reassignment").json()["kind"] == "KafkaReassignmentList"
    for place in ("7", "x", "7/offset", "7/replicas", "7/reassignment"):
        assert proxy.get(f"{path}/{place}").json()["error_code"] == 40403
    assert proxy.get(f"{proxy.cluster}/topics/no-such-topic/partitions").json()["error_code"] == 40403
    replicas = proxy.get(f"{proxy.cluster}/brokers/{replica['broker_id']}/partition-replicas").json()["data"]
    assert topic in [resource["topic_name"] for resource in replicas]
    assert proxy.get(f"{proxy.cluster}/brokers/99").json()["message"] == "Broker 99 cannot be found."
    assert proxy.get(f"{proxy.cluster}/brokers/99/configs").status == 404


def test_settings_of_a_topic_are_changed(proxy, topic):
    path = f"{proxy.cluster}/topics/{topic}/configs"
    before = proxy.get(f"{path}/retention.ms").json()
    assert (before["kind"], before["is_default"], before["topic_name"]) == ("KafkaTopicConfig", True, topic)
    assert proxy.request("PUT", f"{path}/retention.ms", {"value": "1000"}).status == 204
    after = proxy.get(f"{path}/retention.ms").json()
    assert (after["value"], after["is_default"], after["source"]) == ("1000", False, "DYNAMIC_TOPIC_CONFIG")
    assert proxy.request("PUT", f"{path}/retention.ms", {"value": "soon"}).json()["error_code"] == 40002
    assert proxy.request("DELETE", f"{path}/retention.ms").status == 204
    assert proxy.get(f"{path}/retention.ms").json()["value"] == before["value"]
    changes = {"data": [{"name": "cleanup.policy", "value": "compact"}, {"name": "retention.ms", "value": "5"}]}
    assert proxy.post(f"{path}:alter", changes | {"validate_only": True}).status == 204
    assert proxy.get(f"{path}/cleanup.policy").json()["value"] == "delete"
    assert proxy.post(f"{path}:alter", changes).status == 204
    assert proxy.get(f"{path}/cleanup.policy").json()["value"] == "compact"
    changes = {"data": [{"name": "retention.ms", "operation": "DELETE"}, {"name": "nothing", "value": "1"}]}
    refusal = proxy.post(f"{path}:alter", changes)
    assert (refusal.status, refusal.json()["message"].startswith("Config nothing cannot be found")) == (404, True)
    assert proxy.get(f"{path}/retention.ms").json()["value"] == "5", "all changes or none"
    assert proxy.get(f"{path}/nothing").status == 404
    listed = proxy.get(f"{proxy.cluster}/topics/-/configs").json()["data"]
    assert topic in {entry["topic_name"] for entry in listed}
    assert proxy.get(f"{proxy.cluster}/topics/no-such-topic/configs").json()["error_code"] == 40403


def test_settings_of_brokers_are_changed(proxy):
    [resource] = proxy.get(f"{proxy.cluster}/brokers").json()["data"]
    path = f"{proxy.cluster}/brokers/{resource['broker_id']}/configs"
    entries = {entry["name"]: entry for entry in proxy.get(path).json()["data"]}
    assert entries["log.retention.ms"]["kind"] == "KafkaBrokerConfig"
    defaults = f"{proxy.cluster}/broker-configs"
    assert proxy.post(f"{defaults}:alter", {"data": [{"name": "log.retention.ms", "value": "700000"}]}).status == 204
    entry = proxy.get(f"{defaults}/log.retention.ms").json()
    assert (entry["config_type"], entry["value"]) == ("BROKER", "700000")
    assert proxy.get(f"{path}/log.retention.ms").json()["source"] == "DYNAMIC_DEFAULT_BROKER_CONFIG"
    assert proxy.request("DELETE", f"{defaults}/log.retention.ms").status == 204
    assert proxy.request("PUT", f"{defaults}/log.retention.ms", {"value": "800000"}).status == 204
    assert proxy.get(f"{defaults}/log.retention.ms").json()["value"] == "800000"
    assert proxy.request("DELETE", f"{defaults}/log.retention.ms").status == 204
    assert proxy.get(f"{path}/log.retention.ms").json()["source"] != "DYNAMIC_DEFAULT_BROKER_CONFIG"


def test_groups_have_members_and_lag(proxy, topic):
    proxy.produce(topic, *range(10))
    instance = proxy.create_instance(topic, **{"auto.commit.enable": False})
    proxy.post(f"{instance}/subscription", {"topics": [topic]})
    proxy.read_until(instance, 10)
    groups = f"{proxy.cluster}/consumer-groups"
    assert proxy.get(f"{groups}/{topic}/lags").json()["data"] == []
    assert proxy.get(f"{groups}/{topic}/lag-summary").status == 404
    proxy.post(f"{instance}/offsets", {"offsets": [{"topic": topic, "partition": 0, "offset": 3}]})
    group = proxy.get(f"{groups}/{topic}").json()
    assert (group["state"], group["type"], group["is_simple"]) == ("STABLE", "CLASSIC", False)
    assert topic in [resource["consumer_group_id"] for resource in proxy.get(groups).json()["data"]]
    [consumer] = proxy.get(group["consumers"]["related"]).json()["data"]
    assert proxy.get(consumer["metadata"]["self"]).json() == consumer
    [assignment] = proxy.get(consumer["assignments"]["related"]).json()["data"]
    assert proxy.get(assignment["metadata"]["self"]).json() == assignment
    assert proxy.get(assignment["partition"]["related"]).status == 200
    lag = proxy.get(assignment["lag"]["related"]).json()
    assert (lag["current_offset"], lag["log_end_offset"], lag["lag"]) == (4, 10, 6)
    assert lag["consumer_id"] == consumer["consumer_id"]
    assert proxy.get(f"{groups}/{topic}/lags").json()["data"] == [lag]
    summary = proxy.get(group["lag_summary"]["related"]).json()
    assert (summary["max_lag"], summary["total_lag"], summary["max_lag_topic_name"]) == (6, 6, topic)
    proxy.request("DELETE", instance)
    missing = proxy.get(f"{groups}/no-such-group")
    assert (missing.status, missing.json()["message"]) == (404, "Consumer Group no-such-group could not be found.")
    assert proxy.get(f"{groups}/{topic}/consumers/unknown").status == 404
    assert proxy.get(f"{groups}/{topic}/lags/{topic}/partitions/9").status == 404


RULE = {
    "resource_type": "TOPIC",
    "resource_name": "orders",
    "pattern_type": "PREFIXED",
    "principal": "User:alice",
    "host": "*",
    "operation": "READ",
    "permission": "ALLOW",
}


def test_access_rules_are_added_found_and_deleted(secured_proxy):
    path = f"{secured_proxy.cluster}/acls"
    assert secured_proxy.post(path, RULE).status == 201
    more = [RULE | {"operation": "WRITE"}, RULE | {"resource_type": "GROUP", "pattern_type": "LITERAL"}]
    assert secured_proxy.post(f"{path}:batch", {"data": more}).status == 201
    listed = secured_proxy.get(f"{path}?principal=User%3Aalice").json()
    assert listed["kind"] == "KafkaAclList"
    assert len(listed["data"]) == 3
    address = next(rule["metadata"]["self"] for rule in listed["data"] if rule["operation"] == "WRITE")
    [match] = secured_proxy.get(address).json()["data"]
    assert {name: match[name] for name in RULE} == RULE | {"operation": "WRITE"}
    assert secured_proxy.request("DELETE", f"{path}?principal=User%3Aalice").json()["error_code"] == 400
    deleted = secured_proxy.request("DELETE", f"{path}?resource_type=TOPIC&pattern_type=ANY&operation=ANY").json()
    assert len(deleted["data"]) == 2
    assert [rule["resource_type"] for rule in secured_proxy.get(path).json()["data"]] == ["GROUP"]


def test_without_an_authorizer_there_are_no_rules(proxy):
    answer = proxy.get(f"{proxy.cluster}/acls")
    assert (answer.status, answer.json()["error_code"]) == (400, 40002)
