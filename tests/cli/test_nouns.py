"""The nouns against a node, as typed in a script: answers in JSON, changes shown first, codes a script can rely on."""

import json

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from harness import unique
from klamm.cli import exit_codes
from klamm.cli.main import cli

DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def no_contexts(monkeypatch, tmp_path):
    monkeypatch.setenv("KLAMM_CONTEXTS", str(tmp_path / "contexts.json"))
    for name in ("KLAMM_BOOTSTRAP", "KLAMM_CONTEXT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(klamm):
    def call(*args, exits=0, stdin=None, where=True):
        words = [*args, *(["-b", klamm.bootstrap] if where else [])]
        result = CliRunner().invoke(cli, words, input=stdin, prog_name="klamm")
        assert result.exit_code == exits, result.output
        return result

    return call


def rows(result) -> list[dict]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_topic_from_creation_to_deletion(run):
    # Like no other topic of the node: a missing topic is answered with one of nearly its name where there is one.
    name = unique("whole-life-of-a-topic")
    dry = run("topic", "create", name, "-p", "3", "-c", "retention=7d", "--dry-run")
    assert dry.stdout == f"+ topic {name} partitions=3 replicas=1 retention.ms=7d\n"
    assert name not in run("topic", "ls").stdout
    assert run("topic", "create", name, "-p", "3", "-c", "retention=7d").stdout.startswith(f"Created {name}")
    again = run("topic", "create", name, exits=exit_codes.REFUSED)
    assert "TOPIC_ALREADY_EXISTS" in again.stderr
    assert "klamm topic show" in again.stderr
    run("topic", "create", name, "--if-not-exists")
    listed = {row["topic"]: row for row in rows(run("topic", "ls", "whole-life-*", "--sizes"))}
    assert listed[name] == {
        "topic": name, "partitions": 3, "replicas": 1, "problem": None, "offsets": 0, "size_bytes": 0,
    }  # fmt: skip
    assert "__" not in "".join(listed)
    shown = rows(run("topic", "show", name))[0]
    assert shown["settings"]["retention.ms"] == str(7 * DAY_MS)
    assert [partition["leader"] for partition in shown["partitions"]] == [1, 1, 1]
    plan = run("topic", "alter", name, "-p", "4", "-c", "cleanup=compact", "--unset", "retention", "--dry-run")
    assert plan.stdout.splitlines() == [
        "~ cleanup.policy: delete -> compact", "~ retention.ms: 7d -> unset", "~ partitions: 3 -> 4",
    ]  # fmt: skip
    run("topic", "alter", name, "-p", "4", "-c", "cleanup=compact", "--unset", "retention")
    after = rows(run("topic", "show", name))[0]
    assert len(after["partitions"]) == 4
    assert after["settings"]["cleanup.policy"] == "compact"
    assert "retention.ms" not in after["settings"]
    assert "Nothing to change" in run("topic", "alter", name, "-p", "4", "-c", "cleanup=compact").stderr
    assert "no terminal to confirm" in run("topic", "delete", name, exits=exit_codes.NOT_AGREED).stderr
    assert run("topic", "delete", name, "--dry-run").stdout.startswith(f"- topic {name} ")
    assert run("topic", "delete", name, "-y").stdout == f"Deleted {name}.\n"
    gone = run("topic", "show", name, exits=exit_codes.NOT_FOUND)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in gone.stderr
    assert "klamm topic ls" in gone.stderr
    run("topic", "delete", name, "--if-exists", "-y")


def test_a_missing_topic_is_answered_with_one_of_nearly_its_name(run):
    name = unique("nearly-the-same-name")
    run("topic", "create", name)
    message = run("topic", "show", f"{name}x", exits=exit_codes.NOT_FOUND).stderr
    assert message == f"klamm: UNKNOWN_TOPIC_OR_PARTITION: there is no topic {name}x; did you mean topic {name}?\n"


def test_what_the_broker_refuses_is_said_in_its_words(run):
    assert "INVALID_TOPIC_EXCEPTION" in run("topic", "create", "no/slash", exits=1).stderr
    assert "INVALID_REPLICATION_FACTOR" in run("topic", "create", unique(), "-r", "9", exits=1).stderr
    assert "INVALID_CONFIG" in run("topic", "create", unique(), "-c", "segment.bytes=1", exits=1).stderr
    run("topic", "create", unique(), "-c", "retention=soon", exits=exit_codes.USAGE)
    refused = run("topic", "ls", "-b", "127.0.0.1:1", exits=exit_codes.NO_ANSWER, where=False)
    assert "no broker answers at 127.0.0.1:1" in refused.stderr
    assert "klamm doctor" in refused.stderr


def test_settings(run):
    name = unique("t")
    run("topic", "create", name)
    run("config", "set", "topic", name, "segment.bytes=64MiB", "retention=2d")
    settings = {row["setting"]: row for row in rows(run("config", "ls", "topic", name))}
    assert settings["segment.bytes"]["value"] == str(64 << 20)
    assert "2d" in run("config", "ls", "topic", name, "-o", "table").stdout
    assert "min.compaction.lag.ms" in run("config", "ls", "topic", name, "--all", "--docs").stdout
    assert run("config", "unset", "topic", name, "retention", "--dry-run").stdout == "~ retention.ms: 2d -> unset\n"
    run("config", "unset", "topic", name, "retention")
    assert "retention.ms" not in run("config", "ls", "topic", name).stdout
    assert rows(run("config", "ls", "broker", "1", "--all"))
    run("config", "ls", "topic", "not-there", exits=exit_codes.NOT_FOUND)


@pytest.mark.parametrize("words", [[], ["--dry-run"]], ids=["done", "dry"])
def test_unknown_settings_are_refused(run, words):
    name = unique("t")
    run("topic", "create", name)
    for kind, resource, wrong, right in (
        ("broker", "default", "log.retentoin.ms=5", "log.retention.ms"),
        ("broker", "1", "min.insync.replica=1", "min.insync.replicas"),
        ("topic", name, "retension.ms=5", "retention.ms"),
        ("group", "billing", "consumer.sesion.timeout.ms=50000", "consumer.session.timeout.ms"),
    ):
        message = run("config", "set", kind, resource, wrong, *words, exits=exit_codes.REFUSED).stderr
        assert "INVALID_CONFIG" in message
        assert f"did you mean {right}?" in message
        assert run("config", "unset", kind, resource, wrong.partition("=")[0], *words, exits=exit_codes.REFUSED)
    assert "did you mean retention.ms?" in run("topic", "alter", name, "-c", "retension.ms=5", *words, exits=1).stderr


def test_short_names_mean_the_settings_of_what_they_are_set_for(run):
    dry = run("config", "set", "broker", "default", "log.retention=3d", "--dry-run").stdout
    assert dry == "~ log.retention.ms: unset -> 3d\n"
    dry = run(
        "config", "set", "broker", "default", "retention=1GiB", "cleanup=compact", "max.message=2MiB", "--dry-run"
    )
    assert dry.stdout.splitlines() == [
        "~ log.retention.bytes: unset -> 1 GiB", "~ log.cleanup.policy: unset -> compact",
        "~ message.max.bytes: unset -> 2 MiB",
    ]  # fmt: skip
    run("config", "set", "broker", "default", "log.retention=3d")
    settings = {row["setting"]: row["value"] for row in rows(run("config", "ls", "broker", "default"))}
    assert {name: value for name, value in settings.items() if "retention" in name} == {
        "log.retention.ms": str(3 * DAY_MS)
    }
    run("config", "unset", "broker", "default", "log.retention")
    assert "retention" not in run("config", "ls", "broker", "default").stdout


@pytest.fixture
def filled(run, klamm):
    name = unique("filled")
    run("topic", "create", name, "-p", "2")
    producer = Producer({"bootstrap.servers": klamm.bootstrap, "log_level": 0})
    for i in range(20):
        producer.produce(
            name, json.dumps({"n": i}), key=f"k{i % 4}", partition=i % 2, timestamp=1_790_000_000_000 + i * 60_000
        )
    producer.flush(20)
    return name


def values(result) -> list[int]:
    return sorted(json.loads(row["value"])["n"] for row in rows(result))


def test_reading_by_every_means(run, filled):
    assert values(run("consume", filled)) == list(range(20))
    assert values(run("consume", filled, "-p", "1")) == list(range(1, 20, 2))
    assert values(run("consume", filled, "-p", "0", "--from", "7")) == [14, 16, 18]
    assert values(run("consume", filled, "-p", "0", "--from", "2", "--to", "4")) == [4, 6]
    assert values(run("consume", filled, "-p", "0", "--from", "-2")) == [16, 18]
    assert values(run("consume", filled, "--since", "2026-09-21T14:28:20Z")) == list(range(15, 20))
    assert values(run("consume", filled, "--until", "2026-09-21T14:18:20Z")) == list(range(5))
    assert values(run("consume", filled, "--key", "k1")) == [1, 5, 9, 13, 17]
    assert values(run("consume", filled, "--key", "k1", "--last", "2")) == [13, 17]
    assert values(run("consume", filled, "--last", "3")) == [17, 18, 19]
    assert values(run("consume", filled, "--where", "value.n >= 18")) == [18, 19]
    assert len(rows(run("consume", filled, "-n", "4"))) == 4
    assert values(run("tail", filled, "-n", "2", "--no-follow")) == [18, 19]
    text = run("consume", filled, "-p", "1", "--from", "9", "-f", r"%t/%p@%o %k=%v\n").stdout
    assert text == f'{filled}/1@9 k3={{"n": 19}}\n'
    decoded = rows(run("consume", filled, "-p", "1", "--from", "9", "--decode", "json"))
    assert decoded[0]["value"] == {"n": 19}
    assert run("consume", filled, "-n", "1", "-o", "csv").stdout.startswith(
        "topic,partition,offset,timestamp,key,value"
    )
    assert run("consume", filled, "-n", "1", "-o", "table").stdout.startswith("TOPIC ")
    run("consume", filled, "--where", "import os", exits=exit_codes.USAGE)
    run("consume", filled, "-f", "%x", exits=exit_codes.USAGE)
    run("consume", filled, "--since", "2h", "--last", "1", exits=exit_codes.USAGE)
    run("consume", "not-there", exits=exit_codes.NOT_FOUND)


def test_reading_as_a_group_goes_on_where_it_stopped(run, filled):
    group = unique("g")
    first = values(run("consume", filled, "-g", group, "-n", "5"))
    rest = values(run("consume", filled, "-g", group))
    assert len(first) == 5
    assert sorted(first + rest) == list(range(20))


def test_writing_lines_keys_json_and_files(run, tmp_path):
    name = unique("w")
    run("topic", "create", name)
    message = run("produce", name, stdin="one\ntwo\n")
    assert message.stderr.startswith("2 records (6 B) acknowledged")
    run("produce", name, "-K", ":", "-H", "source=test", "-q", stdin="a:1\nb:\n")
    run("produce", name, "-K", r"\t", "-T", "-q", stdin="gone\t\n")
    run("produce", name, "-i", "jsonl", "-q", stdin='{"key": "j", "value": {"x": 1}, "timestamp": 1000}\n\n[1, 2]\n')
    file = tmp_path / "blob"
    file.write_bytes(b"\x00\xff")
    run("produce", name, str(file), "-i", "file", "-k", "blob", "-z", "zstd", "-q")
    consumed = rows(run("consume", name))
    assert [(row["key"], row["value"]) for row in consumed] == [
        (None, "one"), (None, "two"), ("a", "1"), ("b", ""), ("gone", None), ("j", '{"x":1}'), (None, "[1, 2]"),
        ("blob", {"base64": "AP8="}),
    ]  # fmt: skip
    assert consumed[2]["headers"] == {"source": "test"}
    assert consumed[5]["timestamp"] == 1000
    copy = unique("copy")
    run("topic", "create", copy)
    run("produce", copy, "-i", "jsonl", "-q", stdin=run("consume", name).stdout)
    same = [(row["key"], row["value"], row["headers"], row["timestamp"]) for row in rows(run("consume", copy))]
    assert same == [(row["key"], row["value"], row["headers"], row["timestamp"]) for row in consumed]
    run("produce", name, "-K", ":", stdin="no separator\n", exits=exit_codes.USAGE)
    run("produce", name, "-i", "jsonl", stdin="{", exits=exit_codes.USAGE)


def test_trimming(run, filled):
    assert (
        run("topic", "trim", filled, "--before", "4", "-p", "0", "--dry-run").stdout == f"- {filled}-0 offsets 0 to 3\n"
    )
    run("topic", "trim", filled, "--before", "4", "-p", "0", "-y")
    assert values(run("consume", filled, "-p", "0")) == list(range(8, 20, 2))


def test_a_protected_context_wants_its_name(run, klamm):
    assert rows(run("ctx", "ls", where=False)) == []
    run("ctx", "add", "prod", "-b", klamm.bootstrap, "-X", "ssl.key.password=secret", "--protected", where=False)
    run("ctx", "add", "dev", "-b", "127.0.0.1:1", where=False)
    assert [(r["context"], r["in_use"], r["protected"]) for r in rows(run("ctx", "ls", where=False))] == [
        ("dev", False, False), ("prod", True, True),
    ]  # fmt: skip
    assert "secret" not in run("ctx", "show", "prod", where=False).stdout
    name = unique("guarded")
    refused = run("topic", "create", name, where=False, exits=exit_codes.NOT_AGREED)
    assert "--confirm prod" in refused.stderr
    run("topic", "create", name, "--yes", exits=exit_codes.NOT_AGREED)  # the address does not get around the mark
    run("topic", "create", name, "--confirm", "prod", where=False)
    assert name in run("topic", "ls", where=False).stdout
    run("topic", "ls", "--ctx", "dev", where=False, exits=exit_codes.NO_ANSWER)
    run("ctx", "protect", "prod", "--off", where=False, exits=exit_codes.NOT_AGREED)
    run("ctx", "rm", "prod", "--yes", where=False, exits=exit_codes.NOT_AGREED)
    run("ctx", "add", "prod", "-b", klamm.bootstrap, where=False, exits=exit_codes.NOT_AGREED)
    run("produce", name, where=False, stdin="x\n", exits=exit_codes.NOT_AGREED)
    run("produce", name, "--confirm", "prod", where=False, stdin="x\n")
    run("bench", "-n", "1", where=False, exits=exit_codes.NOT_AGREED)
    checks = {row["check"]: row["state"] for row in rows(run("doctor", where=False))}
    assert (checks["round trip"], "clock" in checks) == ("left out", False)
    run("ctx", "protect", "prod", "--off", "--confirm", "prod", where=False)
    run("topic", "delete", name, "-y", where=False)
    run("ctx", "use", "dev", where=False)
    run("topic", "ls", where=False, exits=exit_codes.NO_ANSWER)
    run("ctx", "rm", "dev", where=False)
    run("ctx", "use", "dev", where=False, exits=exit_codes.NOT_FOUND)


def test_the_cluster_and_the_doctor(run):
    about = rows(run("cluster", "show"))[0]
    assert about["quorum_leader"] == about["controller"] == 1
    assert [broker["state"] for broker in about["brokers"]] == ["alive"]
    states = {row["check"]: row["state"] for row in rows(run("doctor"))}
    assert states == dict.fromkeys(
        ("DNS", "TCP", "versions", "advertised addresses", "partitions", "disk", "round trip", "clock"), "ok"
    )
    assert "klamm-doctor" not in run("topic", "ls").stdout
    sick = run("doctor", "-b", "127.0.0.1:1", where=False, exits=exit_codes.NO_ANSWER)
    assert "is a node running there" in sick.stdout
    assert rows(run("bench", "-n", "2000", "--topic", unique("bench")))[0]["records"] == 2000


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell, run, filled, monkeypatch):
    assert "_KLAMM_COMPLETE" in run("completion", shell, where=False).stdout


