"""`klamm consume` and `tail` as processes: where they end, what they leave behind, and what a script sees of them."""

import json
import os
import select
import signal
import subprocess

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from harness import KLAMM, batch, unique
from harness.members import wait_until

PATIENCE_S = 60
CHAT_RECORDS = 10
OPEN_RECORDS = 3
LARGE_RECORDS = 2000
"""Of a kilobyte each: many times what a pipe holds."""


@pytest.fixture
def start(klamm):
    """Start a command; it is killed at the end should it still run."""
    running = []

    def call(*args, **more):
        command = [*KLAMM, *map(str, args), "-b", klamm.bootstrap]
        env = {**os.environ, "KLAMM_CONTEXTS": os.devnull}
        env.pop("PYTHONUNBUFFERED", None)  # with it, Python itself forgets the rest of what a pipe took in part
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        process = subprocess.Popen(command, text=True, env=env, **pipes)
        running.append(process)
        return process

    yield call
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
def run(start):
    """Run a command to its end: exit code, standard output, standard error."""

    def call(*args):
        process = start(*args)
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, err

    return call


@pytest.fixture
def chat(klamm, wire):
    """A topic of one partition with CHAT_RECORDS records."""
    name = wire.create_topic()
    write(klamm, name, range(CHAT_RECORDS))
    return name


def write(klamm, topic, values, **more):
    producer = Producer({"bootstrap.servers": klamm.bootstrap, "log_level": 0, **more})
    for value in values:
        producer.produce(topic, str(value), partition=0)
    producer.flush(20)


def values(text):
    return [json.loads(line)["value"] for line in text.splitlines()]


def committed(klamm, group, topic):
    """What an independent client says the group has committed."""
    consumer = Consumer({"bootstrap.servers": klamm.bootstrap, "group.id": group, "log_level": 0})
    try:
        return consumer.committed([TopicPartition(topic, 0)], timeout=20)[0].offset
    finally:
        consumer.close()


@pytest.fixture
def open_transaction(klamm, chat):
    """OPEN_RECORDS records of an open transaction, behind those of `chat`."""
    producer = Producer({"bootstrap.servers": klamm.bootstrap, "transactional.id": unique("tx"), "log_level": 0})
    producer.init_transactions(20)
    producer.begin_transaction()
    for i in range(OPEN_RECORDS):
        producer.produce(chat, f"open {i}", partition=0)
    producer.flush(20)
    yield producer
    producer.abort_transaction(20)


@pytest.mark.parametrize(
    "place",
    [[], ["-p", "0"], ["--from", "8"], ["--from", "-2"], ["--last", "2"], ["--since", "1h"], ["--to", "12"],
     ["-n", "20"], ["--until", "2100-01-01"]],
    ids=" ".join,
)  # fmt: skip
def test_an_open_transaction_is_the_end(run, chat, open_transaction, place):
    code, out, err = run("consume", chat, "--read-committed", *place)
    assert code == 0
    assert values(out)[-2:] == ["8", "9"]
    if "--until" not in place:
        assert "open transaction keeps back" in err
    assert len(values(run("consume", chat)[1])) == CHAT_RECORDS + OPEN_RECORDS


