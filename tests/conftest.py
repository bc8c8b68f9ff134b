"""One node for all tests of a worker that need nothing special of it; each uses topics of its own.

A test that fails shows what the processes it started have said.
"""

import contextlib
import functools
import gc
import logging
import os
import re
import signal
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from harness import KlammProcess, Wire
from harness.process import launched
from harness.rewriting import share_rewriting

# The duration of an example depends on the load of the machine.
settings.register_profile("klamm", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("klamm")

# A console for each node that a test starts would be a process more, and a line more that it prints.
os.environ["KLAMM_CONSOLE"] = "0"

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


@pytest.fixture(autouse=True)
def loggers_as_before():
    """Commands that a test runs in its own process configure logging; their handlers would print into later tests."""
    loggers = [logging.getLogger(name) for name in ("klamm", "klamm.pipeline", "klamm.client")]
    before = [(logger, logger.level, logger.propagate, list(logger.handlers)) for logger in loggers]
    yield
    for logger, level, propagate, handlers in before:
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers[:] = handlers


class SparkTwice(LoadScopeScheduling):
    """Tests go one by one to whichever worker is free; those that need Spark go to two, each of which starts it once.

    Tests of a file with fixtures of their module stay together: each worker that ran some of them would start the
    module's nodes once more. Spark goes first, then single tests that are long, then files, so that the last tests are
    short ones. The plugin's own groups do nothing under this pytest: it writes them into an attribute that is no longer
    read.
    """

    def _split_scope(self, nodeid):
        path = nodeid.partition("::")[0]
        if needs_spark(path):
            # Halves of about the same time; with one group its worker would be the last by far.
            return SPARK_SCOPES[Path(path).name >= "test_o"]
        return path if shares_fixtures(path) else nodeid

    def _assign_work_unit(self, node):
        if not any(self.assigned_work.values()):  # the first of all
            files = [scope for scope, tests in self.workqueue.items() if len(tests) > 1]
            long = [scope for scope in self.workqueue if scope.startswith(LONG)]
            for scope in [*files, *long, *SPARK_SCOPES]:
                if scope in self.workqueue:
                    self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)


@functools.cache
def shares_fixtures(path):
    """Whether a file's tests share what takes long: fixtures of the module, or what is computed once per process."""
    file = Path(__file__).parents[1] / path
    fixtures = file.with_name("conftest.py")
    texts = [text.read_text() for text in (file, fixtures) if text.exists()]
    return any('scope="module"' in text for text in texts) or path.startswith(TIDY)


@functools.cache
def needs_spark(path):
    """Whether a file's tests use the Spark session; many of the SQL's tests need none, and run on any worker."""
    if not path.startswith(SPARK):
        return False
    text = (Path(__file__).parents[1] / path).read_text()
    return bool(re.search(r"[(, ]spark[,)]|\"spark\"|subprocess", text)) or "examples" in path


SPARK = ("tests/pipeline/spark/", "tests/pipeline/sql/", "tests/examples/test_demo.py")
"""Where tests that need a Spark session live, or start one that should not run beside it."""
SPARK_SCOPES = ("spark: a to n", "spark: o to z")
TIDY = "tests/tidy/"
"""Every worker that runs one of these parses all files."""
LONG = (
    "tests/pipeline/standalone/",
    "tests/simulation/test_simulation.py::test_seeds",
    "tests/simulation/test_simulation.py::test_a_failing_run_becomes_a_short_story",
    "tests/cluster/test_failures.py",
    "tests/docs/test_guides.py::test_a_reader_types_the_guide[pipeline",
    "tests/docs/test_guides.py::test_a_reader_types_the_guide[lake]",
    "tests/docs/test_guides.py::test_a_reader_types_the_guide[postgres]",
    "tests/docs/test_guides.py::test_a_reader_types_the_guide[README]",
    "tests/docs/test_guides.py::test_a_reader_types_the_guide[tables]",
    "tests/chaos/test_chaos.py",
    "tests/docs/test_site.py",
    "tests/fuzz/test_fuzz.py",
    "tests/server/test_array_floods.py",
    "tests/storage/test_campaign.py",
)
"""Tests of half a minute and more, or where they live."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return SparkTwice(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_sessionstart(session):
    config = session.config
    if hasattr(config, "workerinput") and config.args_source is config.ArgsSource.TESTPATHS:
        files = sorted(Path(__file__).parent.rglob("test_*.py"))
        worker = int(config.workerinput["workerid"].removeprefix("gw"))
        share_rewriting(config, files, worker, config.workerinput["workercount"])


def pytest_collection_finish():
    # Half a million objects of pytest's stay until the end; each full collection would look at all of them, and the
    # simulation makes one after every run.
    gc.collect()
    gc.freeze()


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
                report.sections.append((f"log of {process.folder.name}", story))
    return report


@pytest.fixture(scope="session")
def klamm(tmp_path_factory):
    # Many tests write records of the year 1970; the node lives for minutes, and retention would delete them at times.
    overrides = {"log.retention.check.interval.ms": "86400000"}
    with KlammProcess(tmp_path_factory.mktemp("klamm"), overrides=overrides) as process:
        yield process
        process.stop()


@pytest.fixture
def wire(klamm):
    with Wire(klamm.port) as connection:
        yield connection
