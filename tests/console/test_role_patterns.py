"""Roles for some topics: what concerns others is neither shown nor done, on any page."""

import re

import pytest

from klamm.client import TopicPartition
from klamm.console.clusters import ConsoleCluster
from klamm.console.core.roles import Action, ConsoleRole, Visitor
from klamm.console.service import ConsoleConfig
from klamm.console.settings import parse_settings
from klamm.testing import unique

from .served import ServedConsole
from .test_changes import bad_sample
from .test_security import CHEAP, log_in

SETTINGS = f"""
[users.anna]
password = "{CHEAP.hash("correct horse")}"
roles = ["admin"]

[users.petra]
password = "{CHEAP.hash("battery staple")}"
roles = ["team"]

[roles.team]
actions = ["view", "read", "groups", "topics", "cluster", "access", "audit"]
topics = ["public-*"]
"""


@pytest.fixture(scope="module")
def guarded(broker):
    config = ConsoleConfig((ConsoleCluster("test", broker.bootstrap),), parse_settings(SETTINGS), interval_s=600)
    with ServedConsole(config) as console:
        console.collect()
        yield console


@pytest.fixture
def anna(guarded):
    visit = log_in(guarded, "anna", "correct horse")
    yield visit
    visit.client.close()


@pytest.fixture
def petra(guarded):
    visit = log_in(guarded, "petra", "battery staple")
    yield visit
    visit.client.close()


@pytest.fixture
def topics(broker, guarded):
    """A topic within the role and one outside of it, with a record each."""
    public, secret = unique("public-t"), unique("secret")
    with broker.admin() as admin, broker.producer() as producer:
        for topic in (public, secret):
            admin.create_topic(topic)
            producer.send(topic, b"x").result(30)
    guarded.collect()
    return public, secret


def test_findings_name_topics_and_groups_of_the_role_only(guarded, anna, petra):
    (link,) = guarded.service.links
    try:
        link.publish(bad_sample(guarded.service.app.parts.now_ms()))
        assert "1 partition without a leader" in anna.get("/c/test")
        page = petra.get("/c/test")
        # Those of brokers stay: they are no matter of a topic.
        assert "Broker 3 is fenced" in page
        for words in ("without a leader", "under-replicated", "with one replica", "idle"):
            assert words not in page
        assert "such as behind-0" in anna.get("/c/test/brokers")
        brokers = petra.get("/c/test/brokers")
        assert "no other replica in sync:" in brokers
        assert "behind-0" not in brokers
    finally:
        guarded.collect()


def test_other_topics_of_a_group_are_neither_shown_nor_moved(broker, guarded, topics, anna, petra):
    public, secret = topics
    group = unique("public-g")
    with broker.admin() as admin:
        admin.alter_group_offsets(group, {TopicPartition(public, 0): 1, TopicPartition(secret, 0): 1})
    guarded.collect()
    path = f"/c/test/groups/{group}"
    page = petra.get(path)
    assert public in page
    assert secret not in page
    assert "1 topic of the group is outside of your roles" in page
    plan = f"{path}/reset?to=earliest"
    assert secret not in petra.get(plan)
    assert "Moved" in petra.post(plan, f"{path}/reset", plan=petra.plan(plan))
    with broker.admin() as admin:
        offsets = {where.topic: entry.offset for where, entry in admin.list_group_offsets(group).items()}
    assert offsets == {public: 0, secret: 1}
    petra.get(f"{path}/reset?to=earliest&topic={secret}", 403)
    assert secret in anna.get(f"{path}/reset?to=earliest")


def test_moves_of_other_topics_are_refused(topics, petra):
    _, secret = topics
    path = "/c/test/reassignments"
    petra.post(path + "?plan=balance", f"{path}/cancel", 403, partition=f"{secret}/0")
    petra.post(path + "?plan=balance", f"{path}/cancel", 409, all="1")
    page = petra.post(path + "?plan=balance", f"{path}/unthrottle", 403)
    assert "petra has the action cluster for public-* only: it needs a role whose topics are *" in page


