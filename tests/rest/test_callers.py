"""Requests that act with the caller's login: credentials, how long clients are kept, and the cluster's ACLs."""

import base64
import json
import socket
import time

import pytest
from click.testing import CliRunner

from harness.inprocess import NodeThread
from klamm.cli.rest import rest
from klamm.client import Admin
from klamm.client.admin.acl_types import AclBinding
from klamm.http.refusals import HttpRefusal
from klamm.model.acls import AclOperation, AclResourceType
from klamm.rest.callers import NewestToken
from klamm.rest.core.callers import CallerEntry, CallerLogin, CallerTable, parse_authorization
from klamm.security.core.bearer_claims import format_unsecured
from klamm.server.boot.config_checks import STANDARD_AUTHORIZER

from .conftest import running_proxy, wait_until

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
UNSECURED = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
)


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def bearer(subject, seconds=3600, **claims):
    now = time.time()
    return "Bearer " + format_unsecured({"sub": subject, "iat": now, "exp": now + seconds} | claims)


# Credentials


def test_basic_and_bearer_headers_are_credentials():
    ada = parse_authorization(basic("ada", "pass:word"))
    assert (str(ada.principal), ada.user, ada.secret.reveal(), ada.expires_s) == ("User:ada", "ada", "pass:word", None)
    token = parse_authorization(bearer("ada", iss="https://idp"))
    assert (str(token.principal), token.is_token) == ("Token:https://idp/ada", True)
    assert not token.has_expired(time.time())
    assert token.has_expired(time.time() + 3601)
    assert "pass" not in repr(ada)
    opaque, other = parse_authorization("bearer abc"), parse_authorization("Bearer abd")
    assert opaque.principal != other.principal
    assert "abc" not in str(opaque.principal)


@pytest.mark.parametrize(
    "header",
    ["", "Basic", "Basic !", basic("", "x"), basic("ada", ""), basic("a\0b", "c"), "Digest x", "Bearer ", "Bearer a b"]
    + ["Basic " + base64.b64encode(text).decode() for text in (b"ada", b"\xff:x")]
    + ["Bearer " + "x" * 100_000],
)
def test_other_headers_are_none(header):
    assert parse_authorization(header) is None


def test_a_fingerprint_is_of_scheme_user_and_secret():
    headers = [basic("a", "b"), basic("a", "c"), basic("b", "b"), "Bearer b"]
    prints = {parse_authorization(header).fingerprint(b"key") for header in headers}
    assert len(prints) == 4
    assert parse_authorization(basic("a", "b")).fingerprint(b"key") in prints
    assert parse_authorization(basic("a", "b")).fingerprint(b"other") not in prints


def test_settings_of_a_caller_have_nothing_of_the_proxys_login():
    own = {
        "bootstrap.servers": "one:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": "secret",
        "sasl_username": "proxy",
        "ssl.truststore.location": "ca.pem",
    }
    credentials = parse_authorization(basic("ada", "word"))
    assert CallerLogin().settings(own, credentials) == {
        "bootstrap.servers": "one:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "ada",
        "sasl.password": "word",
        "ssl.truststore.location": "ca.pem",
    }
    login = CallerLogin("two:2", "SCRAM-SHA-512")
    assert login.settings({}, credentials)["security.protocol"] == "SASL_PLAINTEXT"
    assert login.settings({"security.protocol": "ssl"}, credentials)["security.protocol"] == "SASL_SSL"
    assert login.settings(own, credentials)["bootstrap.servers"] == "two:2"
    assert login.settings(own, credentials)["sasl.mechanism"] == "SCRAM-SHA-512"
    assert CallerLogin().settings({"sasl.mechanism": "OAUTHBEARER"}, credentials)["sasl.mechanism"] == "PLAIN"
    token = CallerLogin().settings(own, parse_authorization("Bearer t"), "provider")
    assert (token["sasl.mechanism"], token["sasl.oauth.token.provider"]) == ("OAUTHBEARER", "provider")
    assert "sasl.password" not in token


def test_the_newest_token_of_a_subject_is_used():
    old, new = parse_authorization(bearer("ada", 60)), parse_authorization(bearer("ada", 600))
    newest = NewestToken(old)
    newest.offer(new)
    assert newest.token() == (new.secret.reveal(), new.expires_s)
    newest.offer(old)
    assert newest.token()[0] == new.secret.reveal()
    assert NewestToken(parse_authorization("Bearer t")).token() == "t"


# How long clients are kept


def entry(name, now_ms=0, header=None):
    credentials = parse_authorization(header or basic(name, "word"))
    return CallerEntry(name.encode(), credentials, name, now_ms, now_ms)


