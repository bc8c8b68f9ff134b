"""`klamm acl` and `klamm kafka-acls` against a node with an authorizer."""

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from harness.access import TOPIC_DENIED, connect_as, secured_node
from harness.inprocess import NodeThread
from harness.wire import Wire, unique
from klamm.cli import exit_codes
from klamm.cli.main import cli


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    with secured_node(tmp_path_factory.mktemp("acl")) as thread:
        yield thread


def run(node: NodeThread, *args: str, exits: int = 0) -> str:
    result = CliRunner().invoke(cli, ["acl", *args, "-b", f"127.0.0.1:{node.port}"], prog_name="klamm")
    assert result.exit_code == exits, result.output
    return result.output


def rows(node: NodeThread, *args: str) -> list[dict[str, str]]:
    result = CliRunner().invoke(cli, ["acl", *args, "-b", f"127.0.0.1:{node.port}", "-o", "json"], prog_name="klamm")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_add_grants_and_rm_takes_away(node: NodeThread) -> None:
    topic = unique()
    with Wire(node.port) as admin, connect_as(node, "User:alice") as alice:
        admin.create_topic(topic)
        assert alice.fetch(topic, 0).error_code == TOPIC_DENIED
        added = run(node, "add", "alice", "read,describe", f"topic:{topic}")
        assert added == (
            f"Added: allow User:alice read topic:{topic}.\nAdded: allow User:alice describe topic:{topic}.\n"
        )
        assert alice.fetch(topic, 0).error_code == 0
        assert [row["operation"] for row in rows(node, "ls", "--resource", f"topic:{topic}")] == ["read", "describe"]
        assert "Nothing to change" in run(node, "add", "alice", "read", f"topic:{topic}")
        removed = run(node, "rm", "alice", "read", f"topic:{topic}", "--yes")
        assert removed == f"Removed: allow User:alice read topic:{topic}.\n"
        assert alice.fetch(topic, 0).error_code == TOPIC_DENIED


def test_a_dry_run_shows_the_difference_and_changes_nothing(node: NodeThread) -> None:
    topic = unique()
    shown = run(node, "add", "bob", "write", f"topic:{topic}", "--prefixed", "--dry-run")
    assert f"+ allow User:bob write topic:{topic} (prefix)" in shown
    assert rows(node, "ls", "--principal", "bob") == []
    run(node, "add", "bob", "write", f"topic:{topic}", "--prefixed")
    assert f"- allow User:bob write topic:{topic} (prefix)" in run(node, "rm", "bob", "--dry-run")
    assert len(rows(node, "ls", "--principal", "bob")) == 1


def test_rm_removes_denials_only_with_deny(node: NodeThread) -> None:
    topic = unique()
    rule = ("frank", "write", f"topic:{topic}")
    run(node, "add", *rule)
    run(node, "add", *rule, "--deny")
    planned = run(node, "rm", *rule, "--dry-run")
    assert f"- allow User:frank write topic:{topic}\n" in planned
    assert "- deny" not in planned
    removed = run(node, "rm", *rule, "--yes")
    assert f"Removed: allow User:frank write topic:{topic}.\n" in removed
    assert "1 denial stays; --deny removes denials" in removed
    assert [row["permission"] for row in rows(node, "ls", "--principal", "frank")] == ["deny"]
    # Without OPERATION and RESOURCE, too.
    assert "1 denial stays" in run(node, "rm", "frank", "--yes")
    assert len(rows(node, "ls", "--principal", "frank")) == 1
    # A denial is removed after a confirmation, as an allowance is.
    assert "--yes" in run(node, "rm", *rule, "--deny", exits=exit_codes.NOT_AGREED)
    assert run(node, "rm", *rule, "--deny", "--yes") == f"Removed: deny User:frank write topic:{topic}.\n"
    assert rows(node, "ls", "--principal", "frank") == []


def test_rm_with_a_host_leaves_rules_of_others(node: NodeThread) -> None:
    topic = unique()
    rule = ("grace", "write", f"topic:{topic}")
    for host in ("*", "10.0.0.7", "10.0.0.8"):
        run(node, "add", *rule, "--host", host)
    removed = run(node, "rm", *rule, "--host", "10.0.0.7", "--yes")
    assert removed == f"Removed: allow User:grace write topic:{topic} from 10.0.0.7.\n"
    assert {row["host"] for row in rows(node, "ls", "--principal", "grace")} == {"*", "10.0.0.8"}
    run(node, "rm", *rule, "--host", "*", "--yes")
    assert {row["host"] for row in rows(node, "ls", "--principal", "grace")} == {"10.0.0.8"}
    # Without --host those of all hosts.
    run(node, "add", *rule)
    run(node, "rm", *rule, "--yes")
    assert rows(node, "ls", "--principal", "grace") == []


def test_can_lists_what_remains_after_denials(node: NodeThread) -> None:
    topic = unique()
    run(node, "add", "carol", "all", f"topic:{topic}")
    run(node, "add", "carol", "delete", f"topic:{topic}", "--deny")
    (row,) = rows(node, "can", "carol")
    assert row["resource"] == f"topic:{topic}"
    assert "read" in row["operations"].split(",")
    assert "delete" not in row["operations"].split(",")
    assert rows(node, "can", "zoe") == []


