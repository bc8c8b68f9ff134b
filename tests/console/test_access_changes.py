"""Users, quotas, the history of settings, and throttles of reassignments."""

import asyncio

import pytest

from klamm.client.core.reassign_plan import ReplicaMove
from klamm.client.core.reassign_throttle import RATES, REPLICAS, clear_throttle, list_throttled_replicas, set_throttle
from klamm.console.audit import KEPT, AuditEntry, AuditTrail, parse_entry
from klamm.console.clusters import ConsoleCluster
from klamm.console.core.config_history import list_config_changes
from klamm.console.core.quota_forms import describe_entity, entity_fields, parse_entity, parse_limit
from klamm.console.service import ConsoleConfig
from klamm.console.settings import parse_settings
from klamm.model.config_resources import ConfigResource
from klamm.model.ids import TopicPartition
from klamm.testing import unique

from .served import ServedConsole
from .test_pages import make_topic

ACCESS = "/c/test/access"


def clusters_of(console):
    return tuple(link.cluster for link in console.service.links)


# Users


def users_of(broker):
    with broker.admin() as admin:
        users = admin.describe_user_scram_credentials()
    return {name: [credential.mechanism.name for credential in of_user] for name, of_user in users.items()}


def test_a_user_is_added_and_deleted_and_the_password_is_nowhere(broker, console, visit):
    name, password = unique("alice"), "tr0ub4dor-secret"
    form = {"user": name, "mechanism": "SCRAM-SHA-256", "password": password, "again": password}
    assert "can log in with SCRAM-SHA-256" in visit.post(ACCESS, f"{ACCESS}/users", **form)
    assert users_of(broker)[name] == ["SCRAM_SHA_256"]
    assert name in visit.get("/c/test/audit")
    assert password not in visit.get("/c/test/audit")
    assert all(password not in str(entry) for entry in console.service.app.parts.audit.list_entries("test"))
    visit.post(ACCESS, f"{ACCESS}/users/delete", user=name, mechanism="SCRAM-SHA-256")
    assert name not in users_of(broker)


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "", "password": "a", "again": "a"},
        {"user": "User:alice", "password": "a", "again": "a"},
        {"user": "alice", "password": "", "again": ""},
        {"user": "alice", "password": "a", "again": "b"},
        {"user": "alice", "password": "a", "again": "a", "mechanism": "PLAIN"},
    ],
)
def test_a_form_with_a_mistake_changes_nothing(broker, visit, fields):
    before = users_of(broker)
    visit.post(ACCESS, f"{ACCESS}/users", 400, **fields)
    assert users_of(broker) == before


def test_a_console_in_read_only_mode_changes_no_users(broker, console):
    config = ConsoleConfig(clusters_of(console), parse_settings("read_only = true"), interval_s=600)
    with ServedConsole(config) as other:
        other.collect()
        visit = other.visitor()
        try:
            assert "Set the password" not in visit.get(ACCESS)
            response = visit.client.post(f"{ACCESS}/users", data={"user": "eve", "password": "a", "again": "a"})
            assert response.status_code == 403
        finally:
            visit.client.close()
    assert "eve" not in users_of(broker)


# Quotas


def quotas_of(broker, entity):
    with broker.admin() as admin:
        return admin.describe_client_quotas().get(entity)


def test_a_quota_is_set_with_units_and_removed(broker, visit):
    name = unique("bob")
    entity = (("client-id", "app"), ("user", name))
    fields = {"user": name, "client-id": "app", "key": "producer_byte_rate"}
    page = visit.post(ACCESS, f"{ACCESS}/quotas", **fields, value="10MiB")
    assert "producer_byte_rate of client-id app, user " + name + " is 10 MiB/s now." in page
    assert quotas_of(broker, entity) == {"producer_byte_rate": 10 * 2**20}
    assert name in visit.get(ACCESS)
    visit.post(ACCESS, f"{ACCESS}/quotas/delete", **fields)
    assert quotas_of(broker, entity) is None


