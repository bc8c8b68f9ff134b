"""Stream processors of Python: quixstreams exactly once, faust with its tables."""

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from ecosystem import manifests, pips
from ecosystem.cluster import Cluster, eventually
from ecosystem.processes import Process

ACCOUNTS = 8
QUIX = manifests.pip_version(pips.PYTHON / "quixstreams" / "requirements.txt", "quixstreams")
FAUST = manifests.pip_version(pips.PYTHON / "faust" / "requirements.txt", "faust-streaming")


def payments(count: int) -> list[tuple[str, str]]:
    """Payments to accounts in turn, by number."""
    return [
        (f"account-{number % ACCOUNTS}", json.dumps({"number": number, "amount": number % 17}))
        for number in range(count)
    ]


def running_totals(count: int) -> dict[str, list[tuple[int, int]]]:
    """What comes out: for each account every payment's number, with the total after it."""
    totals: Counter[str] = Counter()
    expected = defaultdict(list)
    for key, text in payments(count):
        event = json.loads(text)
        totals[key] += event["amount"]
        expected[key].append((event["number"], totals[key]))
    return dict(expected)


def read_totals(cluster: Cluster, topic: str) -> dict[str, list[tuple[int, int]]]:
    seen = defaultdict(list)
    for record in cluster.read(topic):
        event = json.loads(record.text)
        seen[(record.key or b"").decode()].append((event["number"], event["total"]))
    return dict(seen)


@pytest.mark.program("quixstreams", QUIX)
class TestQuixstreams:
    def start(self, cluster: Cluster, topic: str, folder: Path, name: str) -> Process:
        """An instance with a state folder of its own: its state comes from the changelog."""
        flags = {"bootstrap": cluster.bootstrap, "topic": topic, "to": f"{topic}-totals", "group": topic}
        flags["state"] = str(folder / name)
        words = [word for flag, content in flags.items() for word in (f"--{flag}", content)]
        program = str(pips.PYTHON / "quixstreams" / "main.py")
        return Process([str(pips.interpreter("quixstreams")), program, *words], folder / f"{name}.log")

    @pytest.mark.quick
    def test_running_totals(self, cluster: Cluster, topic: str, tmp_path: Path) -> None:
        """Running totals of 2,000 payments, exactly once; the application is stopped half way and goes on elsewhere
        from its changelog: read_committed equals a recomputation, in order."""
        cluster.create_topic(topic, 4)
        cluster.create_topic(f"{topic}-totals", 4)
        cluster.produce(topic, payments(2000)[:1000])
        with self.start(cluster, topic, tmp_path, "one") as program:
            cluster.wait_for_records(f"{topic}-totals", 1000)
            assert program.stop() == 0, program.tail()
        cluster.produce(topic, payments(2000)[1000:])
        with self.start(cluster, topic, tmp_path, "two") as program:
            cluster.wait_for_records(f"{topic}-totals", 2000)
            assert program.stop() == 0, program.tail()
        assert read_totals(cluster, f"{topic}-totals") == running_totals(2000)

    def test_killed_applications_and_nodes(self, cluster: Cluster, topic: str, tmp_path: Path) -> None:
        """Two instances of the running totals of 6,000 payments; one is killed with SIGKILL and replaced, then a node:
        read_committed equals a recomputation, in order."""
        cluster.create_topic(topic, 4)
        totals = cluster.create_topic(f"{topic}-totals", 4)
        cluster.produce(topic, payments(6000)[:2000])
        with (
            self.start(cluster, topic, tmp_path, "one") as first,
            self.start(cluster, topic, tmp_path, "two") as second,
        ):
            cluster.wait_for_records(totals, 500)
            first.kill9()
            cluster.produce(topic, payments(6000)[2000:4000])
            with self.start(cluster, topic, tmp_path, "three") as third:
                cluster.wait_for_progress(totals, 4000)
                cluster.node(cluster.leader(totals)).kill9()
                cluster.produce(topic, payments(6000)[4000:])
                cluster.wait_for_progress(totals, 6000)
                cluster.restore()
                cluster.wait_for_records(totals, 6000, 240.0)
                for program in (second, third):
                    assert program.stop() == 0, program.tail()
        assert read_totals(cluster, totals) == running_totals(6000)