def test_an_open_transaction_is_the_end_of_a_tail_and_a_group_too(run, chat, open_transaction):
    assert values(run("tail", chat, "--no-follow", "-n", "2", "--read-committed")[1]) == ["8", "9"]
    assert len(values(run("consume", chat, "-g", unique("g"), "--read-committed")[1])) == CHAT_RECORDS


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_member_that_follows_commits_and_leaves(klamm, start, run, chat, number):
    group = unique("g")
    process = start("consume", chat, "-g", group, "--follow", "-f", "%v\\n")
    seen = [process.stdout.readline() for _ in range(CHAT_RECORDS)]
    process.send_signal(number)
    assert (process.stdout.read(), process.stderr.read(), process.wait(PATIENCE_S)) == ("", "", 0)
    assert seen == [f"{i}\n" for i in range(CHAT_RECORDS)]
    assert committed(klamm, group, chat) == CHAT_RECORDS
    code, out, _ = run("group", "show", group, "-o", "json")
    assert (code, json.loads(out)["state"], json.loads(out)["members"]) == (0, "Empty", [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_following_ends_well_whenever_it_is_told_to(start, chat, number):
    for command in (["tail", chat], ["consume", chat, "--follow"]):
        process = start(*command)
        assert json.loads(process.stdout.readline())["value"] == "0"
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0
    process = start("tail", chat, "-o", "json")
    begun = ""
    while '"value": "9"' not in begun:
        begun += process.stdout.readline()
    process.send_signal(number)
    assert len(json.loads(begun + process.stdout.read())) == CHAT_RECORDS
    assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_is_not_done_says_so(start, run, wire, number, code):
    name = wire.create_topic()
    process = start("produce", name, stdin=subprocess.PIPE)
    process.stdin.write("one\n")
    process.stdin.flush()
    wait_until(lambda: values(run("consume", name)[1]) == ["one"])
    process.send_signal(number)
    assert process.wait(PATIENCE_S) == code


def test_a_member_waits_for_a_dead_one(klamm, start, run, chat):
    """The partitions of a member that was killed come free when the group gives it up, not before."""
    group = unique("g")
    # Long enough that the next one says that it waits, whatever the machine does meanwhile.
    short = ["-X", "session.timeout.ms=8000"]
    dead = start("consume", chat, "-g", group, "--follow", *short)
    assert json.loads(dead.stdout.readline())["value"] == "0"
    dead.kill()
    dead.wait()
    code, out, err = run("consume", chat, "-g", group, *short)
    assert code == 0
    assert values(out) == [str(i) for i in range(CHAT_RECORDS)]
    assert f"waiting for the group {group} to give partitions" in err


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_ends_at_the_end_and_goes_on_there(klamm, run, chat, protocol):
    group, modern = unique("g"), ["-X", f"group.protocol={protocol}"]
    assert values(run("consume", chat, "-g", group, *modern)[1]) == [str(i) for i in range(CHAT_RECORDS)]
    assert run("consume", chat, "-g", group, *modern)[1] == ""
    more = ["x", "y"]
    write(klamm, chat, more)
    assert values(run("consume", chat, "-g", group, *modern)[1]) == more
    assert committed(klamm, group, chat) == CHAT_RECORDS + len(more)


def test_a_member_that_found_nothing_keeps_its_place(run, wire):
    """Records that arrive between two readers are there for the next one, though reading began at the end."""
    topic = wire.create_topic()
    words = ("consume", topic, "-g", unique("idle"), "-X", "auto.offset.reset=latest", "-f", "%v\\n")
    assert run(*words)[1] == ""
    wire.produce(topic, batch(b"later"))
    assert run(*words)[1] == "later\n"


def test_a_member_wants_a_topic_and_all_its_partitions(run, chat):
    code, _, err = run("consume", "not-there", "-g", unique("g"))
    assert (code, "UNKNOWN_TOPIC_OR_PARTITION" in err) == (3, True)
    assert run("consume", chat, "-g", unique("g"), "-p", "0")[0] == 2


@pytest.mark.parametrize("form", [["-o", "jsonl"], ["-o", "csv"], ["-o", "json"], ["-f", "%v\\n"]], ids=" ".join)
def test_a_reader_that_has_seen_enough(klamm, start, wire, form):
    name = wire.create_topic()
    write(klamm, name, ["x" * 1000] * LARGE_RECORDS, **{"batch.num.messages": 100})
    process = start("consume", name, *form)
    assert process.stdout.readline()
    process.stdout.close()  # as head -1 does, long before two megabytes fit into the pipe
    assert process.wait(PATIENCE_S) == 0
    assert process.stderr.read() == ""


@pytest.mark.parametrize("options", [[], ["-o", "json"], ["-g", "group"]], ids=" ".join)
def test_a_pipe_without_a_reader_delays_no_end(klamm, start, wire, options):
    name, group = wire.create_topic(), unique("g")
    write(klamm, name, ["small", *["x" * 100_000] * 20])
    reads, writes = os.pipe()
    try:
        words = [group if word == "group" else word for word in options]
        process = start("consume", name, "--follow", *words, stdout=writes)
        wait_until(lambda: not select.select([], [writes], [], 0)[1])
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        os.close(reads)
        os.close(writes)
    if "-g" in options:
        assert committed(klamm, group, name) == 1


def test_two_members_share_and_lose_nothing(klamm, start, wire):
    """Partitions that go from one to the other are committed before: each record is printed once."""
    name, group = wire.create_topic(partitions=4), unique("g")
    producer = Producer({"bootstrap.servers": klamm.bootstrap, "log_level": 0})

    def send(values):
        for value in values:
            producer.produce(name, str(value), partition=value % 4)
        producer.flush(20)

    send(range(40))
    first = start("consume", name, "-g", group, "--follow", "-f", "%v\\n")
    seen = [int(first.stdout.readline()) for _ in range(40)]
    second = start("consume", name, "-g", group, "--follow", "-f", "%v\\n")
    wait_until(lambda: shares(klamm, group) == [2, 2])
    send(range(40, 80))
    for process in (first, second):
        seen += [int(process.stdout.readline()) for _ in range(20)]
    for process in (first, second):
        process.send_signal(signal.SIGTERM)
        assert (process.stdout.read(), process.wait(PATIENCE_S)) == ("", 0)
    assert sorted(seen) == list(range(80))


def shares(klamm, group):
    admin = AdminClient({"bootstrap.servers": klamm.bootstrap, "log_level": 0})
    description = admin.describe_consumer_groups([group])[group].result(20)
    return sorted(len(member.assignment.topic_partitions) for member in description.members)


def test_what_a_member_could_not_write_is_not_committed(klamm, start, wire):
    name, group = wire.create_topic(), unique("g")
    write(klamm, name, ["x" * 1000] * LARGE_RECORDS, **{"batch.num.messages": 100})
    process = start("consume", name, "-g", group, "-f", "%v\\n")
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(PATIENCE_S) == 0
    assert 0 < committed(klamm, group, name) < LARGE_RECORDS


def test_a_place_beyond_the_end_is_told(run, chat):
    code, out, err = run("consume", chat, "-p", "0", "--from", "99")
    assert (code, out) == (0, "")
    assert err == f"klamm: there is no offset 99 yet: {chat}-0 ends at {CHAT_RECORDS}\n"
    assert run("consume", chat, "-p", "0", "--from", str(CHAT_RECORDS)) == (0, "", "")


@pytest.mark.parametrize("place", ["bogus", "1.5", ""])
def test_a_place_that_is_none_is_a_mistake_of_the_command_line(run, chat, place):
    code, _, err = run("consume", chat, f"--from={place}")
    assert code == 2
    for word in ("earliest", "latest", "an offset", "-N", "a time"):
        assert word in err
    assert run("topic", "trim", chat, f"--before={place}", "--dry-run")[0] == 2


def test_records_that_cannot_be_judged_are_counted(run, chat):
    code, out, err = run("consume", chat, "--where", 'value * 1 > 1 or text(value) > value.x or value.x == "1"')
    assert code == 2
    code, out, err = run("consume", chat, "--where", "len(key) + number(value) / 0 > 1")
    assert (code, out) == (0, "")
    assert err.startswith(
        f"klamm: --where could not judge {CHAT_RECORDS} records, which did not pass: number(value) / 0 cannot"
    )
    assert run("consume", chat, "--where", '"a"*999999999 == key')[0] == 2
    assert len(values(run("consume", chat, "--where", "key == null")[1])) == CHAT_RECORDS


def test_forms_that_exclude_each_other(run, chat):
    code, _, err = run("consume", chat, "-f", "%v", "-o", "json")
    assert (code, "exclude each other" in err) == (2, True)


def test_bytes_and_nulls_as_a_person_reads_them(klamm, run, wire):
    name = wire.create_topic()
    producer = Producer({"bootstrap.servers": klamm.bootstrap, "log_level": 0})
    producer.produce(name, b"\xff\xfe\x00bin", partition=0, timestamp=1000)
    producer.produce(name, None, key=b"gone", partition=0, timestamp=1000)
    producer.flush(20)
    _, out, _ = run("consume", name, "-o", "table")
    head, first, second = out.splitlines()
    assert head.split() == ["TOPIC", "PARTITION", "OFFSET", "TIME", "KEY", "VALUE"]
    assert first.split()[4:] == ["(null)", r"\xff\xfe\x00bin"]
    assert second.split()[4:] == ["gone", "(null)"]
    assert [line.index(word) for line, word in ((head, "KEY"), (first, "(null)"), (second, "gone"))] == [
        head.index("KEY")
    ] * 3


def test_a_csv_file_has_its_head_without_rows_too(run, wire):
    _, out, _ = run("consume", wire.create_topic(), "-o", "csv")
    assert out == "topic,partition,offset,timestamp,key,value,headers\n"
    assert run("topic", "ls", "no-such-*", "-o", "csv")[1] == "topic,partitions,replicas,problem\n"
    assert run("consume", wire.create_topic(), "-o", "json")[1] == "[]\n"


def test_help_shows_examples_line_by_line(start):
    for command in ("produce", "consume", "tail", "completion"):
        process = subprocess.run([*KLAMM, command, "--help"], capture_output=True, text=True, check=True)
        assert "\\b" not in process.stdout
    assert "%t topic" in subprocess.run([*KLAMM, "tail", "--help"], capture_output=True, text=True, check=True).stdout
    lines = subprocess.run(
        [*KLAMM, "produce", "--help"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert "  klamm produce orders -K : < orders.txt" in lines
