"""`klamm up` keeps one node and clusters of several apart, and never forms a cluster anew from a part of one.

Older tests started every node and cluster in a folder of its own, so none of them met the data of another shape.
"""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from harness import KLAMM, KlammCluster, Wire
from harness.process import READY_S, STOP_S
from klamm.model.errors import ConfigError
from klamm.server.boot.local_cluster import cluster_size, plan_cluster, prepare_cluster


def up(cwd: Path, *args: object) -> subprocess.CompletedProcess:
    """`klamm up` that is refused: it ends by itself."""
    command = [*KLAMM, "up", "--port", "0", *map(str, args)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=READY_S, check=False)


def run_once(cwd: Path, *args: object) -> str:
    """`klamm up` until it serves, then stopped; its first line."""
    process = subprocess.Popen(
        [*KLAMM, "up", "--port", "0", *map(str, args)],
        cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=STOP_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, errors
    return line


def refused(result: subprocess.CompletedProcess, *words: str) -> None:
    assert (result.returncode, result.stdout) == (1, ""), result
    assert result.stderr.count("\n") == 1, result.stderr
    for word in words:
        assert word in result.stderr


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def three(tmp_path):
    """The folder of a cluster of three that was used and left, with a topic in it."""
    folder = tmp_path / "cluster"
    with KlammCluster(folder) as cluster:
        with Wire(cluster.nodes[0].port) as wire:
            wire.create_topic("precious")
        for node in cluster.nodes:
            node.ask_to_stop()
        for node in cluster.nodes:
            node.wait_stopped()
    return folder


def test_one_node_and_three_live_side_by_side(tmp_path):
    assert run_once(tmp_path).startswith("Klamm is ready on 127.0.0.1:")
    assert run_once(tmp_path, "--nodes", 3).count("127.0.0.1:") == 3
    assert run_once(tmp_path).count("127.0.0.1:") == 1
    assert (tmp_path / ".klamm" / "meta.properties").exists()
    assert cluster_size(str(tmp_path / ".klamm-3")) == 3


def test_a_cluster_that_lies_in_the_old_place_is_found_there(tmp_path):
    prepare_cluster(plan_cluster(str(tmp_path / ".klamm"), 3))
    run_once(tmp_path, "--nodes", 3)
    assert not (tmp_path / ".klamm-3").exists()
    refused(up(tmp_path), ".klamm holds a cluster of 3 nodes", "`klamm up --nodes 3 --data ", ".klamm`")


def test_another_number_of_nodes_is_refused_with_the_first(three, tmp_path):
    before = files_of(three)
    for number in (2, 4):
        refused(up(tmp_path, "--nodes", number, "--data", three), "a cluster of 3 nodes", "--nodes 3")
    refused(up(tmp_path, "--data", three), "a cluster of 3 nodes", f"`klamm up --nodes 3 --data {three}`")
    assert files_of(three) == before


def test_a_voter_is_not_started_alone(three, tmp_path):
    """It would elect itself, acknowledge, and lose that when the others are back."""
    before = files_of(three)
    for folder in (three / "node-1", three / "node-1" / "data"):
        refused(up(tmp_path, "--data", folder), "node 1 of a cluster of 3", f"klamm up --nodes 3 --data {three}")
    assert files_of(three) == before


def test_a_voter_that_was_moved_elsewhere_is_not_started_alone_either(three, tmp_path):
    """Not its place but its quorum-state says whose vote it is."""
    moved = tmp_path / "moved"
    os.rename(three / "node-1" / "data", moved)
    refused(up(tmp_path, "--data", moved), "voters 1,2,3", "names 1")


def test_a_server_file_with_fewer_voters_is_refused(three, tmp_path):
    properties = three / "node-1" / "server.properties"
    alone = re.sub(r"(controller.quorum.voters=1@[^,]+),.*", r"\1", properties.read_text())
    properties.write_text(alone)
    result = subprocess.run(
        [*KLAMM, "server", str(properties)], capture_output=True, text=True, timeout=READY_S, check=False
    )
    refused(result, "voters 1,2,3", "controller.quorum.voters")


def test_a_pipeline_that_was_first_does_not_keep_a_node_out(tmp_path):
    (tmp_path / ".klamm" / "pipelines" / "shop").mkdir(parents=True)
    for _ in range(2):
        assert run_once(tmp_path).startswith("Klamm is ready")
    assert (tmp_path / ".klamm" / "pipelines" / "shop").is_dir()


def test_one_nodes_folder_is_no_clusters(tmp_path):
    run_once(tmp_path)
    before = files_of(tmp_path)
    refused(up(tmp_path, "--nodes", 3, "--data", ".klamm"), "the data of one node", "`klamm up --data .klamm`")
    assert files_of(tmp_path) == before


def test_a_minority_does_not_outvote_what_is_missing(tmp_path):
    """Two empty folders beside one that remembers are a majority that knows nothing."""
    planned = plan_cluster(str(tmp_path), 3)
    prepare_cluster(planned)
    for node in planned[:2]:
        os.rename(node.folder, node.folder + "-gone")
    with pytest.raises(ConfigError, match="1 of the 3 nodes"):
        prepare_cluster(planned)
    os.rename(planned[0].folder + "-gone", planned[0].folder)
    prepare_cluster(planned)
