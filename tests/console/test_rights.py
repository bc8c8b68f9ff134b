"""What a principal may do, decided by the ACLs of a node with an authorizer; adding and deleting ACLs."""

import re

import pytest

from harness.access import TOPIC_DENIED, connect_as, secured_node
from harness.wire import Wire
from klamm.client import Admin
from klamm.client.admin.acl_types import AclBinding
from klamm.client.admin.types import AclOperation, AclPermission, AclResourceType, PatternType
from klamm.client.core.rights import list_rights
from klamm.console.clusters import ConsoleCluster
from klamm.console.service import ConsoleConfig
from klamm.security.core.principal import parse_principal
from klamm.testing import unique

from .served import ServedConsole

ALLOW, DENY = AclPermission.ALLOW, AclPermission.DENY


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with secured_node(tmp_path_factory.mktemp("rights")) as node:
        yield node


@pytest.fixture(scope="module")
def guarded(node):
    cluster = ConsoleCluster("test", f"127.0.0.1:{node.port}")
    with ServedConsole(ConsoleConfig((cluster,), interval_s=600)) as console:
        console.collect()
        yield console


@pytest.fixture
def visit(guarded):
    visit = guarded.visitor()
    yield visit
    visit.client.close()


def topic_rule(name, principal, operation, permission=ALLOW, host="*", pattern=PatternType.LITERAL):
    return AclBinding(AclResourceType.TOPIC, name, principal, operation, permission, host, pattern)


@pytest.fixture(scope="module")
def rules(node):
    """Alice reads and writes all topics of a team but one, and deletes from one address only."""
    team = unique("team")
    added = [
        topic_rule(f"{team}.", "User:alice", AclOperation.READ, pattern=PatternType.PREFIXED),
        topic_rule(f"{team}.", "User:alice", AclOperation.WRITE, pattern=PatternType.PREFIXED),
        topic_rule(f"{team}.secret", "User:*", AclOperation.READ, DENY),
        topic_rule(f"{team}.", "User:alice", AclOperation.DELETE, host="10.0.0.7", pattern=PatternType.PREFIXED),
        AclBinding(AclResourceType.GROUP, "*", "User:*", AclOperation.READ),
    ]
    with Admin(bootstrap_servers=f"127.0.0.1:{node.port}") as admin:
        admin.create_acls(added)
    return team


