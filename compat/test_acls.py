"""Apache Kafka's kafka-acls against a node with an authorizer: what it adds is in force, what it prints is the same."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from compat.clients import JavaClient
from compat.scripts import MAINS
from harness.process import KlammProcess
from harness.wire import unique
from klamm.cli.main import cli
from klamm.server.boot.config_checks import STANDARD_AUTHORIZER


@pytest.fixture
def node(tmp_path: Path) -> Iterator[KlammProcess]:
    overrides = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    with KlammProcess(tmp_path, overrides=overrides) as running:
        yield running


def test_acls_are_added_listed_and_removed(java: JavaClient, node: KlammProcess) -> None:
    topic = unique()
    where = ("--bootstrap-server", node.bootstrap)

    def theirs(*words: str) -> str:
        output = java.tool(MAINS["kafka-acls"], *where, *words)
        assert output.exit == 0, output.text
        return output.out

    def ours(*words: str) -> str:
        result = CliRunner().invoke(cli, ["kafka-acls", *where, *words], prog_name="klamm")
        assert result.exit_code == 0, result.output
        return result.output

    added = theirs("--add", "--topic", topic, "--allow-principal", "User:alice", "--producer")
    assert f"Adding ACLs for resource `ResourcePattern(resourceType=TOPIC, name={topic}, patternType=LITERAL)`" in added
    theirs("--add", "--group", "g-", "--resource-pattern-type", "prefixed", "--deny-principal", "User:bob",
           "--deny-host", "10.0.0.1", "--operation", "Read")  # fmt: skip
    listed = theirs("--list")
    assert sorted(line.strip() for line in listed.splitlines()) == sorted(
        line.strip() for line in ours("--list").splitlines()
    )
    assert "principal=User:bob, host=10.0.0.1, operation=READ, permissionType=DENY" in listed
    for operation in ("WRITE", "DESCRIBE", "CREATE"):
        assert f"principal=User:alice, host=*, operation={operation}, permissionType=ALLOW" in listed
    theirs("--remove", "--force", "--topic", topic, "--allow-principal", "User:alice", "--producer")
    assert topic not in theirs("--list")