def test_a_quota_without_an_entity_or_number_is_refused(visit):
    visit.post(ACCESS, f"{ACCESS}/quotas", 400, key="producer_byte_rate", value="1")
    visit.post(ACCESS, f"{ACCESS}/quotas", 400, user="bob", key="request_percentage", value="much")


def test_entities_of_forms():
    assert parse_entity({"user": "bob", "client-id": " ", "ip": ""}) == (("user", "bob"),)
    default = parse_entity({"user": "<default>"})
    assert default == (("user", None),)
    assert parse_entity(entity_fields(default)) == default
    assert describe_entity(default) == "user default"
    with pytest.raises(ValueError, match="without User:"):
        parse_entity({"user": "User:bob"})


@pytest.mark.parametrize(
    ("key", "text", "limit"),
    [
        ("producer_byte_rate", "1KiB/s", 1024),
        ("request_percentage", "12.5", 12.5),
        ("controller_mutation_rate", "5", 5),
    ],
)
def test_limits_of_forms(key, text, limit):
    assert parse_limit(key, text) == limit


@pytest.mark.parametrize(
    ("key", "text"), [("byte_rate", "1"), ("request_percentage", "nan"), ("request_percentage", "inf")]
)
def test_limits_that_are_refused(key, text):
    with pytest.raises(ValueError, match=r"no quota|no number"):
        parse_limit(key, text)


# The history of settings


def entry(time_ms, action, outcome="done", **detail):
    return AuditEntry(time_ms, "anna", "127.0.0.1", "test", action, "orders", outcome, detail)


def test_the_history_has_the_value_before_and_after():
    entries = [
        entry(3, "change setting", setting="retention.ms", before="3600000", value=None),
        entry(2, "change setting", "failed", setting="retention.ms", value="x"),
        entry(1, "create topic", configs={"retention.ms": "3600000"}),
        entry(4, "empty topic"),
        entry(5, "change setting", setting=7),
    ]
    changes = list_config_changes(entries, "orders")
    assert [(change.time_ms, change.before, change.after) for change in changes] == [
        (3, "1h (3600000)", None),
        (1, None, "1h (3600000)"),
    ]
    assert list_config_changes(entries, "payments") == []


def test_a_changed_setting_has_a_history(broker, console, visit):
    topic = make_topic(broker, console, "history")
    settings = f"/c/test/topics/{topic}/settings"
    visit.post(settings + "?all=1", settings, setting="retention.ms", value="1h")
    visit.post(settings + "?all=1", settings, setting="retention.ms", value="2h")
    page = visit.get(settings)
    history = page[page.index("<h2>History</h2>") :]
    assert history.index("2h (7200000)") < history.index("the cluster&#39;s")
    assert "1h (3600000)" in history


def test_the_audit_outlives_the_console(broker, console, visit):
    """The fixture's console writes to console-audit: another one reads it."""
    topic = make_topic(broker, console, "audited")
    settings = f"/c/test/topics/{topic}/settings"
    visit.post(settings + "?all=1", settings, setting="retention.ms", value="1h")
    audited = parse_settings('[audit]\ntopic = "console-audit"')
    with ServedConsole(ConsoleConfig(clusters_of(console), audited, interval_s=600)) as other:
        other.collect()
        again = other.visitor()
        try:
            assert "1h (3600000)" in again.get(settings)
            assert topic in again.get("/c/test/audit")
        finally:
            again.client.close()


def test_a_login_is_a_record_of_the_topic(broker):
    topic, cluster = unique("login-audit"), ConsoleCluster("test", broker.bootstrap)
    settings = parse_settings(f'[audit]\ntopic = "{topic}"')
    with ServedConsole(ConsoleConfig((cluster,), settings, interval_s=600)) as console:
        parts = console.service.app.parts

        async def log_in():
            parts.audit.write_login(parts.links.values(), "mallory", "10.0.0.9", "Name or password is wrong.")

        asyncio.run_coroutine_threadsafe(log_in(), console._loop).result(30)
    # The end of the console waits for the record.
    with broker.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        while not (records := consumer.poll(1)):
            pass
    (entry,) = [parse_entry(record.value, "test") for record in records]
    assert (entry.person, entry.action, entry.outcome, entry.cluster) == ("mallory", "login failed", "refused", "")