def test_idle_clients_expire_and_those_in_use_do_not():
    table = CallerTable(10, 1000)
    idle, used = entry("idle"), entry("used")
    table.add(idle)
    table.add(used)
    table.begin_use(used)
    assert table.remove_expired(999, 0) == []
    assert table.remove_expired(1000, 0) == [idle]
    table.end_use(used, 1500)
    assert table.remove_expired(2499, 0) == []
    assert table.remove_expired(2500, 0) == [used]
    assert not table.remove(used)


def test_clients_of_a_token_end_with_it():
    table = CallerTable(10, 10**9)
    caller = entry("t", header=bearer("ada", 60))
    table.add(caller)
    assert table.remove_expired(0, time.time()) == []
    assert table.remove_expired(0, time.time() + 61) == [caller]


def test_the_longest_unused_clients_make_room():
    table = CallerTable(2, 1000)
    first, second, third = entry("a"), entry("b"), entry("c")
    assert table.add(first) is None
    assert table.add(second) is None
    table.begin_use(first)
    table.end_use(first, 1)
    assert table.add(third) is second
    assert table.find(b"b") is None
    table.begin_use(first)
    table.begin_use(third)
    with pytest.raises(HttpRefusal) as refusal:
        table.add(second)
    assert refusal.value.error_code == 42901
    assert table.remove_all() == [first, third]
    assert len(table) == 0


# Over a node with ACLs


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with NodeThread(
        tmp_path_factory.mktemp("secured"),
        f"authorizer.class.name={STANDARD_AUTHORIZER}",
        "super.users=User:ANONYMOUS",
        "listeners=PLAINTEXT://127.0.0.1:0,SASL://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
        "listener.name.sasl.sasl.enabled.mechanisms=PLAIN,OAUTHBEARER",
        f'listener.name.sasl.plain.sasl.jaas.config={PLAIN} user_ada="one" user_bob="two";',
        f"listener.name.sasl.oauthbearer.sasl.jaas.config={BEARER};",
        f"listener.name.sasl.oauthbearer.sasl.server.callback.handler.class={UNSECURED}",
    ) as running:
        yield running


@pytest.fixture(scope="module")
def admin(node):
    with Admin(bootstrap_servers=f"127.0.0.1:{node.port}") as client:
        for topic in ("ada-orders", "bob-orders"):
            client.create_topic(topic)
        allow = [(AclResourceType.TOPIC, "ada-orders"), (AclResourceType.GROUP, "ada-group")]
        client.create_acls([AclBinding(kind, name, "User:ada", AclOperation.ALL) for kind, name in allow])
        yield client


@pytest.fixture(scope="module")
def proxy(node, admin):
    login = CallerLogin(f"127.0.0.1:{node.node.addresses['SASL'][1]}")
    with running_proxy(f"127.0.0.1:{node.port}", caller_login=login, callers_max=3) as running:
        yield running


ADA, BOB = basic("ada", "one"), basic("bob", "two")
JSON_V2 = "application/vnd.kafka.json.v2+json"


def produce(proxy, topic, value, authorization):
    body = {"records": [{"value": value}]}
    return proxy.post(f"/topics/{topic}", body, JSON_V2, authorization=authorization)


def test_requests_need_a_login_that_the_cluster_accepts(proxy):
    for headers in ({}, {"authorization": basic("ada", "wrong")}, {"authorization": "Digest x"}):
        answer = proxy.get("/topics", **headers)
        assert (answer.status, answer.json()["error_code"]) == (401, 40101)
        assert "Basic" in answer.headers["www-authenticate"] or "Bearer" in answer.headers["www-authenticate"]
    assert proxy.get("/topics", authorization=bearer("ada", -5)).status == 401
    assert proxy.get("/health/ready").status == 200
    assert proxy.get("/openapi.json").status == 200
    assert proxy.get("/metrics").status == 401


def test_the_acls_of_the_cluster_decide(proxy):
    assert proxy.get("/topics", authorization=ADA).json() == ["ada-orders"]
    assert proxy.get("/topics", authorization=BOB).json() == []
    assert produce(proxy, "ada-orders", 1, ADA).json()["offsets"][0]["error_code"] is None
    assert produce(proxy, "bob-orders", 1, ADA).status == 403
    assert produce(proxy, "ada-orders", 1, BOB).status == 403
    topics = f"{proxy.cluster}/topics"
    assert proxy.post(topics, {"topic_name": "new"}, authorization=ADA).json()["error_code"] == 40301
    stream = json.dumps({"value": {"type": "JSON", "data": 2}}).encode()
    records = f"{topics}/ada-orders/records"
    assert proxy.post(records, stream, authorization=ADA).lines()[0]["error_code"] == 200
    assert proxy.post(records, stream, authorization=BOB).status == 403
    assert proxy.get(f"{proxy.cluster}/acls", authorization=BOB).status == 403