@pytest.mark.program("faust-streaming", FAUST)
class TestFaust:
    """A worker that reads its table back resumes its partitions before it seeks them, so it leaves out some records or
    takes some twice: up to 20 of 1,000 in half of the runs, on Apache Kafka as here. Judged is what faust keeps: the
    table itself, which goes on from its changelog without a gap."""

    def start(self, cluster: Cluster, topic: str, folder: Path, name: str) -> Process:
        environment = {
            "ECOSYSTEM_BOOTSTRAP": cluster.bootstrap,
            "ECOSYSTEM_TOPIC": topic,
            "ECOSYSTEM_TARGET": f"{topic}-counts",
            "ECOSYSTEM_GROUP": topic,
            "ECOSYSTEM_STATE": str(folder / name),
            "ECOSYSTEM_PARTITIONS": "4",
        }
        program = str(pips.PYTHON / "faust" / "main.py")
        command = [str(pips.interpreter("faust")), program, "worker", "--without-web", "-l", "info"]
        return Process(command, folder / f"{name}.log", environment=environment)

    @pytest.mark.quick
    def test_word_count(self, cluster: Cluster, topic: str, tmp_path: Path) -> None:
        """Counts 1,000 words in a table, equal to a recomputation; a worker that begins with an empty folder goes on
        from the changelog with 1,000 more: each count is the one before and one more."""
        words = [f"word-{number * number % 13}" for number in range(1000)]
        cluster.create_topic(topic, 4)
        counts = cluster.create_topic(f"{topic}-counts", 4)
        cluster.produce(topic, [(word, word) for word in words])
        with self.start(cluster, topic, tmp_path, "one") as worker:
            cluster.wait_for_records(counts, 1000)
            worker.stop()
        assert counts_by_word(cluster, counts) == {
            word: list(range(1, total + 1)) for word, total in Counter(words).items()
        }
        cluster.produce(topic, [(word, word) for word in words])
        with self.start(cluster, topic, tmp_path, "two") as worker:
            cluster.wait_for_records(counts, 1900)
            worker.stop()
        for word, seen in counts_by_word(cluster, counts).items():
            assert seen == list(range(1, len(seen) + 1)), word

    def test_killed_worker(self, cluster: Cluster, topic: str, tmp_path: Path) -> None:
        """A worker is killed with SIGKILL while it counts 4,000 words and a node while its successor does, which goes
        on from the changelog: it comes to nine tenths of every word's count at least."""
        words = [f"word-{number * number % 13}" for number in range(4000)]
        cluster.create_topic(topic, 4)
        counts = cluster.create_topic(f"{topic}-counts", 4)
        cluster.produce(topic, [(word, word) for word in words])
        with self.start(cluster, topic, tmp_path, "one") as worker:
            cluster.wait_for_records(counts, 200)
            worker.kill9()
        with self.start(cluster, topic, tmp_path, "two"):
            cluster.wait_for_progress(counts, 4000)
            cluster.restart(cluster.leader(counts))
            expected = {word: total * 9 // 10 for word, total in Counter(words).items()}
            eventually(lambda: _covers(cluster, counts, expected), "the words were counted", 240.0, pause_s=1.0)


def counts_by_word(cluster: Cluster, topic: str) -> dict[str, list[int]]:
    """Every count that was sent on, in order."""
    seen: dict[str, list[int]] = defaultdict(list)
    for record in cluster.read(topic):
        seen[(record.key or b"").decode()].append(int(record.text))
    return dict(seen)


def _covers(cluster: Cluster, topic: str, expected: dict[str, int]) -> bool:
    seen = counts_by_word(cluster, topic)
    return all(seen.get(word, [0])[-1] >= count for word, count in expected.items())