def test_transactions_of_other_topics_are_neither_shown_nor_aborted(broker, topics, anna, petra):
    public, secret = topics
    names = unique("seen"), unique("hidden")
    with broker.producer(transactional_id=names[0]) as seen, broker.producer(transactional_id=names[1]) as hidden:
        for producer, topic in ((seen, public), (hidden, secret)):
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, b"open").result(30)
        path = "/c/test/transactions"
        assert all(name in anna.get(path) for name in names)
        page = petra.get(path)
        assert names[0] in page
        assert names[1] not in page
        assert secret not in page
        petra.post(path, f"{path}/{names[1]}/abort", 403)
        form = {"partition": "0", "producer_id": "1", "start_offset": "1"}
        petra.post(path, "/c/test/hanging-transactions", 403, topic=secret, **form)
        assert f"Fenced the producer of {names[0]}" in petra.post(path, f"{path}/{names[0]}/abort")
        hidden.abort_transaction()


def test_rights_and_quotas_need_a_role_for_all_topics(anna, petra):
    assert "Users and rights" in anna.get("/c/test/access")
    page = petra.get("/c/test/access", 403)
    assert "petra has the action view for public-* only" in page
    assert "Users and rights" not in petra.get("/c/test")
    for path, fields in (
        ("access", {"principal": "User:x"}),
        ("access/delete", {"principal": "User:x"}),
        ("brokers/1/settings", {"setting": "log.cleaner.threads", "value": "2"}),
        ("access/users", {"user": "x", "password": "y", "again": "y"}),
        ("access/users/delete", {"user": "x"}),
        ("access/quotas", {"user": "x", "key": "producer_byte_rate", "value": "1"}),
        ("access/quotas/delete", {"user": "x", "key": "producer_byte_rate"}),
    ):
        page = petra.post("/c/test/reassignments?plan=balance", f"/c/test/{path}", 403, **fields)
        assert "needs a role whose topics are *" in page, path


def test_the_audit_has_entries_of_the_role_only(broker, guarded, topics, anna, petra):
    public, secret = topics
    group = unique("public-g")
    places = [TopicPartition(public, 0), TopicPartition(secret, 0)]
    audit = guarded.service.app.parts.audit
    for action, resource, detail in (
        ("empty topic", public, {}),
        ("empty topic", secret, {}),
        ("resend records", public, {"from": secret}),
        ("abort hanging transaction", f"{secret}-0", {}),
        ("abort hanging transaction", f"{public}-0", {"producer_id": 77}),
        ("start reassignment", "cluster", {f"{secret}-0": [1]}),
        ("set password", "User:otto", {}),
        ("reset offsets", group, {"after": {f"{where.topic}-{where.partition}": 4711 for where in places}}),
    ):
        audit.note("test", "anna", "127.0.0.1", action, resource, "done", detail)
    assert secret in anna.get("/c/test/audit")
    page = petra.get("/c/test/audit")
    assert secret not in page
    for words in ("User:otto", "start reassignment", "login"):
        assert words not in page.partition("<main")[2], words
    assert page.count("4711") == 1
    assert re.search(r"producer_id\W+77", page)
    assert public in page


def test_logins_and_failed_logins_are_audited(guarded, anna, petra):
    stranger = guarded.visitor()
    stranger.post("/login", "/login", 401, name="stranger", password="guess")
    stranger.client.close()
    page = anna.get("/c/test/audit?q=login")
    assert "Name or password is wrong." in page
    assert re.search(r"stranger <span.*?login failed", page)
    assert re.search(r"anna <span[^\n]*<td data-label=\"Action\">login</td>", page)


def test_older_entries_are_on_the_next_page(guarded, anna):
    audit = guarded.service.app.parts.audit
    for number in range(60):
        audit.note("test", "anna", "127.0.0.1", "empty topic", f"paged-{number:02}.", "done")
    page = anna.get("/c/test/audit?q=paged")
    assert "paged-59." in page
    assert "paged-09." not in page
    assert re.search(r'rel="next" href="[^"]*page=2', page)
    assert "paged-09." in anna.get("/c/test/audit?q=paged&page=2")


def test_a_pattern_of_everything_is_a_role_for_all_topics():
    roles = (
        ConsoleRole("team", frozenset({Action.VIEW, Action.CLUSTER}), topics=("public-*",)),
        ConsoleRole("looks", frozenset({Action.VIEW})),
    )
    visitor = Visitor("v", roles)
    assert visitor.may_everywhere(Action.VIEW, "test")
    assert not visitor.may_everywhere(Action.CLUSTER, "test")
    assert not Visitor("v", roles[1:], read_only=True).may_everywhere(Action.CLUSTER, "test")
    assert visitor.visible("test", ["public-a", "b"], Action.CLUSTER) == ["public-a"]
