"""One Spark session for all tests that need one; starting it is the slow part, so one worker has it."""

import pytest

from klamm.pipeline import session, sessions, testing
from klamm.pipeline.sql.spark_jvm import active_session

HOMES = ("spark", "sql")


def pytest_collection_modifyitems(items):
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and item.path.parent.name not in HOMES:
            raise pytest.UsageError(f"{item.nodeid} needs Spark: it belongs into one of {', '.join(HOMES)}")


@pytest.fixture(autouse=True)
def no_other_session(request, monkeypatch):
    """A process has one session: a test that needs it has the fixture `spark`, and passes it on as `spark=`.

    A session that a pipeline starts by itself is the shared one under another name, and is stopped when the run ends.
    """

    def refuse(*_args, **_options):
        pytest.fail(f"{request.node.nodeid} runs a pipeline without the fixture spark, or without spark=")

    if "own_session" not in request.fixturenames:
        monkeypatch.setattr(sessions, "session", refuse)
    if "spark" not in request.fixturenames:
        monkeypatch.setattr(testing, "_session", refuse)


@pytest.fixture
def own_session():
    """For tests of `session` itself, which start none."""


@pytest.fixture(autouse=True)
def data_folder(tmp_path_factory, monkeypatch):
    """Pipelines of a test keep state in a folder of the test: on a shared cluster they may have the same names."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    running = session(
        "tests",
        master="local[2,3]",
        progress=False,
        config={
            "spark.ui.enabled": False,
            "spark.sql.shuffle.partitions": 2,
            "spark.driver.memory": "1g",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.log.level": "OFF",
            # Queries of a few rows: time goes into compiling, not into running what was compiled. Plans are garbage
            # soon: with a large young generation few collections copy them.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms1g -Xmn400m"
            " -XX:MetaspaceSize=256m",
            "spark.sql.codegen.wholeStage": False,
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.adaptive.enabled": False,
        },
    )
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def shared_session_active(request):
    """Begin every test in the shared session: parts of a batch that a test runs in its own thread leave another one."""
    if "spark" not in request.fixturenames:
        yield
        return
    with active_session(request.getfixturevalue("spark")):
        yield


@pytest.fixture
def patiently():
    """Call something that runs a streaming query, again if need be.

    Spark gives the Python process of a streaming source ten seconds to start, however busy the machine is, and then the
    query fails before it has begun; a query can be restarted.
    """

    def call(work, *args, **options):
        for left in range(4, -1, -1):
            try:
                return work(*args, **options)
            except Exception as error:
                if not left or "connect back" not in str(error):
                    raise
        raise AssertionError

    return call


@pytest.fixture
def servers(klamm_broker):
    return {"kafka.bootstrap.servers": klamm_broker.bootstrap}


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL for all tests of a process."""
    from pipeline.postgres.postgres_server import running_server

    with running_server() as server:
        yield server


@pytest.fixture
def postgres_database(postgres, klamm_name):
    """A database of its own."""
    with postgres.database(klamm_name("db").replace("-", "_").replace(".", "_").lower()) as database:
        yield database