def test_the_tab_key_finds_topics(filled, klamm):
    from click.shell_completion import ShellComplete

    words = ["topic", "show", "-b", klamm.bootstrap]
    completions = ShellComplete(cli, {}, "klamm", "_KLAMM_COMPLETE").get_completions(words, filled[:8])
    assert filled in [item.value for item in completions]


def test_the_scripts_are_written_and_run(run, tmp_path, klamm):
    import subprocess

    folder = tmp_path / "bin"
    run("shims", str(folder), where=False)
    listed = subprocess.run(
        [str(folder / "kafka-topics.sh"), "--list", "--bootstrap-server", klamm.bootstrap],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert listed.returncode == 0, listed.stderr
    assert "is there already" in run("shims", str(folder), where=False, exits=1).stderr
    run("shims", str(folder), "--force", where=False)
    again = run("shims", str(folder), "--dry-run", where=False).stdout.splitlines()
    assert {line[0] for line in again} == {"~"}
    other = tmp_path / "other"
    assert run("shims", str(other), "--dry-run", where=False).stdout.startswith(f"+ {other}/kafka-acls.sh\n")
    assert not other.exists()


def test_one_thing_is_one_object(run):
    for form in ("json", "jsonl"):
        assert json.loads(run("version", "-o", form, where=False).stdout)["klamm"]
    assert run("version", "-o", "yaml", where=False).stdout.startswith("klamm: ")
    run("ctx", "add", "dev", "-b", "127.0.0.1:1", where=False)
    assert json.loads(run("ctx", "show", "-o", "json", where=False).stdout)["context"] == "dev"
    assert run("ctx", "show", "-o", "yaml", where=False).stdout.startswith("context: ")


def test_contexts_show_what_would_change(run):
    dry = run("ctx", "add", "dev", "-b", "127.0.0.1:1", "--dry-run", where=False)
    assert dry.stdout == "+ context dev bootstrap=127.0.0.1:1 protected=no\n~ in use: unset -> dev\n"
    assert rows(run("ctx", "ls", where=False)) == []
    run("ctx", "add", "dev", "-b", "127.0.0.1:1", where=False)
    again = run("ctx", "add", "dev", "-b", "127.0.0.1:2", "-X", "client.id=me", "--dry-run", where=False)
    assert again.stdout == (
        "~ context dev: bootstrap=127.0.0.1:1 protected=no settings=none"
        " -> bootstrap=127.0.0.1:2 protected=no settings=client.id\n"
    )
    assert (
        "did you mean client.id"
        in run("ctx", "add", "x", "-b", "a:1", "-X", "client.idd=1", where=False, exits=1).stderr
    )
    assert run("ctx", "rm", "dev", "--dry-run", where=False).stdout.startswith("- context dev ")
    assert [row["context"] for row in rows(run("ctx", "ls", where=False))] == ["dev"]


def test_a_dry_run_of_writing_shows_records_and_writes_none(run, filled):
    before = values(run("consume", filled))
    shown = run("produce", filled, "-K", ":", "--dry-run", stdin="k:v\n" + "k:" + "x" * 100 + "\n" + "a:b\n" * 20)
    lines = shown.stdout.splitlines()
    assert lines[0] == f"+ {filled} key=k value=v"
    assert lines[1] == f"+ {filled} key=k value={'x' * 60}... (100 bytes)"
    assert lines[-1].startswith("+ ... and 12 more, 22 records")
    assert run("bench", "--topic", filled, "-n", "5", "--dry-run").stdout == f"+ 5 records of 100 bytes in {filled}\n"
    assert values(run("consume", filled)) == before


def test_kafkas_names_are_completed_once_they_are_meant(run):
    from click.shell_completion import ShellComplete

    from klamm.cli.main import cli

    complete = ShellComplete(cli, {}, "klamm", "_KLAMM_COMPLETE").get_completions
    assert [item.value for item in complete([], "kafka-con")] == [
        "kafka-configs", "kafka-console-consumer", "kafka-console-producer", "kafka-consumer-groups",
        "kafka-consumer-perf-test",
    ]  # fmt: skip
    assert [item.value for item in complete([], "to")] == ["top", "topic"]