def test_tokens_are_passed_on(proxy, admin):
    token = bearer("carl")
    assert proxy.get("/topics", authorization=token).json() == []
    kind = AclResourceType.TOPIC
    admin.create_acls([AclBinding(kind, "bob-orders", "User:carl", AclOperation.WRITE)])
    wait_until(lambda: proxy.get("/topics", authorization=token).json() == ["bob-orders"])
    assert produce(proxy, "bob-orders", 1, token).json()["offsets"][0]["error_code"] is None
    assert produce(proxy, "ada-orders", 1, token).status == 403


def test_consumer_instances_belong_to_their_caller(proxy):
    produce(proxy, "ada-orders", {"n": 1}, ADA)
    settings = {"name": "one", "format": "json", "auto.offset.reset": "earliest", "fetch.min.bytes": 1}
    created = proxy.post("/consumers/ada-group", settings, authorization=ADA)
    assert created.status == 200, created.body
    instance = created.json()["base_uri"].removeprefix(proxy.url)
    subscription = {"topics": ["ada-orders"]}
    assert proxy.post(f"{instance}/subscription", subscription, authorization=BOB).json()["error_code"] == 40403
    assert proxy.post(f"{instance}/subscription", subscription, authorization=ADA).status == 204
    records = proxy.read_until(instance, 1, authorization=ADA)
    assert {record["topic"] for record in records} == {"ada-orders"}
    assert proxy.request("DELETE", instance, authorization=ADA).status == 204
    forbidden = proxy.post("/consumers/bob-group", settings, authorization=BOB).json()
    instance = forbidden["base_uri"].removeprefix(proxy.url)
    proxy.post(f"{instance}/subscription", {"topics": ["ada-orders"]}, authorization=BOB)
    assert proxy.get(f"{instance}/records?timeout=5000", authorization=BOB).json()["error_code"] == 40301
    proxy.request("DELETE", instance, authorization=BOB)


def test_callers_share_clients_and_give_way_to_others(proxy):
    table = proxy.service.callers.table
    for caller in (ADA, ADA, BOB):
        assert proxy.get("/brokers", authorization=caller).status == 200
    for number in range(5):
        assert proxy.get("/brokers", authorization=bearer(f"user-{number}")).status == 200
        assert len(table) <= 3
    assert proxy.get("/brokers", authorization=ADA).status == 200
    assert "klamm_rest_callers 3" in proxy.get("/metrics", authorization=ADA).body.decode()


def test_a_login_is_verified_again(proxy, node):
    callers = proxy.service.callers
    assert proxy.get("/brokers", authorization=BOB).status == 200
    caller = next(entry for entry in callers.table._entries.values() if str(entry.credentials.principal) == "User:bob")
    caller.verified_ms -= 10**9
    assert proxy.get("/brokers", authorization=BOB).status == 200
    assert caller.verified_ms > 0
    # As if the password had changed: the connections that are open would still work.
    caller.verified_ms -= 10**9
    caller.credentials = parse_authorization(basic("bob", "old"))
    assert proxy.get("/brokers", authorization=BOB).status == 401
    wait_until(lambda: caller.clients.closed)
    assert proxy.get("/brokers", authorization=BOB).status == 200


def test_a_stream_keeps_the_clients_of_its_caller(proxy):
    table = proxy.service.callers.table
    with socket.create_connection(proxy.address, timeout=60) as connection:
        head = f"POST {proxy.cluster}/topics/ada-orders/records HTTP/1.1\r\nHost: localhost\r\nAuthorization: {ADA}\r\n"
        connection.sendall(f"{head}Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        record = b'{"value":{"type":"JSON","data":1}}'
        connection.sendall(b"%x\r\n%s\r\n" % (len(record), record))
        wait_until(lambda: any(entry.uses for entry in table._entries.values()))
        assert table.remove_expired(10**15, 0.0) is not None
        caller = next(entry for entry in table._entries.values() if entry.uses)
        assert not caller.clients.closed
        connection.sendall(b"0\r\n\r\n")
        answer = b""
        while b"0\r\n\r\n" not in answer:
            answer += connection.recv(65536)
        assert b'"error_code":200' in answer
    wait_until(lambda: not caller.uses)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--rest-authorization", "--authfile", __file__], "the cluster checks logins"),
        (["--sasl-bootstrap-uri", "one:1"], "need --rest-authorization"),
        (["--caller-sasl-mechanism", "PLAIN"], "need --rest-authorization"),
        (["--rest-authorization", "--sasl-bootstrap-uri", "one"], "write HOST:PORT"),
    ],
)
def test_options_that_exclude_each_other(arguments, reason):
    refused = CliRunner().invoke(rest, arguments)
    assert refused.exit_code == 2
    assert reason in refused.output
