"""kafka-configs of every kind of resource, and scripts that reach the cluster by its controllers."""

import re

import pytest
from click.testing import CliRunner

from harness import unique
from klamm.cli.main import cli


def run(*words: str):
    return CliRunner().invoke(cli, list(words), prog_name="klamm")


@pytest.fixture
def configs(klamm):
    def call(*words: str) -> str:
        done = run("kafka-configs", "--bootstrap-server", klamm.bootstrap, *words)
        assert done.exit_code == 0, done.output
        return done.stdout

    return call


@pytest.fixture
def controller(klamm) -> tuple[str, str]:
    """Where a controller listens, as its quorum tells."""
    output = run("kafka-metadata-quorum", "--bootstrap-server", klamm.bootstrap, "describe", "--status").stdout
    match = re.search(r"CONTROLLER://([^\"]+)", output)
    assert match is not None, output
    return "--bootstrap-controller", match.group(1)


def test_settings_of_a_group(configs):
    group = unique("g")
    assert configs("--describe", "--group", group) == (
        f"The group '{group}' doesn't exist and doesn't have dynamic config.\n"
    )
    configs("--alter", "--group", group, "--add-config", "consumer.session.timeout.ms=50000")
    output = configs("--describe", "--group", group)
    assert output.startswith(f"Dynamic configs for group {group} are:\n  consumer.session.timeout.ms=50000 ")
    assert f"Dynamic configs for group {group} are:\n" in configs("--describe", "--entity-type", "groups")


def test_settings_of_client_metrics(configs):
    name = unique("m")
    altered = configs("--alter", "--client-metrics", name, "--add-config", "interval.ms=1000")
    assert altered == f"Completed updating config for client-metric {name}.\n"
    assert configs("--describe", "--client-metrics", name) == (
        f"Dynamic configs for client-metric {name} are:\n"
        "  interval.ms=1000 sensitive=false synonyms={DYNAMIC_CLIENT_METRICS_CONFIG:interval.ms=1000}\n"
    )
    assert "  match= sensitive=false synonyms={}\n" in configs("--describe", "--client-metrics", name, "--all")


def test_the_log_level_of_a_broker(configs, klamm):
    line = re.compile(r"Dynamic configs for broker-logger 1 are:\n  root=(\w+) sensitive=false synonyms=\{\}\n")
    before = line.fullmatch(configs("--describe", "--broker-logger", "1"))
    assert before is not None
    try:
        configs("--alter", "--broker-logger", "1", "--add-config", "root=WARN")
        after = line.fullmatch(configs("--describe", "--broker-logger", "1"))
        assert after is not None
        assert after.group(1) == "WARN"
    finally:
        configs("--alter", "--broker-logger", "1", "--add-config", f"root={before.group(1)}")
    strange = ("--alter", "--broker-logger", "1", "--add-config", "no.such=WARN")
    refused = run("kafka-configs", "--bootstrap-server", klamm.bootstrap, *strange)
    assert (refused.exit_code, refused.stderr) == (1, "Invalid broker logger(s): no.such\n")


def test_brokers_that_are_not_there(configs):
    assert configs("--describe", "--broker", "99") == (
        "The broker '99' doesn't exist and doesn't have dynamic config.\n"
    )


def test_by_controllers(klamm, controller):
    by_broker = run("kafka-metadata-quorum", "--bootstrap-server", klamm.bootstrap, "describe", "--status")
    by_controller = run("kafka-metadata-quorum", *controller, "describe", "--status")
    assert by_controller.exit_code == 0, by_controller.output
    assert by_controller.stdout.splitlines()[:3] == by_broker.stdout.splitlines()[:3]
    assert run("kafka-metadata-quorum", *controller, "describe", "--replication").exit_code == 0
    described = run("kafka-configs", *controller, "--describe", "--broker", "1")
    assert described.exit_code == 0, described.output
    assert described.stdout.startswith("Dynamic configs for broker 1 are:\n")
    topics = run("kafka-configs", *controller, "--describe", "--entity-type", "topics")
    assert topics.exit_code == 1
    assert "UnsupportedEndpointTypeException: This Admin API is not yet supported" in topics.stderr
    mistaken = run("kafka-metadata-quorum", "--bootstrap-controller", klamm.bootstrap, "describe", "--status")
    assert mistaken.exit_code == 1
    assert "is no controller's listener; reach brokers with --bootstrap-server" in mistaken.stderr


def test_voters_that_are_fixed_stay(klamm, controller):
    """The request names the cluster, so that its quorum answers and not its guard against strangers."""
    which = ("remove-controller", "--controller-id", "2", "--controller-directory-id", "AAAAAAAAAAAAAAAAAAAAAg")
    for where in (("--bootstrap-server", klamm.bootstrap), controller):
        refused = run("kafka-metadata-quorum", *where, *which)
        assert refused.exit_code == 1
        assert "InconsistentClusterId" not in refused.stderr
        assert "VoterNotFound" in refused.stderr or "kraft.version" in refused.stderr, refused.stderr
