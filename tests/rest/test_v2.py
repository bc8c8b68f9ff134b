"""v2 over a broker: topics, records in, consumer instances, records out."""

import base64
import json
import socket
import threading

import pytest

from klamm.client import Consumer

from .conftest import wait_until

JSON_RECORDS = "application/vnd.kafka.json.v2+json"


def test_topics_and_partitions_are_described(proxy, topic):
    assert topic in proxy.get("/topics").json()
    described = proxy.get(f"/topics/{topic}").json()
    assert described["name"] == topic
    assert "retention.ms" in described["configs"]
    [partition] = described["partitions"]
    assert partition["replicas"] == [{"broker": partition["leader"], "leader": True, "in_sync": True}]
    assert proxy.get(f"/topics/{topic}/partitions").json() == [partition]
    assert proxy.get(f"/topics/{topic}/partitions/0").json() == partition
    assert proxy.get("/brokers").json() == {"brokers": [partition["leader"]]}
    proxy.produce(topic, 1, 2)
    assert proxy.get(f"/topics/{topic}/partitions/0/offsets").json() == {"beginning_offset": 0, "end_offset": 2}


def test_what_does_not_exist_is_not_found(proxy, topic):
    for path in ("/topics/no-such-topic", "/topics/no-such-topic/partitions", "/topics/no-such-topic/partitions/0"):
        answer = proxy.get(path)
        assert (answer.status, answer.json()) == (404, {"error_code": 40401, "message": "Topic not found."})
    for path in (f"/topics/{topic}/partitions/9", f"/topics/{topic}/partitions/x"):
        answer = proxy.get(path)
        assert (answer.status, answer.json()) == (404, {"error_code": 40402, "message": "Partition not found."})
    body = {"records": [{"value": 1}]}
    assert proxy.post("/topics/no-such-topic", body, JSON_RECORDS).json()["error_code"] == 40401
    assert proxy.post(f"/topics/{topic}/partitions/9", body, JSON_RECORDS).json()["error_code"] == 40402
    assert proxy.get("/nothing").status == 404
    assert proxy.request("DELETE", "/topics").status == 405


@pytest.mark.klamm_topic(partitions=3)
def test_records_are_produced_in_order(proxy, topic):
    body = {"records": [{"key": "k", "value": number, "partition": 2} for number in range(5)]}
    answer = proxy.post(f"/topics/{topic}", body, JSON_RECORDS)
    assert answer.headers["content-type"] == "application/vnd.kafka.v2+json"
    assert answer.json() == {
        "offsets": [{"partition": 2, "offset": offset, "error_code": None, "error": None} for offset in range(5)],
        "key_schema_id": None,
        "value_schema_id": None,
    }
    answer = proxy.post(f"/topics/{topic}/partitions/1", {"records": [{"value": "x"}]}, JSON_RECORDS)
    assert answer.json()["offsets"][0]["partition"] == 1
    with Consumer(bootstrap_servers=proxy.bootstrap) as consumer:
        consumer.assign([(topic, 2)])
        consumer.seek_to_beginning()
        records = []
        while len(records) < 5:
            records += consumer.poll(5)
    assert [(record.key, record.value) for record in records] == [(b'"k"', b"%d" % number) for number in range(5)]


