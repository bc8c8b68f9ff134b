"""Replicas that move between log dirs, and a log dir that fails: seen through the wire, on a real node."""

import errno
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from harness import KlammProcess, NodeThread, Wire, batch, unique
from klamm.model.errors import ErrorCode

STORAGE_ERROR, LOG_DIR_NOT_FOUND, REPLICA_NOT_AVAILABLE, LEADER_NOT_AVAILABLE = 56, 57, 9, 5
PATIENCE_S = 60
RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


def dirs(folder: Path) -> list[str]:
    return [str(folder / "data" / name) for name in ("a", "b", "c")]


def overrides(folder: Path, **more: str) -> dict[str, str]:
    return {"log.dirs": ",".join(dirs(folder)), **{name.replace("_", "."): value for name, value in more.items()}}


def flat(settings: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in settings.items()]


def places(wire: Wire, topic: str) -> dict[tuple[str, bool], object]:
    """(log dir, is it a future replica) -> what DescribeLogDirs says of partition 0."""
    copies = {}
    for result in wire.call("describe_log_dirs", 4, topics=[{"topic": topic, "partitions": [0]}]).results:
        for response in result.topics:
            for partition in response.partitions:
                copies[os.path.basename(result.log_dir), partition.is_future_key] = partition
    return copies


def move(wire: Wire, topic: str, path: str) -> int:
    answer = wire.call(
        "alter_replica_log_dirs", 2, dirs=[{"path": path, "topics": [{"name": topic, "partitions": [0]}]}]
    )
    return int(answer.results[0].partitions[0].error_code)


def limit(wire: Wire, rate: int | None) -> None:
    """Move no faster than so many bytes per second; the setting is one of a running broker."""
    change = {"name": RATE, "config_operation": 0 if rate else 1, "value": str(rate) if rate else None}
    answer = wire.call(
        "incremental_alter_configs",
        1,
        resources=[{"resource_type": 4, "resource_name": "1", "configs": [change]}],
        validate_only=False,
    )
    assert int(answer.responses[0].error_code) == 0, answer