def read_table(page):
    """The rows of the table of rights, each a list of texts."""
    part = page.partition('<div id="rights">')[2].partition("</div>")[0]
    # A dash stands for nothing.
    rows = re.findall(r"<tr>(.*?)</tr>", part.replace("\N{EN DASH}", ""), re.DOTALL)
    return [
        [" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)]
        for row in rows
    ][1:]


def test_rights_are_evaluated_by_pattern_with_denials_and_hosts(rules, visit):
    page = visit.get("/c/test/access?principal=alice")
    assert read_table(page) == [
        ["group *", "read describe", "", "any host"],
        [f"topic {rules}.*", "read write describe", "", "any host"],
        [f"topic {rules}.*", "read write delete describe", "", "10.0.0.7"],
        # The prefix allows to write; the denial of everyone comes before alice's right to read.
        [f"topic {rules}.secret", "write describe", "read", "any host"],
        [f"topic {rules}.secret", "write delete describe", "read", "10.0.0.7"],
    ]
    assert "The value of super.users is hidden by brokers" in page


def test_rights_of_a_host_have_its_rules(rules, visit):
    rows = read_table(visit.get("/c/test/access?principal=User:alice&host=10.0.0.7"))
    assert [row for row in rows if "delete" in row[1]] == [
        [f"topic {rules}.*", "read write delete describe", "", "10.0.0.7"],
        [f"topic {rules}.secret", "write delete describe", "read", "10.0.0.7"],
    ]


@pytest.mark.parametrize(
    ("topic", "operation", "verdict", "reason"),
    [
        ("orders", "read", "may", "allow User:alice read topic {team}.*"),
        ("orders", "describe", "may", "allow User:alice"),
        ("orders", "alter", "may not", "no rule allows it"),
        ("orders", "delete", "may not", "no rule allows it"),
        ("secret", "read", "may not", "deny User:* read topic {team}.secret"),
        ("secret", "write", "may", "allow User:alice write topic {team}.*"),
    ],
)
def test_one_resource_shows_the_rule_that_decides(rules, visit, topic, operation, verdict, reason):
    page = visit.get(f"/c/test/access?principal=User:alice&type=TOPIC&name={rules}.{topic}")
    row = next(row for row in read_table(page) if row[0] == operation)
    assert row[1] == verdict
    assert reason.format(team=rules) in row[2]


def test_one_resource_names_hosts_that_are_denied(node, visit):
    topic = unique("host")
    added = [
        topic_rule(topic, "User:heidi", AclOperation.WRITE),
        topic_rule(topic, "User:heidi", AclOperation.WRITE, DENY, host="127.0.0.1"),
    ]
    with Admin(bootstrap_servers=f"127.0.0.1:{node.port}") as admin:
        admin.create_acls(added)
    query = f"/c/test/access?principal=User:heidi&type=TOPIC&name={topic}"
    reasons = {row[0]: row[2] for row in read_table(visit.get(query))}
    assert reasons["write"] == f"allow User:heidi write topic {topic}, but denied from 127.0.0.1"
    assert "denied" not in reasons["describe"]
    assert "but denied" not in visit.get(f"{query}&host=10.0.0.7")


def test_hosts_with_denials_are_listed_before_others():
    allowed = [topic_rule("a", "User:alice", AclOperation.READ, host=f"10.0.0.{number}") for number in range(80)]
    denied = topic_rule("a", "User:alice", AclOperation.WRITE, DENY, host="192.168.0.1")
    rights = list_rights(
        [topic_rule("a", "User:alice", AclOperation.WRITE), *allowed, denied], parse_principal("User:alice")
    )
    assert AclOperation.WRITE in next(right.denied for right in rights if right.host == "192.168.0.1")


def test_the_page_decides_as_the_node_does(node, rules, visit):
    with Wire(node.port) as admin, connect_as(node, "User:alice") as alice:
        for topic in ("orders", "secret"):
            admin.create_topic(f"{rules}.{topic}")
            rows = read_table(visit.get(f"/c/test/access?principal=User:alice&type=TOPIC&name={rules}.{topic}"))
            may_read = next(row for row in rows if row[0] == "read")[1] == "may"
            assert (alice.fetch(f"{rules}.{topic}", 0).error_code != TOPIC_DENIED) is may_read


def test_a_stranger_has_the_rules_of_everyone_only(rules, visit):
    rows = read_table(visit.get("/c/test/access?principal=User:stranger"))
    assert rows == [
        ["group *", "read describe", "", "any host"],
        [f"topic {rules}.secret", "", "read", "any host"],
    ]


@pytest.mark.parametrize("query", ["host=example.com", "host=10.0.0.0/8"])
def test_a_host_that_is_no_address_is_refused(visit, query):
    page = visit.get(f"/c/test/access?principal=User:alice&{query}")
    assert re.search(r'role="alert">[^<]*does not appear to be an IPv4 or IPv6 address', page)


def test_a_rule_is_added_and_deleted(node, visit):
    topic = unique("acl")
    form = {
        "principal": "User:carol",
        "permission": "ALLOW",
        "operation": "READ",
        "resource_type": "TOPIC",
        "resource": topic,
        "pattern": "LITERAL",
        "host": "*",
    }
    with Wire(node.port) as admin, connect_as(node, "User:carol") as carol:
        admin.create_topic(topic)
        assert carol.fetch(topic, 0).error_code == TOPIC_DENIED
        assert "Added a rule for User:carol." in visit.post("/c/test/access", "/c/test/access", **form)
        assert carol.fetch(topic, 0).error_code == 0
        other = {**form, "operation": "WRITE"}
        visit.post("/c/test/access", "/c/test/access", **other)
        page = visit.post("/c/test/access", "/c/test/access/delete", **form)
        assert "Deleted a rule of User:carol." in page
        assert carol.fetch(topic, 0).error_code == TOPIC_DENIED
        # The other rule of the same principal and topic stays.
        rows = read_table(visit.get("/c/test/access?principal=User:carol"))
        assert [f"topic {topic}", "write describe", "", "any host"] in rows
    audited = visit.get("/c/test/audit")
    assert "add ACL" in audited
    assert "delete ACL" in audited


@pytest.mark.parametrize(
    "changes",
    [{"principal": "carol"}, {"operation": "SING"}, {"resource_type": "PLANET"}, {"pattern": "WAVY"}],
)
def test_a_rule_with_a_mistake_is_refused(visit, changes):
    form = {"principal": "User:carol", "operation": "READ", "resource_type": "TOPIC", "resource": "x", **changes}
    visit.post("/c/test/access", "/c/test/access", 400, **form)


def test_rules_of_others_give_no_rights():
    rules = [topic_rule("a", "User:bob", AclOperation.ALL), topic_rule("b", "User:alice", AclOperation.ALL, DENY)]
    (right,) = list_rights(rules, parse_principal("User:alice"))
    assert (right.name, right.allowed) == ("b", ())
    assert AclOperation.READ in right.denied