def test_one_record_may_fail_alone(proxy, topic):
    body = {"records": [{"value": 1}, {"value": 2, "partition": 7}, {"value": 3}]}
    answer = proxy.post(f"/topics/{topic}", body, JSON_RECORDS)
    assert answer.status == 200
    first, second, third = answer.json()["offsets"]
    assert (first["offset"], third["offset"]) == (0, 1)
    assert (second["error_code"], second["offset"]) == (2, None)
    assert "no partition 7" in second["error"]


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        ({"records": [{"value": "Zm9v"}]}, "application/vnd.kafka.binary.v2+json", 200),
        ({"records": [{"value": "Zm9v"}]}, "application/vnd.kafka.v2+json", 200),
        ({"records": [{"value": "Zm9v"}]}, "application/json; charset=utf-8", 200),
        ({"records": [{"value": "not base64"}]}, "application/vnd.kafka.binary.v2+json", 400),
        ({"records": [{"value": 1}]}, "application/xml", 415),
        ({"records": [{"value": 1}]}, "application/vnd.kafka.xml.v2+json", 415),
        ({"records": []}, JSON_RECORDS, 422),
        (b"{", JSON_RECORDS, 400),
        (b"[]", JSON_RECORDS, 400),
        (b"", JSON_RECORDS, 422),
        ({"records": [{"value": 1}]}, "application/vnd.kafka.avro.v2+json", 422),
        ({"records": [{"value": 1}], "value_schema_id": 1}, "application/vnd.kafka.avro.v2+json", 422),
    ],
)
def test_a_body_has_the_format_of_its_media_type(proxy, topic, body, content_type, status):
    answer = proxy.post(f"/topics/{topic}", body, content_type)
    assert answer.status == status, answer.body
    if status != 200:
        assert str(answer.json()["error_code"]).startswith(str(status))


def test_the_answer_has_a_media_type_that_the_client_takes(proxy):
    for accept, content_type in (
        ("*/*", "application/vnd.kafka.v2+json"),
        ("application/json", "application/json"),
        ("text/html, application/vnd.kafka+json;q=0.5", "application/vnd.kafka+json"),
    ):
        assert proxy.get("/topics", accept=accept).headers["content-type"] == content_type
    assert proxy.get("/topics", accept="text/html").status == 406
    assert proxy.get("/topics", accept="*").status == 200


def test_a_body_that_is_too_long_is_refused_before_it_is_read(proxy):
    with socket.create_connection(proxy.address, timeout=30) as client:
        client.sendall(
            b"POST /topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 99999999999\r\n\r\n{"
        )
        assert client.recv(100).startswith(b"HTTP/1.1 413")


