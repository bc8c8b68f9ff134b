"""One node for all tests of a worker that need nothing special of it; each uses topics of its own.

A test that fails shows what the processes it started have said.
"""

import contextlib
import functools
import re
import signal
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from harness import KlammProcess, Wire
from harness.process import launched

# The duration of an example depends on the load of the machine.
settings.register_profile("klamm", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("klamm")

# A shell lets what it runs in the background ignore interrupts, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


USUAL_PORTS = (9092, 9093, *range(8080, 8084))
"""Where Kafka, its controllers, registries and REST proxies usually listen. A test that needs one of them passes here
and fails on a machine where something runs, so all of them are taken while tests run."""


@pytest.fixture(scope="session", autouse=True)
def usual_ports_taken():
    with contextlib.ExitStack() as held:
        for port in USUAL_PORTS:
            with contextlib.suppress(OSError):  # something listens there already, which does as well
                held.enter_context(socket.create_server(("127.0.0.1", port)))
        yield


class SparkOnce(LoadScopeScheduling):
    """Tests go one by one to whichever worker is free; those that need Spark all go to one, which starts it once.

    They go first, as the largest group; then single tests that are long, so that none runs alone at the end. The
    plugin's own groups do nothing under this pytest: it writes them into an attribute that is no longer read.
    """

    def _split_scope(self, nodeid):
        return "spark" if needs_spark(nodeid.partition("::")[0]) else nodeid

    def _assign_work_unit(self, node):
        if not any(self.assigned_work.values()):  # the first of all
            for scope in [scope for scope in self.workqueue if scope.startswith(LONG)] + ["spark"]:
                if scope in self.workqueue:
                    self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)


@functools.cache
def needs_spark(path):
    """Whether a file's tests use the Spark session; many of the SQL's tests need none, and run on any worker."""
    if not path.startswith(SPARK):
        return False
    text = (Path(__file__).parents[1] / path).read_text()
    return bool(re.search(r"[(, ]spark[,)]|\"spark\"|subprocess", text)) or "examples" in path


SPARK = ("tests/pipeline/spark/", "tests/pipeline/sql/", "tests/examples/test_demo.py")
"""Where tests that need a Spark session live, or start one that should not run beside it."""
LONG = (
    "tests/pipeline/standalone/",
    "tests/docs/test_guides.py::test_a_reader_types_the_guide[pipeline",
    "tests/docs/test_guides.py::test_a_reader_types_the_guide[lake]",
    "tests/docs/test_guides.py::test_a_reader_types_the_guide[postgres]",
    "tests/docs/test_guides.py::test_a_reader_types_the_guide[spark]",
    "tests/chaos/test_chaos.py",
    "tests/docs/test_site.py",
    "tests/fuzz/test_fuzz.py",
    "tests/server/test_array_floods.py",
    "tests/storage/test_campaign.py",
)
"""Tests of half a minute and more, or where they live."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return SparkOnce(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_runtest_setup():
    for process in list(launched):
        if process.process is None:
            del launched[process]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        for process in list(launched):
            if story := process.story():
                report.sections.append((f"said by {process.folder.name}", story))
    return report


@pytest.fixture(scope="session")
def klamm(tmp_path_factory):
    with KlammProcess(tmp_path_factory.mktemp("klamm")) as process:
        yield process
        process.stop()


@pytest.fixture
def wire(klamm):
    with Wire(klamm.port) as connection:
        yield connection