def test_why_names_the_rule_that_decides(node: NodeThread) -> None:
    topic = unique()
    assert "the resource has no ACLs" in run(node, "why", "dave", "read", f"topic:{topic}", "-o", "table")
    run(node, "add", "dave", "read", f"topic:{topic[:4]}", "--prefixed")
    facts = json.loads(run(node, "why", "dave", "describe", f"topic:{topic}", "-o", "json"))
    assert (facts["decision"], facts["reason"]) == ("allowed", f"allow User:dave read topic:{topic[:4]} (prefix)")
    run(node, "add", "User:*", "read", f"topic:{topic}", "--deny")
    facts = json.loads(run(node, "why", "dave", "read", f"topic:{topic}", "-o", "json"))
    assert (facts["decision"], facts["reason"]) == ("denied", f"deny User:* read topic:{topic}")


def test_why_and_can_name_hosts_that_are_denied(node: NodeThread) -> None:
    topic = unique()
    rule = ("heidi", "write", f"topic:{topic}")
    run(node, "add", *rule)
    run(node, "add", *rule, "--deny", "--host", "127.0.0.1")
    shown = run(node, "why", *rule, "-o", "table")
    assert shown == (
        f"User:heidi write topic:{topic}: allowed, but denied from 127.0.0.1; allow User:heidi write topic:{topic}\n"
    )
    facts = json.loads(run(node, "why", *rule, "-o", "json"))
    assert (facts["decision"], facts["denied_from"]) == ("allowed", ["127.0.0.1"])
    # With an address its own rule decides.
    assert f"denied, deny User:heidi write topic:{topic} from 127.0.0.1" in run(
        node, "why", *rule, "--host", "127.0.0.1", "-o", "table"
    )
    elsewhere = json.loads(run(node, "why", *rule, "--host", "10.0.0.7", "-o", "json"))
    assert (elsewhere["decision"], elsewhere["denied_from"]) == ("allowed", [])
    (row,) = rows(node, "can", "heidi")
    assert (row["operations"], row["denied"]) == ("write,describe", "write from 127.0.0.1")
    (row,) = rows(node, "can", "heidi", "--host", "127.0.0.1")
    assert (row["operations"], row["denied"]) == ("describe", "")


def test_mistyped_words_are_refused(node: NodeThread) -> None:
    assert "is no operation" in run(node, "add", "alice", "reed", "topic:t", exits=2)
    assert "TYPE:NAME" in run(node, "add", "alice", "read", "topics:t", exits=2)
    assert "TYPE:NAME" in run(node, "add", "alice", "read", "topic:", exits=2)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("user:alice", "read", "topic:t"), "write User:alice"),
        (("alice", "read", "topic:t", "--host", "10.0.0.0/8"), "write one IP address"),
        (("alice", "read", "topic:t", "--host", "10.0.0.300"), "write one IP address"),
        (("alice", "create", "group:x"), "group has no operation create; write read, "),
        (("alice", "read", "topic:ord*"), "topic:ord --prefixed"),
        (("alice", "read", "topic:a/b"), "topic:a/b matches no topic"),
    ],
)
def test_acls_that_never_match_are_refused(node: NodeThread, words: tuple[str, ...], text: str) -> None:
    assert text in " ".join(run(node, "add", *words, exits=2).split())


def test_unusual_acls_are_added_with_a_warning(node: NodeThread) -> None:
    added = run(node, "add", "Group:ops", "read", "group:app-*", "--dry-run")
    assert "Warning: Group:ops matches only if" in added
    assert "Warning: 'app-*' is taken letter by letter" in added
    assert "+ allow Group:ops read group:app-*" in added
    assert "Warning" not in run(node, "add", "alice", "all", "topic:*", "--host", "::1", "--dry-run")


def test_super_users_are_said_to_be_left_out(node: NodeThread) -> None:
    # User:ANONYMOUS is a super user of this node.
    denied = run(node, "why", "ANONYMOUS", "write", f"topic:{unique()}", "-o", "table")
    assert denied.endswith("(super.users is not considered)\n")
    for output in ("table", "jsonl"):
        assert "super.users is not considered" in run(node, "can", "ANONYMOUS", "-o", output)


def test_kafka_acls_adds_lists_and_removes(node: NodeThread) -> None:
    topic = unique()
    bootstrap = ("--bootstrap-server", f"127.0.0.1:{node.port}")

    def script(*args: str) -> str:
        result = CliRunner().invoke(cli, ["kafka-acls", *bootstrap, *args], prog_name="klamm")
        assert result.exit_code == 0, result.output
        return result.output

    rule = ("--topic", topic, "--allow-principal", "User:erin", "--operation", "Write")
    assert "Adding ACLs for resource" in script("--add", *rule)
    listed = script("--list", "--topic", topic)
    assert f"ResourcePattern(resourceType=TOPIC, name={topic}, patternType=LITERAL)" in listed
    assert "principal=User:erin, host=*, operation=WRITE, permissionType=ALLOW" in listed
    script("--remove", "--force", *rule)
    assert topic not in script("--list", "--topic", topic)
