"""`klamm up --secure`: one command to TLS, passwords and rights, and a context that commands use."""

import json
import os
import socket
import subprocess

import pytest

from harness.process import KLAMM, KlammProcess
from harness.wire import unique
from klamm.cli import up_secure
from klamm.cli.client_settings import read_properties
from klamm.cli.command_errors import CommandRefusal
from klamm.cli.context_file import Context, Contexts, load, save
from klamm.cli.up_secure import override_listeners, prepare, save_context


class SecureProcess(KlammProcess):
    def command(self) -> list[str]:
        command = [*KLAMM, "up", "--secure", "--data", str(self.data), "--port", str(self.port), "--log-level", "info"]
        return [*command, "--override", "metrics.listeners="]


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
    assert os.stat(node.data / "data" / "__cluster_metadata-0").st_mode & 0o777 == 0o700
    # The second start uses what is there, on the port that it is given.
    with SecureProcess(tmp_path / "node") as again:
        assert again.port != node.port
        assert topic in klamm("topic", "ls")
    assert json.loads(contexts.read_text())["contexts"]["secure"]["bootstrap"] == again.bootstrap


@pytest.mark.parametrize("words", [["--ephemeral"], ["--nodes", "3"]])
def test_one_node_that_keeps_its_data(words, contexts):
    assert "--secure runs one node" in klamm("up", "--secure", *words, exits=2)


def test_other_files_are_left_alone(tmp_path, contexts):
    (tmp_path / "mine.txt").write_text("")
    assert "holds other files" in klamm("up", "--secure", "--data", str(tmp_path / "."), exits=1)


def test_a_first_start_that_failed_can_be_repeated(tmp_path, contexts, monkeypatch):
    folder = tmp_path / "node"
    with monkeypatch.context() as without:
        without.setenv("PATH", str(tmp_path))
        with pytest.raises(CommandRefusal, match="openssl is not installed"):
            prepare(str(folder), host=None, port=None)
    path = prepare(str(folder), host=None, port=9192)
    assert read_properties(path)["log.dirs"] == str(folder / "data")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(os.listdir(folder)) == ["admin.properties", "certs", "data", "server.properties"]


@pytest.mark.parametrize("step", ["_make_certificates", "_format", "_client_settings", "_write_private"])
def test_a_first_start_that_was_interrupted_begins_anew(tmp_path, monkeypatch, step):
    """Also with new passwords: those of an unfinished one are in no file."""
    folder = tmp_path / "node"
    real = getattr(up_secure, step)

    def interrupt(*values):
        real(*values)
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(up_secure, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(str(folder), host=None, port=None)
    assert not (folder / "server.properties").exists()
    unfinished = {path.read_bytes() for path in folder.glob("data/**/*.checkpoint")}
    assert bool(unfinished) == (step != "_make_certificates")
    prepare(str(folder), host=None, port=None)
    assert not unfinished & {path.read_bytes() for path in folder.glob("data/**/*.checkpoint")}
    assert sorted(os.listdir(folder)) == ["admin.properties", "certs", "data", "server.properties"]


def test_a_first_start_does_not_disturb_another_one(tmp_path, monkeypatch):
    real = up_secure._format

    def format_while_another_begins(*values):
        real(*values)
        with pytest.raises(CommandRefusal, match="another start is making the node"):
            prepare(str(tmp_path), host=None, port=None)

    monkeypatch.setattr(up_secure, "_format", format_while_another_begins)
    prepare(str(tmp_path), host=None, port=None)
    assert (tmp_path / "data").is_dir()


def make_folder(folder, port: int) -> str:
    """What the first start leaves, without its certificates and data."""
    (folder / "server.properties").write_text(f"listeners=CLIENTS://127.0.0.1:{port},CONTROLLER://127.0.0.1:0\n")
    (folder / "admin.properties").write_text(f"ssl.ca.location={folder}/certs/ca.pem\nsasl.username=admin\n")
    return str(folder / "server.properties")


def test_a_given_port_takes_effect_and_another_host_is_refused(tmp_path):
    path = make_folder(tmp_path, 9192)
    assert override_listeners(path, host=None, port=None) == ()
    assert override_listeners(path, host="127.0.0.1", port=9192) == ()
    assert override_listeners(path, host=None, port=9193) == (
        "listeners=CLIENTS://127.0.0.1:9193,CONTROLLER://127.0.0.1:0",
    )
    with pytest.raises(CommandRefusal, match=r"certificate for 127\.0\.0\.1, not for 10\.0\.0\.7"):
        override_listeners(path, host="10.0.0.7", port=None)


def test_a_context_of_another_cluster_stays(tmp_path, contexts, capsys):
    make_folder(tmp_path, 9192)
    other = Context("prod:9092", protected=True)
    save(Contexts("prod", {"secure": other}))
    save_context(str(tmp_path), host="127.0.0.1", port=9192)
    assert "'secure-2' is in use ('secure' belongs to another cluster)" in capsys.readouterr().err
    kept = load()
    assert kept.contexts["secure"] == other
    assert (kept.current, kept.contexts["secure-2"].bootstrap) == ("secure-2", "127.0.0.1:9192")
    # The folder has a context now, which a later start changes.
    save_context(str(tmp_path), host="127.0.0.1", port=9193)
    assert load().contexts["secure-2"].bootstrap == "127.0.0.1:9193"
    assert len(load().contexts) == 2


def test_a_node_that_cannot_start_leaves_the_context_in_use(tmp_path, contexts):
    save(Contexts("dev", {"dev": Context("dev:9092")}))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        complaint = klamm("up", "--secure", "--data", str(tmp_path / "node"), "--port", port, exits=1)
    assert "choose another with --port" in complaint
    assert load() == Contexts("dev", {"dev": Context("dev:9092")})
