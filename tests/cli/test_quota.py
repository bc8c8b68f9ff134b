"""`klamm quota`, and kafka-configs for users, clients and ips."""

import os

import pytest
from click.testing import CliRunner

from harness import unique
from klamm.cli.main import cli
from klamm.client import Admin


def run(*words: str, exits: int = 0):
    done = CliRunner().invoke(cli, list(words), prog_name="klamm", env={"KLAMM_CONTEXTS": os.devnull})
    assert done.exit_code == exits, done.output
    return done


@pytest.fixture
def quota(klamm):
    def call(verb: str, *words: str, **options):
        return run("quota", verb, *words, "-b", klamm.bootstrap, **options)

    return call


@pytest.fixture
def configs(klamm):
    def call(*words: str, **options):
        return run("kafka-configs", "--bootstrap-server", klamm.bootstrap, *words, **options)

    return call


def limits(klamm, **entity):
    kinds = {kind.replace("_", "-"): name for kind, name in entity.items()}
    with Admin(bootstrap_servers=klamm.bootstrap) as admin:
        return admin.describe_client_quotas(kinds, strict=True).get(tuple(sorted(kinds.items())), {})


def test_quotas_are_set_listed_and_removed(klamm, quota):
    user = unique("user")
    quota("set", "producer_byte_rate=10MiB", "request_percentage=12.5", "--user", user, "--client", "app")
    expected = {"producer_byte_rate": 10 * 2**20, "request_percentage": 12.5}
    assert limits(klamm, user=user, client_id="app") == expected
    lines = quota("ls", "--user", user, "-o", "table").stdout.splitlines()
    assert [line.split() for line in lines[1:]] == [
        [user, "app", "-", "producer_byte_rate", "10485760"],
        [user, "app", "-", "request_percentage", "12.5"],
    ]
    quota("rm", "request_percentage", "--user", user, "--client", "app", "--yes")
    assert limits(klamm, user=user, client_id="app") == {"producer_byte_rate": 10 * 2**20}
    quota("rm", "--user", user, "--client", "app", "--yes")
    assert quota("ls", "--user", user, "-o", "json").stdout.strip() == "[]"


def test_a_plan_shows_what_would_change(klamm, quota):
    user = unique("user")
    quota("set", "producer_byte_rate=1000", "--user", user)
    planned = quota("set", "producer_byte_rate=2kB", "consumer_byte_rate=5", "--user", user, "--dry-run").stdout
    assert planned.splitlines() == [
        f"~ user {user} producer_byte_rate: 1000 -> 2000",
        f"+ user {user} consumer_byte_rate=5",
    ]
    assert limits(klamm, user=user) == {"producer_byte_rate": 1000.0}
    removal = quota("rm", "--user", user, "--dry-run").stdout
    assert removal.splitlines() == [f"- user {user} producer_byte_rate=1000"]
    assert "Nothing to change" in quota("set", "producer_byte_rate=1000", "--user", user).output
    quota("rm", "--user", user, "--yes")


def test_a_default_is_set_and_removed(klamm, quota):
    quota("set", "connection_creation_rate=500", "--ip-defaults")
    assert limits(klamm, ip=None) == {"connection_creation_rate": 500.0}
    assert "<default>" in quota("ls", "--ip-defaults", "-o", "table").stdout
    quota("rm", "--ip-defaults", "--yes")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("set", "producer_byte_rate=1"), 2, "name whose quota it is"),
        (("set", "producer_byte_rate", "--user", "x"), 2, "KEY=VALUE"),
        (("set", "request_percentage=much", "--user", "x"), 2, "no number"),
        (("set", "producer_byterate=20kB", "--user", "x"), 2, "did you mean producer_byte_rate?"),
        (("set", "producer_byte_rate=20kB", "--user", "User:bob"), 2, "write --user bob"),
        (("set", "producer_byte_rate=fast", "--user", "x"), 2, "no size"),
        (("set", "no_such_rate=1", "--user", "x"), 1, "no_such_rate"),
        (("set", "connection_creation_rate=1", "--user", "x"), 2, "only an address has connection_creation_rate"),
        (("set", "connection_creation_rate=1", "--client", "x"), 2, "write --ip ADDRESS or --ip-defaults"),
        (("set", "producer_byte_rate=1", "--ip", "10.0.0.7"), 2, "an address has no producer_byte_rate"),
        (("set", "producer_byte_rate=1", "--user", "x", "--user-defaults"), 2, "exclude each other"),
        (("rm", "--user", "no-such-user", "--yes"), 1, "has no quota"),
    ],
)
def test_refusals_say_what_to_write(quota, words, code, text):
    assert text in quota(*words, exits=code).stderr


def test_kafka_configs_sets_and_describes_quotas(klamm, configs):
    user = unique("user")
    words = ("--entity-type", "users", "--entity-name", user)
    done = configs("--alter", *words, "--add-config", "producer_byte_rate=1024,request_percentage=50")
    assert done.stdout == f"Completed updating config for user {user}.\n"
    assert configs("--describe", *words).stdout in {
        f"Quota configs for user-principal '{user}' are producer_byte_rate=1024.0, request_percentage=50.0\n",
        f"Quota configs for user-principal '{user}' are request_percentage=50.0, producer_byte_rate=1024.0\n",
    }
    configs("--alter", *words, "--delete-config", "producer_byte_rate,request_percentage")
    assert configs("--describe", *words).stdout == ""
    assert limits(klamm, user=user) == {}


def test_kafka_configs_takes_combinations_and_defaults(klamm, configs):
    user = unique("user")
    words = ("--entity-type", "users", "--entity-name", user, "--entity-type", "clients", "--entity-default")
    configs("--alter", *words, "--add-config", "consumer_byte_rate=20000000")
    assert configs("--describe", *words).stdout == (
        f"Quota configs for user-principal '{user}', the default client-id are consumer_byte_rate=2.0E7\n"
    )
    configs("--alter", *words, "--delete-config", "consumer_byte_rate")
    assert limits(klamm, user=user, client_id=None) == {}
