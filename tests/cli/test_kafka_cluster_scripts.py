"""kafka-features, kafka-cluster, kafka-broker-api-versions and kafka-acls, and `klamm cluster` for the same.

`compat/test_scripts_beside.py` compares the scripts with Apache Kafka's.
"""

import json

import pytest
from click.testing import CliRunner

from harness import KlammProcess
from klamm.cli.main import cli
from klamm.cli.queries.features import UnknownRelease, level_name, metadata_level, release_levels
from klamm.client import blocking_cluster
from klamm.protocol.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from klamm.protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from klamm.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)


@pytest.fixture
def run(klamm):
    def call(*words: str, code: int = 0, stdin: str | None = None):
        address = ("-b", klamm.bootstrap) if words[0] == "cluster" else ("--bootstrap-server", klamm.bootstrap)
        done = CliRunner().invoke(cli, [*words, *address], prog_name="klamm", input=stdin)
        assert done.exit_code == code, done.output
        return done

    return call


def test_features_are_shown(run):
    lines = run("kafka-features", "describe").stdout.splitlines()
    assert [line.split()[1] for line in lines] == sorted(line.split()[1] for line in lines)
    assert any("metadata.version" in line and "FinalizedVersionLevel: 4.3-IV0" in line for line in lines)
    rows = {row["feature"]: row for row in json.loads(run("cluster", "features", "-o", "json").stdout)}
    assert rows["metadata.version"]["level"] == "4.3-IV0"
    assert rows["transaction.version"] == {
        "feature": "transaction.version",
        "level": "2",
        "lowest": "0",
        "highest": "2",
    }


def test_a_level_is_changed_and_changed_back(tmp_path):
    with KlammProcess(tmp_path) as node:

        def features(*words: str, code: int = 0) -> str:
            done = CliRunner().invoke(cli, ["cluster", "features", *words, "-b", node.bootstrap], prog_name="klamm")
            assert done.exit_code == code, done.output
            return done.output

        assert "~ transaction.version: 2 -> 1" in features("--set", "transaction.version=1", "--dry-run")
        assert features("--set", "transaction.version=1") == "transaction.version is at 1.\n"
        assert features("--set", "transaction.version=2") == "transaction.version is at 2.\n"
        assert "Nothing to change" in features("--set", "metadata.version=4.3")
        assert "there is no feature nosuch" in features("--set", "nosuch=1", code=1)
        assert "write FEATURE=LEVEL" in features("--set", "nosuch", code=2)
        assert "a level is a number" in features("--set", "group.version=x", code=2)


def test_releases_and_levels():
    assert metadata_level("4.3") == metadata_level("4.3-IV0") == metadata_level("4.3.1") == 30
    assert level_name("metadata.version", 7) == "3.3-IV3"
    assert level_name("group.version", 7) == "7"
    assert release_levels("4.0")["transaction.version"] == 2
    with pytest.raises(UnknownRelease, match=r"Supported metadata.version are: 3.3-IV3"):
        metadata_level("9.9")


def test_the_cluster_by_its_script(run, klamm):
    output = run("kafka-cluster", "cluster-id").stdout
    assert output.startswith("Cluster ID: ")
    head, row = run("kafka-cluster", "list-endpoints").stdout.splitlines()
    assert head.split() == ["ID", "HOST", "PORT", "RACK", "STATE", "ENDPOINT_TYPE"]
    assert row.split() == ["1", "127.0.0.1", str(klamm.port), "null", "unfenced", "broker"]
    assert "is not currently registered" in run("kafka-cluster", "unregister", "--id", "77", code=1).stderr
    assert "--id/-i is required" in run("kafka-cluster", "unregister", code=1).stderr


def test_a_broker_that_is_there_is_not_forgotten(run):
    assert "there is no broker 77" in run("cluster", "unregister", "77", code=3).stderr
    refused = run("cluster", "unregister", "1", "--yes", code=1).stderr
    assert "is alive" in refused or "still has" in refused


def test_what_a_broker_speaks(run, klamm):
    lines = run("kafka-broker-api-versions").stdout.splitlines()
    assert lines[0] == f"{klamm.bootstrap} (id: 1 rack: null isFenced: false) -> ("
    assert "\tProduce(0): 0 to 13 [usable: 13]," in lines
    assert lines[-2:] == ["\tDeleteShareGroupOffsets(92): UNSUPPORTED", ")"]
    assert not any("LeaderAndIsr" in line or "\tVote(" in line for line in lines)


def test_rules_without_an_authorizer(run):
    refusal = "Error while executing ACL command: org.apache.kafka.common.errors.SecurityDisabledException: "
    assert run("kafka-acls", "--list", code=1).stdout.startswith(refusal)
    rule = ("--allow-principal", "User:a", "--topic", "t")
    assert run("kafka-acls", "--add", *rule, "--operation", "Read", code=1).stdout.startswith(refusal)
    assert "exactly one action" in run("kafka-acls", "--list", "--add", code=1).stderr
    assert "at least one resource" in run("kafka-acls", "--add", code=1).stderr
    unknown = run("kafka-acls", "--add", *rule, "--resource-pattern-type", "unknown", code=1)
    assert "Cannot parse argument 'unknown' of option resource-pattern-type" in unknown.stdout + unknown.stderr
    assert "TOPIC only supports" in run("kafka-acls", "--add", *rule, "--operation", "Nope", code=1).stderr


def test_rules_of_a_cluster_that_has_them(run, monkeypatch):
    """A cluster with an authorizer, as far as its answers go: what is asked of it, and how the answer is shown."""
    requests = []
    reader = AclDescription(principal="User:a", host="*", operation=3, permission_type=3)
    topic = DescribeAclsResource(resource_type=2, resource_name="t", pattern_type=3, acls=[reader])

    def answer(_, request, version=None):
        requests.append(request)
        if isinstance(request, DescribeAclsRequest):
            return DescribeAclsResponse(resources=[topic])
        if isinstance(request, CreateAclsRequest):
            return CreateAclsResponse(results=[AclCreationResult() for _ in request.creations])
        assert isinstance(request, DeleteAclsRequest)
        return DeleteAclsResponse(filter_results=[DeleteAclsFilterResult() for _ in request.filters])

    monkeypatch.setattr(blocking_cluster.BlockingConnection, "ask", answer)
    line = "\t(principal=User:a, host=*, operation=READ, permissionType=ALLOW)\n"
    where = "ResourcePattern(resourceType=TOPIC, name=t, patternType=LITERAL)"
    assert run("kafka-acls", "--list").stdout == f"Current ACLs for resource `{where}`:\n{line}\n"
    assert "READ" not in run("kafka-acls", "--list", "--principal", "User:b").stdout
    rule = ("--allow-principal", "User:a", "--topic", "t")
    assert line in run("kafka-acls", "--add", *rule, "--operation", "Read").stdout
    run("kafka-acls", "--add", *rule, "--producer")
    assert sorted(creation.operation for creation in requests[-1].creations) == [4, 5, 8]
    run("kafka-acls", "--remove", "--topic", "t", stdin="n\n")
    assert not isinstance(requests[-1], DeleteAclsRequest)
    run("kafka-acls", "--remove", "--topic", "t", stdin="y\n")
    assert (requests[-1].filters[0].operation, requests[-1].filters[0].principal_filter) == (1, None)