@pytest.mark.parametrize(
    "data", [None, b"", b"[]", b"{}", b'{"time_ms": "x"}', b"\xff", b"[" * 100_000, b'{"outcome": "done", "detail": 1}']
)
def test_other_records_of_the_audit_topic_are_passed_over(data):
    assert parse_entry(data, "test") is None


def test_entries_of_this_run_are_not_doubled():
    trail = AuditTrail(None, lambda: 0)
    trail._merge([entry(2, "empty topic")])
    trail._merge([entry(2, "empty topic"), entry(1, "create topic"), entry(3, "delete topic")])
    assert [kept.time_ms for kept in trail.list_entries("test")] == [3, 2, 1]


def test_changes_of_one_cluster_do_not_push_out_those_of_another():
    trail = AuditTrail(None, lambda: 0)
    trail.note("quiet", "anna", "127.0.0.1", "create topic", "orders", "done")
    for _ in range(KEPT + 1):
        trail.note("busy", "anna", "127.0.0.1", "create topic", "orders", "done")
    assert [kept.cluster for kept in trail.list_entries("quiet")] == ["quiet"]
    assert len(trail.list_entries("busy")) == KEPT


# Throttles


MOVES = [
    ReplicaMove("a", 0, (1, 2), (2, 3), 10),
    ReplicaMove("a", 1, (1,), (1, 3), 5),
    ReplicaMove("b", 0, (1,), (1,), 0),
]


def test_replicas_that_may_lead_and_those_that_are_new_are_throttled():
    assert list_throttled_replicas(MOVES) == {
        "a": {REPLICAS[0]: "0:1,0:2,1:1", REPLICAS[1]: "0:3,1:3"},
        "b": {REPLICAS[0]: "0:1"},
    }


def test_a_throttle_is_set_and_cleared_on_the_same_resources():
    changes = set_throttle(MOVES, [1, 2], 1024)
    assert changes[ConfigResource.broker(1)] == dict.fromkeys(RATES, "1024")
    cleared = clear_throttle(["a", "b"], [1, 2])
    assert set(cleared) == set(changes)
    assert all(value is None for settings in cleared.values() for value in settings.values())


def keep_plan(console, visit, topic):
    """Keep a plan as a page does: one broker has none to show."""
    visit.get("/c/test")
    session = visit.client.cookies["klamm_session"]
    return console.service.app.plans.keep(session, ("test", "reassignment"), {TopicPartition(topic, 0): [1]})


def test_a_throttle_is_shown_and_removed(broker, console, visit):
    topic = make_topic(broker, console, "throttled", partitions=1)
    page = "/c/test/reassignments"
    form = {"plan": keep_plan(console, visit, topic), "throttle": "50MiB"}
    assert "at most 50 MiB a second" in visit.post("/c/test/new-topic", page, **form).replace("50MiB", "50 MiB")
    assert "Remove the throttle" in visit.get(page)
    visit.post(page, f"{page}/unthrottle")
    assert "Remove the throttle" not in visit.get(page)
    with broker.admin() as admin:
        resource = ConfigResource.topic(topic)
        entries = admin.describe_configs([resource], keys=REPLICAS)[resource]
    assert all(entry.source.name != "DYNAMIC_TOPIC_CONFIG" for entry in entries.values())


def test_a_throttle_that_is_no_size_starts_nothing(broker, console, visit):
    topic = make_topic(broker, console, "throttled", partitions=1)
    plan = keep_plan(console, visit, topic)
    for text in ("fast", "0"):
        visit.post("/c/test/new-topic", "/c/test/reassignments", 400, plan=plan, throttle=text)
