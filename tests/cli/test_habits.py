"""What people type by habit of other tools: it works, or the answer says what to type here."""

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from harness import KLAMM, unique
from klamm.cli.main import cli
from klamm.server.boot.local_cluster import node_data_folders, plan_cluster, prepare_cluster


def run(*words: str, code: int = 0, stdin: str | None = None):
    done = CliRunner().invoke(cli, list(words), prog_name="klamm", input=stdin)
    assert done.exit_code == code, done.output
    return done


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("topics",), "topic ls"), (("list", "topics"), "topic ls"), (("list",), "topic ls"), (("groups",), "group ls"),
        (("describe", "group"), "group show"), (("rm", "orders"), "topic delete"), (("prodcue",), "produce"),
    ],
)  # fmt: skip
def test_a_command_that_is_called_otherwise_here(words, meant):
    assert f"Did you mean {meant!r}?" in run(*words, code=2).stderr


def test_verbs_of_other_tools(klamm, wire):
    name = wire.create_topic()
    where = ("-b", klamm.bootstrap)
    for verb in ("describe", "info", "get"):
        assert name in run("topic", verb, name, *where).stdout
    assert name in run("topic", "list", *where).stdout
    assert run("group", "list", *where).exit_code == 0
    assert run("topic", "rm", name, "--yes", *where).stdout == f"Deleted {name}.\n"
    assert "Did you mean 'create'?" in run("topic", "creat", name, code=2).stderr
    assert "There are " in run("topic", "zzz", code=2).stderr


def test_a_near_topic_is_named(klamm, wire):
    name = wire.create_topic(unique("orders"))
    wrong = name.replace("orders", "ordres")
    for words in (("topic", "show"), ("consume",), ("tail", "--no-follow"), ("topic", "delete", "--yes")):
        message = run(*words, wrong, "-b", klamm.bootstrap, code=3).stderr
        assert f"there is no topic {wrong}; did you mean topic {name}?" in message


def test_tail_with_the_flag_of_other_tails(klamm):
    message = run("tail", "-f", "orders", "-b", klamm.bootstrap, code=2).stderr
    assert "tail follows by itself: klamm tail orders" in message


def test_a_topic_that_writing_made_is_told(klamm):
    name = unique()
    first = run("produce", name, "-b", klamm.bootstrap, stdin="x\n").stderr
    assert f"there was no topic {name}: the cluster made it, with 1 partition" in first
    assert "there was no topic" not in run("produce", name, "-b", klamm.bootstrap, stdin="x\n").stderr


def test_a_terminal_is_told_what_to_write(klamm):
    """A prompt without a word looks like a command that hangs."""
    main, terminal = os.openpty()
    process = subprocess.Popen(
        [*KLAMM, "produce", unique(), "-b", klamm.bootstrap],
        stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(terminal)
    try:
        assert process.stderr.readline() == "klamm: write records, one a line; Ctrl-D ends\n"
        os.write(main, b"hello\n\x04")
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
        os.close(main)
    assert process.returncode == 0
    assert "1 record" in errors


def test_a_clusters_folder_is_checked_with_all_its_nodes(tmp_path):
    planned = plan_cluster(str(tmp_path), 3)
    prepare_cluster(planned)
    inside = [os.path.join(node.folder, "data") for node in planned]
    assert node_data_folders(str(tmp_path)) == inside
    assert node_data_folders(planned[1].folder) == [inside[1]]
    assert node_data_folders(inside[0]) == [inside[0]]
    assert run("storage", "check", str(tmp_path)).exit_code == 0


def test_columns_without_pyarrow_say_what_to_install():
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from klamm.client import read_topic\n"
        "read_topic('t', bootstrap='127.0.0.1:1')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: columns need pyarrow, which is not installed: pip install 'klamm[arrow]'"
    )