def test_an_endless_body_is_cut(proxy):
    """Chunks without a declared length: refused at the limit, not kept in memory."""
    with socket.create_connection(proxy.address, timeout=30) as client:
        client.sendall(
            b"POST /topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        sent = 0
        try:
            while sent < 64 << 20:
                client.sendall(chunk)
                sent += len(chunk)
        except OSError:
            pass  # the proxy has answered and closed
        assert sent < 64 << 20


# Consumer instances


def test_an_instance_reads_what_was_produced(proxy, topic):
    proxy.produce(topic, {"a": 1}, None, [1, 2.5], "text")
    instance = proxy.create_instance(topic)
    assert proxy.get(f"{instance}/subscription").json() == {"topics": []}
    assert proxy.post(f"{instance}/subscription", {"topics": [topic]}).status == 204
    assert proxy.get(f"{instance}/subscription").json() == {"topics": [topic]}
    records = proxy.read_until(instance, 4, accept=JSON_RECORDS)
    assert [record["value"] for record in records] == [{"a": 1}, None, [1, 2.5], "text"]
    assert [record["offset"] for record in records] == [0, 1, 2, 3]
    assert all(record["topic"] == topic and record["partition"] == 0 for record in records)
    assert proxy.get(f"{instance}/assignments").json() == {"partitions": [{"topic": topic, "partition": 0}]}
    answer = proxy.get(f"{instance}/records?timeout=10", accept="application/vnd.kafka.binary.v2+json")
    assert (answer.status, answer.json()["error_code"]) == (406, 40601)
    assert proxy.request("DELETE", instance).status == 204
    assert proxy.request("DELETE", instance).json()["error_code"] == 40403
    assert proxy.get(f"{instance}/records").json()["error_code"] == 40403


def test_offsets_are_committed_and_read(proxy, topic):
    proxy.produce(topic, *range(10))
    instance = proxy.create_instance(topic, **{"auto.commit.enable": "false"})
    partitions = {"partitions": [{"topic": topic, "partition": 0}]}
    assert proxy.post(f"{instance}/assignments", partitions).status == 204
    assert proxy.request("GET", f"{instance}/offsets", partitions).json() == {"offsets": []}
    assert len(proxy.read_until(instance, 10)) == 10
    committed = {"offsets": [{"topic": topic, "partition": 0, "offset": 3, "metadata": "m"}]}
    assert proxy.post(f"{instance}/offsets", committed).status == 204
    # The last processed record was named: the next one is committed.
    assert proxy.request("GET", f"{instance}/offsets", partitions).json() == {
        "offsets": [{"topic": topic, "partition": 0, "offset": 4, "metadata": "m"}]
    }
    assert proxy.post(f"{instance}/offsets").status == 204
    [offset] = proxy.request("GET", f"{instance}/offsets", partitions).json()["offsets"]
    assert offset["offset"] == 10
    proxy.request("DELETE", instance)


def test_offsets_of_what_does_not_exist_are_refused(proxy, topic, klamm_name):
    # Less than the minute for which a consumer repeats a commit: the wait must not end by that limit.
    limit_s = 30
    instance = proxy.create_instance(topic, **{"auto.commit.enable": "false"})
    there = {"topic": topic, "partition": 0, "offset": 3}
    for missing, code in (
        ({"topic": klamm_name(), "partition": 0, "offset": 3}, 40401),
        ({"topic": topic, "partition": 9, "offset": 3}, 40402),
    ):
        answer = proxy.post(f"{instance}/offsets", {"offsets": [there, missing]}, limit_s=limit_s)
        assert (answer.status, answer.json()["error_code"]) == (404, code)
        partitions = {"partitions": [missing]}
        assert proxy.post(f"{instance}/assignments", partitions).status == 204
        assert proxy.post(f"{instance}/offsets", limit_s=limit_s).status == 204, "nothing was read"
    # Of the partition only: a consumer that is assigned a topic may have created it by now, as Kafka's consumers do.
    body = {"timestamps": [missing | {"timestamp": "2021-02-05T19:14:42Z"}]}
    answer = proxy.post(f"{instance}/positions", body, limit_s=limit_s)
    assert (answer.status, answer.json()["error_code"]) == (404, 40402)
    several = [{"topic": klamm_name(), "partition": 0, "offset": 3} for _ in range(2)]
    answer = proxy.post(f"{instance}/offsets", {"offsets": several}, limit_s=limit_s)
    assert (answer.status, answer.json()["error_code"]) == (404, 40401)
    # Nothing of a refused request is committed.
    assert proxy.request("GET", f"{instance}/offsets", {"partitions": [there]}).json() == {"offsets": []}
    proxy.request("DELETE", instance)


def test_what_was_read_of_a_deleted_topic_is_not_committed(proxy, topic):
    proxy.produce(topic, 1)
    instance = proxy.create_instance(topic, **{"auto.commit.enable": "false"})
    proxy.post(f"{instance}/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    assert len(proxy.read_until(instance, 1)) == 1
    assert proxy.request("DELETE", f"{proxy.cluster}/topics/{topic}").status == 204
    wait_until(lambda: proxy.get(f"/topics/{topic}").status == 404)
    answer = proxy.post(f"{instance}/offsets", limit_s=30)
    assert (answer.status, answer.json()["error_code"]) == (404, 40401)
    proxy.request("DELETE", instance)


def test_positions_are_set_by_offset_by_time_and_to_the_ends(proxy, topic):
    proxy.produce(topic, *range(10))
    instance = proxy.create_instance(topic)
    where = {"topic": topic, "partition": 0}
    answer = proxy.post(f"{instance}/positions", {"offsets": [where | {"offset": 5}]})
    assert (answer.status, answer.json()["error_code"]) == (409, 40903)
    proxy.post(f"{instance}/assignments", {"partitions": [where]})
    assert proxy.post(f"{instance}/positions", {"offsets": [where | {"offset": 7}]}).status == 204
    assert [record["value"] for record in proxy.read_until(instance, 3)] == [7, 8, 9]
    assert proxy.post(f"{instance}/positions/beginning", {"partitions": [where]}).status == 204
    assert [record["value"] for record in proxy.read_until(instance, 10)] == list(range(10))
    assert proxy.post(f"{instance}/positions/end", {"partitions": [where]}).status == 204
    assert proxy.get(f"{instance}/records?timeout=200").json() == []
    times = {"timestamps": [where | {"timestamp": "2001-01-01T00:00:00Z"}]}
    assert proxy.post(f"{instance}/positions", times).status == 204
    assert proxy.read_until(instance, 10)[0]["value"] == 0
    times = {"timestamps": [where | {"timestamp": "2199-01-01T00:00:00Z"}]}
    assert proxy.post(f"{instance}/positions", times).status == 204
    assert proxy.get(f"{instance}/records?timeout=200").json() == []
    proxy.request("DELETE", instance)


def test_a_read_is_bounded_by_bytes_and_loses_nothing(proxy, topic):
    proxy.produce(topic, *("x" * 100 for _ in range(10)))
    instance = proxy.create_instance(topic, **{"fetch.min.bytes": 1})
    proxy.post(f"{instance}/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    offsets, sizes = [], []
    while len(offsets) < 10:
        records = proxy.get(f"{instance}/records?timeout=5000&max_bytes=250").json()
        sizes.append(len(records))
        offsets += [record["offset"] for record in records]
    assert offsets == list(range(10))
    assert max(sizes) <= 2
    # A record that is larger than the limit is returned alone, not never.
    proxy.post(f"{instance}/positions/beginning", {"partitions": [{"topic": topic, "partition": 0}]})
    assert len(proxy.get(f"{instance}/records?timeout=5000&max_bytes=1").json()) == 1
    assert proxy.get(f"{instance}/records?max_bytes=x").status == 400
    proxy.request("DELETE", instance)


def test_a_record_of_another_format_is_named_and_not_lost(proxy, topic):
    proxy.produce(topic, 1)
    proxy.produce(topic, base64.b64encode(b"\xff").decode(), embedded="binary")
    proxy.produce(topic, 3)
    instance = proxy.create_instance(topic)
    where = {"topic": topic, "partition": 0}
    proxy.post(f"{instance}/assignments", {"partitions": [where]})
    assert [record["value"] for record in proxy.read_until(instance, 1)] == [1]
    for _ in range(2):
        answer = proxy.get(f"{instance}/records?timeout=1000")
        assert (answer.status, answer.json()["error_code"]) == (422, 42203)
        assert f"{topic}-0 at offset 1" in answer.json()["message"]
    proxy.post(f"{instance}/positions", {"offsets": [where | {"offset": 2}]})
    assert [record["value"] for record in proxy.read_until(instance, 1)] == [3]
    proxy.request("DELETE", instance)


def test_one_way_to_get_partitions_at_a_time(proxy, topic):
    instance = proxy.create_instance(topic)
    partitions = {"partitions": [{"topic": topic, "partition": 0}]}
    assert proxy.get(f"{instance}/records?timeout=10").json()["error_code"] == 40903
    both = proxy.post(f"{instance}/subscription", {"topics": [topic], "topic_pattern": "x"})
    assert (both.status, both.json()["error_code"]) == (409, 40903)
    assert proxy.post(f"{instance}/subscription", {"topics": [topic]}).status == 204
    assert proxy.post(f"{instance}/assignments", partitions).json()["error_code"] == 40903
    assert proxy.request("DELETE", f"{instance}/subscription").status == 204
    assert proxy.get(f"{instance}/subscription").json() == {"topics": []}
    assert proxy.post(f"{instance}/assignments", partitions).status == 204
    assert proxy.post(f"{instance}/subscription", {"topic_pattern": "x.*"}).json()["error_code"] == 40903
    proxy.request("DELETE", instance)


def test_a_pattern_subscribes_to_all_topics_that_it_matches(proxy, klamm_broker, klamm_name):
    prefix = klamm_name("pattern")
    topics = [klamm_broker.topic(f"{prefix}-{number}") for number in range(2)]
    for name in topics:
        proxy.produce(name, name)
    instance = proxy.create_instance(prefix)
    assert proxy.post(f"{instance}/subscription", {"topic_pattern": f"{prefix}.*"}).status == 204
    assert sorted(record["value"] for record in proxy.read_until(instance, 2)) == sorted(topics)
    assert sorted(proxy.get(f"{instance}/subscription").json()["topics"]) == sorted(topics)
    proxy.request("DELETE", instance)


def test_names_of_instances_are_taken_once(proxy, klamm_name):
    group = klamm_name("group")
    answer = proxy.post(f"/consumers/{group}", {"name": "a b"})
    assert answer.json() == {"instance_id": "a b", "base_uri": f"{proxy.url}/consumers/{group}/instances/a%20b"}
    answer = proxy.post(f"/consumers/{group}", {"name": "a b"})
    assert (answer.status, answer.json()["error_code"]) == (409, 40902)
    assert proxy.post(f"/consumers/{group}", {"fetch.min.bytes": -10}).json()["error_code"] == 42204
    assert proxy.post(f"/consumers/{group}", {"format": "avro"}).json()["error_code"] == 42205
    assert proxy.request("DELETE", f"/consumers/{group}/instances/a%20b").status == 204


def test_a_client_that_leaves_while_it_waits_loses_nothing(proxy, topic):
    proxy.produce(topic, 1)
    instance = proxy.create_instance(topic, **{"fetch.min.bytes": 1000})
    proxy.post(f"{instance}/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    with socket.create_connection(proxy.address, timeout=30) as client:
        # It has the record, and waits for the minimum of bytes.
        client.sendall(f"GET {instance}/records?timeout=120000 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        client.settimeout(1)
        with pytest.raises(TimeoutError):
            client.recv(1)
    records = []
    while not records:
        records = proxy.get(f"{instance}/records?timeout=500").json()
    assert [record["value"] for record in records] == [1]
    proxy.request("DELETE", instance)


def test_members_of_a_group_share_its_partitions(proxy, klamm_broker, klamm_name):
    topic = klamm_broker.topic(klamm_name("shared"), partitions=2)
    group = klamm_name("group")
    instances = [proxy.create_instance(group, **{"fetch.min.bytes": 1}) for _ in range(2)]
    for instance in instances:
        proxy.post(f"{instance}/subscription", {"topics": [topic]})
    for number in range(20):
        proxy.produce(topic, number, number)
    values = []
    lock = threading.Lock()

    def read(instance):
        for _ in range(200):
            records = proxy.get(f"{instance}/records?timeout=300").json()
            with lock:
                values.extend(record["value"] for record in records)
                if len(set(values)) == 20:
                    return

    threads = [threading.Thread(target=read, args=(instance,)) for instance in instances]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(values) == set(range(20))
    assigned = [proxy.get(f"{instance}/assignments").json()["partitions"] for instance in instances]
    assert sorted(place["partition"] for places in assigned for place in places) == [0, 1]
    for instance in instances:
        proxy.request("DELETE", instance)


def test_json_of_answers_is_json(proxy, topic):
    value = {"quote": '"', "umlaut": "ä", "line": "\n", "emoji": "\U0001f600"}
    proxy.produce(topic, value)
    instance = proxy.create_instance(topic)
    proxy.post(f"{instance}/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    [record] = proxy.read_until(instance, 1)
    assert record["value"] == value
    assert json.dumps(record)
    proxy.request("DELETE", instance)
