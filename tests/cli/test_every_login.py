"""Commands and services log in to a cluster in every way that its listeners have."""

import contextlib
from pathlib import Path

import pytest
from click.testing import CliRunner

from console.served import ServedConsole
from harness.logins import LOGINS, running_listeners
from harness.wire import unique
from klamm.cli.console import _list_clusters
from klamm.cli.main import cli
from klamm.cli.target import resolve
from klamm.client import Admin
from klamm.console.service import ConsoleConfig
from klamm.console.settings import ConsoleSettings
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.topics import ClusterTopics
from registry.conftest import running_registry
from rest.conftest import running_proxy


@pytest.fixture(scope="module")
def listeners(tmp_path_factory):
    with running_listeners(tmp_path_factory.mktemp("secured")) as running:
        yield running


@pytest.fixture(params=LOGINS)
def settings(request, listeners):
    return listeners.settings(request.param)


@pytest.fixture(autouse=True)
def contexts(tmp_path, monkeypatch):
    monkeypatch.setenv("KLAMM_CONTEXTS", str(tmp_path / "contexts.json"))


def run(*words: str, stdin: str | None = None) -> str:
    done = CliRunner().invoke(cli, list(words), input=stdin, prog_name="klamm")
    assert done.exit_code == 0, done.output
    return done.output


def store_context(settings: dict[str, str]) -> None:
    pairs = [f"{name}={value}" for name, value in settings.items() if name != "bootstrap.servers"]
    options = [word for pair in pairs for word in ("-X", pair)]
    run("ctx", "add", "secured", "-b", settings["bootstrap.servers"], *options)
    run("ctx", "use", "secured")


def test_commands_with_a_context(settings):
    store_context(settings)
    topic = unique()
    run("topic", "create", topic)
    run("produce", topic, stdin="one\n")
    assert "one" in run("consume", topic, "--from", "earliest", "-n", "1")
    assert topic in run("topic", "ls")
    run("doctor")


def test_files_of_a_context_are_found_from_every_folder(listeners, tmp_path, monkeypatch):
    settings = listeners.settings("certificate")
    for name in [name for name in settings if name.endswith(".location")]:
        (tmp_path / name).write_bytes(Path(settings[name]).read_bytes())
        settings[name] = name
    monkeypatch.chdir(tmp_path)
    store_context(settings)
    monkeypatch.chdir("/")
    run("topic", "ls")


def test_a_context_hides_its_secrets():
    secrets = (
        "sasl.password",
        "sasl.jaas.config",
        "ssl.key.password",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
    )
    secrets += ("sasl.oauthbearer.client.secret", "sasl.oauthbearer.client.credentials.client.secret")
    shown = {"sasl.username": "ada", "sasl.oauthbearer.token.endpoint.url": "https://login.example.com/token"}
    pairs = [*(f"{name}=hide me" for name in secrets), *(f"{name}={value}" for name, value in shown.items())]
    run("ctx", "add", "hidden", "-b", "127.0.0.1:1", *(word for pair in pairs for word in ("-X", pair)))
    output = run("ctx", "show", "hidden")
    assert "hide me" not in output
    assert output.count("[hidden]") == len(secrets)
    assert all(value in output for value in shown.values())


def test_a_context_with_secrets_that_others_can_read_is_warned_of(tmp_path):
    run("ctx", "add", "plain", "-b", "127.0.0.1:1")
    path = tmp_path / "contexts.json"
    path.chmod(0o644)
    assert "chmod" not in run("ctx", "ls"), "without secrets there is nothing to warn of"
    run("ctx", "add", "hidden", "-b", "127.0.0.1:1", "-X", "sasl.password=hide me")
    assert path.stat().st_mode & 0o077 == 0, "it is written for its owner alone"
    path.chmod(0o640)
    output = run("ctx", "ls")
    assert output.count(f"run: chmod 600 {path}") == 1
    assert "hide me" not in output


def test_commands_of_kafka_with_a_properties_file(settings, tmp_path):
    topic = unique()
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    options = ("--bootstrap-server", settings["bootstrap.servers"], "--command-config", str(file))
    run("kafka-topics", "--create", "--topic", topic, *options)
    assert topic in run("kafka-topics", "--list", *options)


def test_the_registry(settings):
    with running_registry(settings["bootstrap.servers"], unique("_schemas"), unique(), settings=settings) as registry:
        assert registry.register("orders-value", '"string"')["id"] == 1


def test_the_rest_proxy(settings):
    with Admin(settings) as admin:
        admin.create_topic(topic := unique())
    with running_proxy(settings["bootstrap.servers"], settings=settings) as proxy:
        proxy.produce(topic, {"item": "tea"})
        instance = proxy.create_instance(unique())
        assert proxy.post(f"{instance}/subscription", {"topics": [topic]}).status == 204
        accepted = {"Accept": "application/vnd.kafka.json.v2+json"}
        assert proxy.read_until(instance, 1, **accepted)[0]["value"] == {"item": "tea"}
        assert topic in proxy.get("/topics").json()


def test_the_console(settings):
    store_context(settings)
    run("topic", "create", topic := unique())
    clusters = _list_clusters(resolve(None, "secured", (), None), all_contexts=False)
    with ServedConsole(ConsoleConfig(tuple(clusters), ConsoleSettings(), interval_s=600)) as console:
        console.collect("secured")
        with contextlib.closing(console.visitor().client) as client:
            response = client.get("/c/secured/topics")
        assert topic in response.text


def test_topics_of_a_pipeline(settings):
    """What a pipeline does without Spark; the settings of its queries are those of `tests/pipeline/sql`."""
    lines = "".join(
        f"SET kafka.{name} = '{value}';\n" for name, value in settings.items() if name != "bootstrap.servers"
    )
    pipeline = compile_text(
        f"SET bootstrap = '{settings['bootstrap.servers']}';\n{lines}CREATE STREAM s (a INT) WITH (topic = 't');"
    )
    topics = ClusterTopics(pipeline)
    assert topics.cluster_id()
    with topics.admin() as admin:
        admin.create_topic(topic := unique(), 1)
    with topics.watcher() as consumer:
        assert consumer.partitions_for(topic) == [0]
    registry = topics.registry()
    registry.ensure()
    assert registry.read(unique()) is None
