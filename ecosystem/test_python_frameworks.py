"""Stream processors of Python: quixstreams exactly once, faust with its tables."""

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from ecosystem import manifests, pips
from ecosystem.cluster import Cluster, NoProgress, eventually
from ecosystem.processes import Process

ACCOUNTS = 8
STILL_S = 40.0
WORKERS_MAX = 6
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
                cluster.wait_for_progress(totals)
                cluster.node(cluster.leader(totals)).kill9()
                cluster.produce(topic, payments(6000)[4000:])
                cluster.wait_for_progress(totals)
                cluster.restore()
                cluster.wait_for_records(totals, 6000, 240.0)
                for program in (second, third):
                    assert program.stop() == 0, program.tail()
        assert read_totals(cluster, totals) == running_totals(6000)


@pytest.mark.program("faust-streaming", FAUST)
class TestFaust:
    """A worker that has read its table back at times handles nothing at all, silently: it resumes its partitions
    before it seeks them. So it does on Apache Kafka, as often (in 2 of 3 runs), so a supervisor's part is played here:
    a worker that is ready and stands still is replaced."""

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

    @contextlib.contextmanager
    def working(self, cluster: Cluster, topic: str, folder: Path, name: str) -> Iterator[Process]:
        """A worker with a folder of its own that counts; those that stand still are replaced."""
        for turn in range(WORKERS_MAX):
            with self.start(cluster, topic, folder, f"{name}-{turn}") as worker:
                worker.wait_line("Worker ready")
                if self._counts(cluster, f"{topic}-counts"):
                    yield worker
                    return
                worker.stop()
        raise AssertionError(f"{WORKERS_MAX} workers were ready and counted nothing:\n{worker.tail()}")

    def _counts(self, cluster: Cluster, counts: str) -> bool:
        try:
            cluster.wait_for_progress(counts, STILL_S)
        except NoProgress:
            return False
        return True

    def test_word_count(self, cluster: Cluster, topic: str, tmp_path: Path) -> None:
        """Counts 2,000 words in a table; a worker that begins with an empty folder goes on from the changelog: the
        counts rise one by one and the last ones equal a recomputation."""
        words = [f"word-{number * number % 13}" for number in range(2000)]
        cluster.create_topic(topic, 4)
        counts = cluster.create_topic(f"{topic}-counts", 4)
        for half, name in ((words[:1000], "one"), (words[1000:], "two")):
            cluster.produce(topic, [(word, word) for word in half])
            with self.working(cluster, topic, tmp_path, name) as worker:
                cluster.wait_for_records(counts, 1000 if name == "one" else 2000)
                worker.stop()
        seen: dict[str, list[int]] = defaultdict(list)
        for record in cluster.read(counts):
            seen[(record.key or b"").decode()].append(int(record.text))
        assert dict(seen) == {word: list(range(1, total + 1)) for word, total in Counter(words).items()}

    def test_killed_worker(self, cluster: Cluster, topic: str, tmp_path: Path) -> None:
        """A worker is killed with SIGKILL while it counts 4,000 words and a node while its successor does: no word is
        lost (at least once: the last counts are not below a recomputation)."""
        words = [f"word-{number * number % 13}" for number in range(4000)]
        cluster.create_topic(topic, 4)
        counts = cluster.create_topic(f"{topic}-counts", 4)
        cluster.produce(topic, [(word, word) for word in words])
        with self.working(cluster, topic, tmp_path, "one") as worker:
            cluster.wait_for_records(counts, 200)
            worker.kill9()
        with self.working(cluster, topic, tmp_path, "two"):
            cluster.restart(cluster.leader(counts))
            total = Counter(words)
            eventually(lambda: _covers(cluster, counts, total), "every word was counted", 240.0, pause_s=1.0)


def _covers(cluster: Cluster, topic: str, expected: Counter[str]) -> bool:
    last = {(record.key or b"").decode(): int(record.text) for record in cluster.read(topic)}
    return all(last.get(word, 0) >= count for word, count in expected.items())
