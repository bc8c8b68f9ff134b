"""`klamm storage` formats folders as kafka-storage does."""

import base64
import json

import pytest
from click.testing import CliRunner

from klamm.cli.main import cli
from klamm.model.ids import METADATA_TOPIC_ID, ZERO_UUID, uuid_from_str, uuid_to_str
from klamm.model.properties import parse_properties
from klamm.raft.snapshot_folder import SnapshotFolder
from klamm.server.boot.format import random_uuid
from klamm.storage.disk import Disk

CLUSTER = "l6t1Q_H-TtyNbcQtxA6dGA"
OTHER = "XXt1Q_H-TtyNbcQtxA6dGA"

NODE = """
process.roles=broker,controller
node.id=7
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
log.dirs={tmp}/a,{tmp}/b
metadata.log.dir={tmp}/meta
"""


def run(*args: str):
    return CliRunner().invoke(cli, ["storage", *args], prog_name="klamm")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "node.properties"
    path.write_text(NODE.format(tmp=tmp_path))
    return str(path)


def identity(folder) -> dict[str, str]:
    return {entry.key: entry.value for entry in parse_properties((folder / "meta.properties").read_text())}


def test_random_uuid_prints_an_id_kafka_accepts():
    draws = 20
    ids = {run("random-uuid").stdout.strip() for _ in range(draws)}
    assert len(ids) == draws
    for text in ids:
        assert len(text) == len(base64.urlsafe_b64encode(ZERO_UUID).rstrip(b"="))
        assert len(uuid_from_str(text)) == len(ZERO_UUID)
        assert not text.startswith("-")


def test_reserved_ids_and_leading_dashes_are_never_drawn():
    draws = iter([b"\xfb" + bytes(15), bytes(15) + b"\x05"])
    drawn = random_uuid(lambda size: next(draws))
    assert drawn not in (ZERO_UUID, METADATA_TOPIC_ID)
    assert uuid_to_str(drawn)[0] == "A"


def test_format_gives_every_folder_its_identity(file, tmp_path):
    result = run("format", "-t", CLUSTER, "-c", file)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [
        f"Formatting data directory {tmp_path}/a with metadata.version 4.3-IV0.",
        f"Formatting data directory {tmp_path}/b with metadata.version 4.3-IV0.",
        f"Formatting metadata directory {tmp_path}/meta with metadata.version 4.3-IV0.",
    ]
    identities = [identity(tmp_path / name) for name in ("a", "b", "meta")]
    assert {identity["cluster.id"] for identity in identities} == {CLUSTER}
    assert {identity["node.id"] for identity in identities} == {"7"}
    assert {identity["version"] for identity in identities} == {"1"}
    assert len({identity["directory.id"] for identity in identities}) == 3


def test_a_formatted_folder_is_not_formatted_again(file, tmp_path):
    run("format", "-t", CLUSTER, "-c", file)
    before = identity(tmp_path / "a")
    again = run("format", "--cluster-id", CLUSTER, "--config", file)
    assert again.exit_code == 1
    assert "is already formatted; add --ignore-formatted" in again.stderr
    ignored = run("format", "-t", CLUSTER, "-c", file, "-g")
    assert (ignored.exit_code, ignored.stdout) == (0, "Every log dir is formatted already; nothing was changed.\n")
    assert identity(tmp_path / "a") == before


def test_ignore_formatted_formats_the_others(file, tmp_path):
    run("format", "-t", CLUSTER, "-c", file)
    (tmp_path / "b" / "meta.properties").unlink()
    result = run("format", "-t", CLUSTER, "-c", file, "--ignore-formatted")
    assert result.stdout == f"Formatting data directory {tmp_path}/b with metadata.version 4.3-IV0.\n"


def test_a_folder_of_another_cluster_is_refused_and_nothing_is_touched(file, tmp_path):
    run("format", "-t", CLUSTER, "-c", file)
    (tmp_path / "b" / "meta.properties").unlink()
    result = run("format", "-t", OTHER, "-c", file, "-g")
    assert result.exit_code == 1
    assert f"belongs to cluster {CLUSTER}, not {OTHER}" in result.stderr
    assert not (tmp_path / "b" / "meta.properties").exists()


def test_folders_of_two_clusters_are_refused(file, tmp_path):
    run("format", "-t", CLUSTER, "-c", file)
    path = tmp_path / "b" / "meta.properties"
    path.write_text(path.read_text().replace(CLUSTER, OTHER))
    for command in (["info"], ["format", "-t", CLUSTER, "-g"]):
        result = run(*command, "-c", file)
        assert result.exit_code == 1
        assert "use folders of one cluster" in result.stderr


def test_a_path_below_a_file_is_refused_before_anything_is_written(file, tmp_path):
    (tmp_path / "b").write_text("mine")
    result = run("format", "-t", CLUSTER, "-c", file)
    assert result.exit_code == 1
    assert "is not a folder" in result.stderr
    assert not (tmp_path / "a").exists()


