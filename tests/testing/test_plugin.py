"""The pytest plugin as its users meet it: another pytest, in a process of its own, with tests written by a user."""

import subprocess
import sys
import textwrap
from importlib.metadata import entry_points
from pathlib import Path

import pytest

USER_TESTS = """
import pytest

seen = []

def test_a_topic_of_its_own(klamm_broker, klamm_topic, klamm_producer, klamm_consumer):
    klamm_producer.send(klamm_topic, b"hello", key=b"k").result()
    records = klamm_consumer.poll(20)
    assert [(r.key, r.value) for r in records] == [(b"k", b"hello")]
    seen.append((klamm_broker.bootstrap, klamm_topic))

@pytest.mark.klamm_topic(partitions=3)
def test_one_broker_per_run(klamm_broker, klamm_topic, klamm_admin, klamm_bootstrap, klamm_name):
    assert klamm_bootstrap == klamm_broker.bootstrap
    if seen:
        assert seen[0][0] == klamm_bootstrap
        assert seen[0][1] != klamm_topic
    assert klamm_name() != klamm_name()
    assert len(klamm_admin.partitions_of(klamm_topic)) == 3

def test_breaking_one_leaves_the_other(klamm_own_broker, klamm_broker):
    assert klamm_own_broker.port != klamm_broker.port
    klamm_own_broker.kill()
    with klamm_broker.producer() as producer:
        producer.send(klamm_broker.topic(), b"still there").result()
"""


def run(tmp_path: Path, *options: str) -> str:
    (tmp_path / "test_user.py").write_text(textwrap.dedent(USER_TESTS))
    (tmp_path / "pytest.ini").write_text("[pytest]\nklamm_config =\n    num.partitions=2\n")
    # Otherwise pytest imports schemathesis, and rewrites the asserts of all of klamm: seconds.
    quick = ["--assert=plain", "-p", "no:schemathesis"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", *quick, *options]
    # The entry point does the same where Klamm was installed after it had one.
    command += [] if "klamm" in entry_points(group="pytest11").names else ["-p", "klamm.testing.plugin"]
    done = subprocess.run(
        [*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("where", ["inprocess", "child"])
def test_a_users_tests_pass(tmp_path, where):
    assert "3 passed" in run(tmp_path, f"--klamm-broker={where}")


def test_the_same_tests_against_a_cluster_that_is_there(tmp_path, klamm):
    output = run(tmp_path, f"--klamm-bootstrap={klamm.bootstrap}")
    assert "3 passed" in output


def test_the_plugin_imports_nothing_of_a_broker_until_it_is_used():
    script = (
        "import sys\n"
        "import klamm.testing.plugin\n"
        "print([name for name in sys.modules if name.startswith(('klamm.server', 'klamm.client', 'asyncio'))])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "klamm" not in done.stdout
