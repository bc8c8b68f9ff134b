"""`klamm up --secure`: one command to TLS, passwords and rights, and a context that commands use."""

import json
import os
import subprocess

import pytest

from harness.process import KLAMM, KlammProcess
from harness.wire import unique


class SecureProcess(KlammProcess):
    def command(self) -> list[str]:
        return [*KLAMM, "up", "--secure", "--data", str(self.data), "--port", str(self.port), "--log-level", "info"]


@pytest.fixture
def contexts(tmp_path, monkeypatch):
    path = tmp_path / "contexts.json"
    monkeypatch.setenv("KLAMM_CONTEXTS", str(path))
    return path


def klamm(*words: str, stdin: bytes = b"", exits: int = 0) -> str:
    done = subprocess.run([*KLAMM, *words], input=stdin, capture_output=True, timeout=60, check=False)
    assert done.returncode == exits, done.stderr.decode()
    return done.stdout.decode() + done.stderr.decode()


def test_commands_log_in_by_the_context_and_users_need_rights(tmp_path, contexts):
    node = SecureProcess(tmp_path / "node")
    topic = unique()
    with node:
        klamm("topic", "create", topic)
        klamm("produce", topic, stdin=b"one\n")
        assert "one" in klamm("consume", topic, "--from", "earliest", "-n", "1")
        klamm("user", "add", "alice", "--password-file", "-", stdin=b"alice-secret\n")
        assert "alice" in klamm("user", "ls")
        # Another user is known, and may do nothing yet; without a login there is no answer.
        own = ("-b", node.bootstrap, "-X", "security.protocol=SASL_SSL", "-X", "sasl.mechanism=SCRAM-SHA-512")
        trust = ("-X", f"ssl.ca.location={node.data}/certs/ca.pem")
        alice = ("-X", "sasl.username=alice", "-X", "sasl.password=alice-secret")
        assert topic not in klamm("topic", "ls", *own, *trust, *alice)
        wrong = ("-X", "sasl.username=alice", "-X", "sasl.password=wrong")
        assert "Authentication failed" in klamm("topic", "ls", *own, *trust, *wrong, exits=4)
    kept = json.loads(contexts.read_text())
    assert kept["current"] == "secure"
    assert contexts.stat().st_mode & 0o777 == 0o600
    for name in ("server.properties", "admin.properties", "certs/ca.key", "certs/node.pem"):
        assert os.stat(node.data / name).st_mode & 0o777 == 0o600, name
    # The second start uses what is there.
    with SecureProcess(tmp_path / "node") as again:
        assert again.data == node.data


@pytest.mark.parametrize("words", [["--ephemeral"], ["--nodes", "3"]])
def test_one_node_that_keeps_its_data(words, contexts):
    assert "--secure runs one node" in klamm("up", "--secure", *words, exits=2)


def test_other_files_are_left_alone(tmp_path, contexts):
    (tmp_path / "mine.txt").write_text("")
    assert "holds other files" in klamm("up", "--secure", "--data", str(tmp_path / "."), exits=1)