def wait_for(condition, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def elsewhere(folder: Path, wire: Wire, topic: str) -> tuple[str, str]:
    """Where the replica lies, and another log dir."""
    ((home, _),) = places(wire, topic)
    return home, next(path for path in dirs(folder) if os.path.basename(path) != home)


def test_a_replica_moves_while_it_is_in_use(tmp_path: Path):
    with NodeThread(tmp_path, *flat(overrides(tmp_path))) as node, Wire(node.port) as wire, Wire(node.port) as other:
        topic = wire.create_topic()
        for i in range(50):
            wire.produce(topic, batch(b"%d" % i, b"x" * 20_000))
        home, path = elsewhere(tmp_path, wire, topic)
        stop, sent = threading.Event(), []

        def produce() -> None:
            with Wire(node.port) as producer:
                while not stop.is_set():
                    sent.append(int(producer.produce(topic, batch(b"meanwhile"), acks=-1).base_offset))

        thread = threading.Thread(target=produce)
        thread.start()
        assert move(wire, topic, path) == 0
        wait_for(lambda: set(places(wire, topic)) == {(os.path.basename(path), False)}, "it has not arrived")
        stop.set()
        thread.join()
        assert sent == list(range(100, 100 + len(sent))), "no offset is lost or given twice"
        assert len(wire.values(topic)) == 100 + len(sent)
        assert other.produce(topic, batch(b"after")).base_offset == 100 + len(sent)
        wait_for(lambda: not (tmp_path / "data" / home / f"{topic}-0").exists(), "the old folder is there")
        assert (Path(path) / f"{topic}-0").is_dir()
        assert not list((tmp_path / "data").glob("*/*-future"))
        described = node.run(lambda n: n.services.image.topics.partition(topic, 0).directory(n.services.node_id))
        assert described == node.run(lambda n: n.services.logs.directory_ids[path]), "the metadata knows"
    with NodeThread(tmp_path, *flat(overrides(tmp_path))) as node, Wire(node.port) as wire:
        assert len(wire.values(topic)) == 101 + len(sent)
        assert set(places(wire, topic)) == {(os.path.basename(path), False)}


def test_a_slow_move_shows_how_far_it_is_and_can_be_given_up(tmp_path: Path):
    with NodeThread(tmp_path, *flat(overrides(tmp_path))) as node, Wire(node.port) as wire:
        limit(wire, 20_000)
        topic = wire.create_topic()
        for _ in range(40):
            wire.produce(topic, batch(b"x" * 50_000))
        home, path = elsewhere(tmp_path, wire, topic)
        assert move(wire, topic, path) == 0
        wait_for(lambda: (os.path.basename(path), True) in places(wire, topic), "no future replica is shown")
        copies = places(wire, topic)
        assert copies[home, False].offset_lag == 0
        assert copies[home, False].partition_size > 2_000_000
        assert 0 < copies[os.path.basename(path), True].offset_lag <= 40
        assert move(wire, topic, path) == 0, "asking again changes nothing"
        assert move(wire, topic, str(tmp_path / "data" / home)) == 0, "back to where it is: the move is given up"
        assert set(places(wire, topic)) == {(home, False)}
        wait_for(lambda: not list(Path(path).glob("*-future")), "the copy is still there")
        taken = (home, os.path.basename(path))
        other = next(folder for folder in dirs(tmp_path) if os.path.basename(folder) not in taken)
        assert move(wire, topic, path) == 0
        assert move(wire, topic, other) == 0
        assert set(places(wire, topic)) == {(home, False), (os.path.basename(other), True)}
        wire.call("delete_topics", 5, topic_names=[topic], timeout=10_000)
        wait_for(lambda: not list((tmp_path / "data").glob("*/*-future")), "a deleted topic's copy is still there")


def test_what_cannot_be_moved(tmp_path: Path):
    with NodeThread(tmp_path, *flat(overrides(tmp_path))) as node, Wire(node.port) as wire:
        topic = wire.create_topic()
        assert move(wire, topic, "/nowhere") == LOG_DIR_NOT_FOUND
        later = unique()
        assert move(wire, later, dirs(tmp_path)[2]) == REPLICA_NOT_AVAILABLE
        wire.create_topic(later)
        assert set(places(wire, later)) == {("c", False)}, "it was made where it was wanted"
        long = "n" * 240
        wire.create_topic(long)
        _home, path = elsewhere(tmp_path, wire, long)
        # The topic's name and the suffix of a future replica do not fit into a folder's name.
        assert move(wire, long, path) == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_move_goes_on_after_a_restart(tmp_path: Path, end: str):
    with KlammProcess(tmp_path, overrides=overrides(tmp_path)) as klamm:
        with Wire(klamm.port) as wire:
            limit(wire, 100_000)
            topic = wire.create_topic()
            for i in range(60):
                wire.produce(topic, batch(b"%02d" % i + b"x" * 50_000))
            _home, path = elsewhere(tmp_path, wire, topic)
            assert move(wire, topic, path) == 0
            wait_for(lambda: places(wire, topic)[os.path.basename(path), True].partition_size > 0, "nothing is copied")
        klamm.restart(clean=end == "stop")
        with Wire(klamm.port) as wire:
            assert (os.path.basename(path), True) in places(wire, topic), "the move goes on"
            limit(wire, None)
            assert wire.produce(topic, batch(b"after")).base_offset == 60
            wait_for(lambda: set(places(wire, topic)) == {(os.path.basename(path), False)}, "it has not arrived")
            values = wire.values(topic)
            assert [value[:2] for value in values[:60]] == [b"%02d" % i for i in range(60)]
            assert len(values) == 61
        klamm.stop()


def test_a_crash_between_the_two_renames(tmp_path: Path):
    """The old folder is on its way out, the copy has not its name yet: it takes over at the next start."""
    with KlammProcess(tmp_path, overrides=overrides(tmp_path)) as klamm:
        with Wire(klamm.port) as wire:
            topic = wire.create_topic()
            wire.produce(topic, batch(b"one", b"two"))
            _home, path = elsewhere(tmp_path, wire, topic)
            assert move(wire, topic, path) == 0
            wait_for(lambda: set(places(wire, topic)) == {(os.path.basename(path), False)}, "it has not arrived")
        klamm.kill9()
        name = f"{topic}-0.{'a' * 32}"
        os.rename(f"{path}/{topic}-0", f"{path}/{name}-future")
        klamm.start()
        with Wire(klamm.port) as wire:
            assert wire.values(topic) == [b"one", b"two"]
            assert set(places(wire, topic)) == {(os.path.basename(path), False)}
        assert "replica move completed after a crash" in klamm.log()
        klamm.stop()


def test_a_copy_whose_partition_is_gone_is_kept(tmp_path: Path):
    with KlammProcess(tmp_path, overrides=overrides(tmp_path)) as klamm:
        with Wire(klamm.port) as wire:
            topic = wire.create_topic()
            wire.produce(topic, batch(b"one"))
            home, path = elsewhere(tmp_path, wire, topic)
        klamm.stop()
        os.rename(f"{tmp_path}/data/{home}/{topic}-0", f"{path}/{topic}-0.{'b' * 32}-future")
        klamm.start()
        klamm.stop()
        assert len(list(Path(path).glob(f"{topic}-0.*-stray"))) == 1


# --- a log dir fails -------------------------------------------------------------------------------------------------


def partition_of(wire: Wire, topic: str):
    return wire.call("metadata", 12, topics=[{"name": topic}]).topics[0].partitions[0]


def produce_error(wire: Wire, topic: str) -> int:
    return int(wire.produce(topic, batch(b"lost")).error_code)


def topics_in(wire: Wire, folder: Path) -> dict[str, str]:
    """A topic in each log dir."""
    topics: dict[str, str] = {}
    while len(topics) < 3:
        topic = wire.create_topic()
        wire.produce(topic, batch(b"before"))
        ((home, _),) = places(wire, topic)
        topics.setdefault(home, topic)
    return topics


def test_a_failed_log_dir_takes_its_own_partitions_and_the_cluster_knows(tmp_path: Path):
    with NodeThread(tmp_path, *flat(overrides(tmp_path))) as node, Wire(node.port) as wire:
        topics = topics_in(wire, tmp_path)
        broken = next(name for name in ("b", "c"))

        def break_it(running):
            log = running.services.replicas.find(topics[broken], 0).log

            def refuse(*_):
                raise OSError(errno.EIO, "a test")

            log.appender.pwritev = refuse

        node.run(break_it)
        assert produce_error(wire, topics[broken]) == STORAGE_ERROR
        wait_for(lambda: int(partition_of(wire, topics[broken]).error_code) == LEADER_NOT_AVAILABLE, "no failure shown")
        response = partition_of(wire, topics[broken])
        assert (response.leader_id, list(response.offline_replicas)) == (-1, [node.node.config.node_id])
        assert produce_error(wire, topics[broken]) == STORAGE_ERROR
        for name, topic in topics.items():
            if name != broken:
                assert wire.produce(topic, batch(b"after")).base_offset == 1
                assert wire.values(topic) == [b"before", b"after"]
        results = wire.call("describe_log_dirs", 4, topics=None).results
        errors = {os.path.basename(result.log_dir): int(result.error_code) for result in results}
        assert errors == {"a": 0, "b": 0, "c": 0, broken: STORAGE_ERROR}
        made = {next(iter(places(wire, wire.create_topic())))[0] for _ in range(4)}
        assert broken not in made
        home = next(name for name in topics if name not in (broken, "a"))
        assert move(wire, topics[home], dirs(tmp_path)[0]) == STORAGE_ERROR, "not while a log dir is offline"
        assert move(wire, topics[home], str(tmp_path / "data" / broken)) == STORAGE_ERROR
        assert move(wire, topics[broken], dirs(tmp_path)[0]) == STORAGE_ERROR
    with NodeThread(tmp_path, *flat(overrides(tmp_path))) as node, Wire(node.port) as wire:
        assert int(partition_of(wire, topics[broken]).error_code) == 0, "a restart brings it back"
        assert wire.values(topics[broken]) == [b"before"]


def test_a_log_dir_that_cannot_be_read_at_start(tmp_path: Path):
    with NodeThread(tmp_path, *flat(overrides(tmp_path))) as node, Wire(node.port) as wire:
        topics = topics_in(wire, tmp_path)
    shutil.move(dirs(tmp_path)[1], tmp_path / "away")
    Path(dirs(tmp_path)[1]).write_bytes(b"")
    with NodeThread(tmp_path, *flat(overrides(tmp_path))) as node, Wire(node.port) as wire:
        response = partition_of(wire, topics["b"])
        assert (response.leader_id, list(response.offline_replicas)) == (-1, [node.node.config.node_id])
        assert int(response.error_code) == LEADER_NOT_AVAILABLE
        assert produce_error(wire, topics["b"]) == STORAGE_ERROR
        for name in ("a", "c"):
            assert wire.values(topics[name]) == [b"before"]
        assert not list((tmp_path / "data").glob(f"[ac]/{topics['b']}-0")), "it is not begun anew elsewhere"
    os.unlink(dirs(tmp_path)[1])
    shutil.move(tmp_path / "away", dirs(tmp_path)[1])
    with NodeThread(tmp_path, *flat(overrides(tmp_path))) as node, Wire(node.port) as wire:
        assert wire.values(topics["b"]) == [b"before"]
        assert partition_of(wire, topics["b"]).leader_id == node.node.config.node_id
