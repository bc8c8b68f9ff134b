"""`klamm user`, `klamm certs` and kafka-configs --entity-type users."""

import json
import os
import subprocess

import pytest
from click.testing import CliRunner

from harness import unique
from klamm.cli.main import cli
from klamm.client import Admin
from klamm.client.admin.acl_types import ScramMechanism


def run(*words: str, exits: int = 0, stdin: str | None = None):
    done = CliRunner().invoke(cli, list(words), input=stdin, prog_name="klamm", env={"KLAMM_CONTEXTS": os.devnull})
    assert done.exit_code == exits, done.output
    return done


@pytest.fixture
def user(klamm):
    name = unique("user")

    def call(verb: str, *words: str, **options):
        return run("user", verb, *words, "-b", klamm.bootstrap, **options)

    return name, call


def credentials(klamm, name: str) -> list:
    with Admin(bootstrap_servers=klamm.bootstrap) as admin:
        return admin.describe_user_scram_credentials([name])[name]


def test_users_come_and_go(klamm, user):
    name, call = user
    assert call("add", name, "--password-file", "-", stdin="secret\n").stdout == f"Added: {name} SCRAM-SHA-512.\n"
    assert credentials(klamm, name) == [(ScramMechanism.SCRAM_SHA_512, 4096)]
    assert "there" not in call("ls").stderr
    assert f"{name}" in call("ls").stdout
    call("add", name, "--mechanism", "scram-sha-256", "--iterations", "8192", "--password-file", "-", stdin="secret\n")
    assert len(credentials(klamm, name)) == 2
    assert "already" in call("add", name, "--password-file", "-", stdin="x\n", exits=1).stderr
    changed = call("passwd", name, "--iterations", "5000", "--password-file", "-", stdin="another\n").stdout
    assert changed == f"Changed: {name} SCRAM-SHA-256.\nChanged: {name} SCRAM-SHA-512.\n"
    assert [iterations for _, iterations in credentials(klamm, name)] == [5000, 5000]
    call("rm", name, "--mechanism", "SCRAM-SHA-256", "--yes")
    assert len(credentials(klamm, name)) == 1
    # The verbs of other nouns do the same.
    assert call("delete", name, "--yes").stdout.endswith(f"Removed: {name} SCRAM-SHA-512.\n")
    assert credentials(klamm, name) == []
    assert "there is no user" in call("rm", name, "--yes", exits=1).stderr
    assert "there is no user" in call("passwd", name, "--password-file", "-", stdin="x\n", exits=1).stderr


@pytest.mark.parametrize("form", ["names", "jaas"])
def test_a_context_that_logs_in_as_the_user_gets_the_new_password(klamm, user, tmp_path, form):
    name, call = user
    jaas = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{name}" password="secret";'
    login = {
        "names": {"sasl.username": name, "sasl.password": "secret"},
        "jaas": {"sasl.jaas.config": jaas},
    }[form]
    settings = {"security.protocol": "PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", **login}
    contexts = tmp_path / "contexts.json"
    context = {"bootstrap": klamm.bootstrap, "protected": False, "settings": settings}
    contexts.write_text(json.dumps({"current": "dev", "contexts": {"dev": context}}))
    contexts.chmod(0o600)

    def change(*words: str) -> str:
        words = ("user", "passwd", *words, "--password-file", "-")
        env = {"KLAMM_CONTEXTS": str(contexts)}
        done = CliRunner().invoke(cli, words, input="another\n", prog_name="klamm", env=env)
        assert done.exit_code == 0, done.output
        assert "another" not in done.output
        return done.output

    def stored() -> dict[str, str]:
        return json.loads(contexts.read_text())["contexts"]["dev"]["settings"]

    other = unique("other")
    for new in (name, other):
        call("add", new, "--mechanism", "scram-sha-512", "--password-file", "-", stdin="secret\n")
    # Neither the password of another user nor that of another mechanism is the context's.
    for words in ((other,), (name, "--mechanism", "SCRAM-SHA-256")):
        assert "context dev" not in change(*words)
        assert stored() == settings
    assert "Changed: context dev logs in with the new password." in change(name)
    assert stored() == {
        "security.protocol": "PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": name,
        "sasl.password": "another",
    }
    assert contexts.stat().st_mode & 0o077 == 0
    # A cluster that is named by its address has no context.
    assert call("passwd", name, "--password-file", "-", stdin="another\n").stderr == ""
    for gone in (name, other):
        call("rm", gone, "--yes")


def test_a_dry_run_changes_nothing_and_shows_no_password(klamm, user):
    name, call = user
    done = call("add", name, "--dry-run", "--password-file", "-", stdin="hunter2\n")
    assert f"+ {name} SCRAM-SHA-512 iterations=4096" in done.stdout
    assert "hunter2" not in done.output
    assert credentials(klamm, name) == []


def test_a_password_is_typed_or_read_from_a_file(user):
    name, call = user
    assert "no terminal" in call("add", name, exits=1).stderr
    assert "is empty" in call("add", name, "--password-file", "-", stdin="\n", exits=1).stderr


def test_kafka_configs_has_credentials(klamm):
    name = unique("user")
    where = ("--bootstrap-server", klamm.bootstrap, "--entity-type", "users", "--entity-name", name)
    add = ("--add-config", "SCRAM-SHA-256=[iterations=8192,password=a,b=c],SCRAM-SHA-512=[password=x]")
    assert run("kafka-configs", "--alter", *where, *add).stdout == f"Completed updating config for user {name}.\n"
    assert credentials(klamm, name) == [(ScramMechanism.SCRAM_SHA_256, 8192), (ScramMechanism.SCRAM_SHA_512, 4096)]
    assert run("kafka-configs", "--describe", *where).stdout == (
        f"SCRAM credential configs for user-principal '{name}' are"
        " SCRAM-SHA-256=iterations=8192, SCRAM-SHA-512=iterations=4096\n"
    )
    run("kafka-configs", "--alter", *where, "--delete-config", "SCRAM-SHA-256,SCRAM-SHA-512")
    assert credentials(klamm, name) == []


def test_certificates_verify(tmp_path):
    folder = str(tmp_path / "certs")
    run("certs", "ca", "--dir", folder)
    run("certs", "node", "localhost", "127.0.0.1", "::1", "--dir", folder)
    run("certs", "client", "alice", "--dir", folder)
    done = subprocess.run(
        ["openssl", "verify", "-CAfile", f"{folder}/ca.pem", f"{folder}/node.pem", f"{folder}/alice.pem"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "certs").iterdir()} == {0o600}
    assert "exists" in run("certs", "ca", "--dir", folder, exits=1).stderr
    assert "cannot be a name" in run("certs", "client", "a/b", "--dir", folder, exits=1).stderr
    assert "no authority" in run("certs", "client", "bob", "--dir", str(tmp_path / "other"), exits=1).stderr
    assert "no host name" in run("certs", "node", "a,DNS:b", "--name", "n", "--dir", folder, exits=1).stderr
    assert "+ " in run("certs", "client", "bob", "--dir", folder, "--dry-run").stdout
    assert not (tmp_path / "certs" / "bob.pem").exists()