def test_info_shows_what_is_there_and_what_is_missing(file, tmp_path):
    empty = run("info", "-c", file)
    assert empty.exit_code == 1
    assert f"{tmp_path}/a does not exist" in empty.stdout
    run("format", "-t", CLUSTER, "-c", file)
    full = run("info", "-c", file)
    assert full.exit_code == 0
    assert f"Found metadata in {tmp_path}/a: cluster.id={CLUSTER}, directory.id=" in full.stdout
    (tmp_path / "a" / "meta.properties").unlink()
    assert f"{tmp_path}/a is not formatted" in run("info", "-c", file).stdout


def test_info_for_programs(file, tmp_path):
    (tmp_path / "a").mkdir()
    info = run("info", "-c", file, "-o", "json")
    assert info.exit_code == 1
    assert [(row["exists"], row["cluster_id"]) for row in json.loads(info.stdout)] == [
        (True, None),
        (False, None),
        (False, None),
    ]
    run("format", "-t", CLUSTER, "-c", file)
    rows = json.loads(run("info", "-c", file, "-o", "json").stdout)
    assert [(row["directory"], row["cluster_id"]) for row in rows] == [
        (str(tmp_path / name), CLUSTER) for name in ("a", "b", "meta")
    ]


def test_a_dry_run_shows_what_would_be_formatted(file, tmp_path):
    dry = run("format", "-t", CLUSTER, "-c", file, "--dry-run")
    assert dry.exit_code == 0, dry.stderr
    assert [line.split()[:2] for line in dry.stdout.splitlines()] == [
        ["+", f"{tmp_path}/{name}"] for name in ("a", "b", "meta")
    ]
    assert not (tmp_path / "a").exists()
    run("format", "-t", CLUSTER, "-c", file)
    assert run("format", "-t", CLUSTER, "-c", file, "--dry-run").exit_code == 1
    assert "Nothing to change" in run("format", "-t", CLUSTER, "-c", file, "-g", "--dry-run").stderr


def test_a_damaged_identity_is_refused_in_words(file, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "meta.properties").write_text("version=1\nnode.id=seven\ncluster.id=x\n")
    result = run("info", "-c", file)
    assert result.exit_code == 1
    assert result.stderr.startswith("klamm: ")


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--standalone"], 0),
        (["--no-initial-controllers"], 0),
        (["--standalone", "--no-initial-controllers"], 2),
        (["--initial-controllers", "7@localhost:9093:JEXY6aqzQY-32P5TStzaFg"], 0),
        (["--initial-controllers", "7@localhost:9093:JEXY6aqzQY-32P5TStzaFg", "--standalone"], 2),
        (["--initial-controllers", "8@localhost:9093:JEXY6aqzQY-32P5TStzaFg"], 1),
        (["--initial-controllers", "7@localhost:9093"], 1),
        (["--standalone", "--feature", "kraft.version=1"], 0),
        (["--standalone", "--feature", "kraft.version=0"], 1),
        (["--release-version", "4.3"], 0),
        (["--release-version", "4.3-IV0"], 0),
        (["--release-version", "3.9"], 1),
        (["--feature", "group.version=1"], 0),
        (["--feature", "group.version=0"], 1),
        (["--feature", "groups=1"], 1),
        (["--feature", "group.version"], 2),
    ],
)
def test_kafkas_flags_are_known(file, tmp_path, flags, code):
    result = run("format", "-t", CLUSTER, "-c", file, *flags)
    assert result.exit_code == code
    assert (tmp_path / "a").exists() == (code == 0)


def test_fixed_voters_and_a_quorum_that_may_change_exclude_each_other(file):
    with open(file) as before:
        text = before.read().replace("controller.quorum.bootstrap.servers=", "controller.quorum.voters=7@")
    with open(file, "w") as after:
        after.write(text)
    result = run("format", "-t", CLUSTER, "-c", file, "--standalone")
    assert result.exit_code == 1
    assert "exclude each other" in result.stderr


def test_the_first_voters_are_in_a_snapshot_before_the_log(file, tmp_path):
    """Kafka's bootstrap checkpoint: the node's own directory id is the one named."""
    flag = "7@localhost:9093:JEXY6aqzQY-32P5TStzaFg,8@[::1]:9094:J8aAPcfLQt2bqs1JT_rMgQ"
    assert run("format", "-t", CLUSTER, "-c", file, "--initial-controllers", flag).exit_code == 0
    assert "directory.id=JEXY6aqzQY-32P5TStzaFg" in (tmp_path / "meta" / "meta.properties").read_text()
    folder = SnapshotFolder(str(tmp_path / "meta" / "__cluster_metadata-0"), Disk())
    assert folder.ids() == [(0, 0)]
    named = folder.read_voter_change(folder.ids()[0])
    assert named.kraft_version == 1
    assert [(v.id, v.host, v.port) for v in named.voters] == [(7, "localhost", 9093), (8, "::1", 9094)]


def test_an_empty_cluster_id_is_refused(file):
    result = run("format", "-t", "", "-c", file)
    assert result.exit_code == 1
    assert "random-uuid" in result.stderr
