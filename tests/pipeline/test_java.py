"""Without Java, one sentence says what to install, before anything else is tried."""

import pytest

import klamm.pipeline
from klamm.model.errors import ConfigError
from klamm.pipeline.java import find_java, parse_version
from klamm.pipeline.progress import ProgressLines


def java(folder, words, code=0):
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{words}' >&2\nexit {code}\n")
    path.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_412"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("gibberish", None),
    ],
)
def test_versions(words, expected):
    assert parse_version(words) == expected


def test_the_java_of_java_home_is_used(tmp_path, monkeypatch):
    home = java(tmp_path, 'openjdk version "21.0.1"')
    monkeypatch.setenv("JAVA_HOME", home)
    assert find_java() == f"{home}/bin/java"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [('openjdk version "11.0.2"', 0, "is version 11"), ("broken", 1, "does not run"), ("gibberish", 0, "unknown")],
)
def test_an_old_or_broken_java_is_not_enough(own_session, tmp_path, monkeypatch, words, code, message):
    monkeypatch.setenv("JAVA_HOME", java(tmp_path, words, code))
    with pytest.raises(ConfigError, match=r"Spark needs Java 17 or newer.*install one") as refusal:
        klamm.pipeline.session("never")
    assert message in str(refusal.value)


def test_no_java_at_all(own_session, tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no java on the path: install one"):
        klamm.pipeline.session("never")


def test_public_names():
    assert {"DataLoss", "SinkError", "from_registry", "register", "session"} <= set(klamm.pipeline.__all__)
    for name in klamm.pipeline.__all__:
        for _ in range(2):  # a module of the same name must not take its place
            assert callable(getattr(klamm.pipeline, name))


class Event:
    """What Spark tells a listener."""

    def __init__(self, **fields):
        self.__dict__.update(fields)


def test_a_line_per_batch_that_did_something(capsys):
    lines = ProgressLines()
    lines.onQueryStarted(Event(id="1", name="orders"))
    for rows in (0, 1500):
        progress = Event(id="1", name="orders", batchId=4, numInputRows=rows, durationMs={"triggerExecution": 500})
        lines.onQueryProgress(Event(progress=progress))
    lines.onQueryTerminated(Event(id="1", exception=None))
    assert capsys.readouterr().err.splitlines() == [
        "orders: started",
        "orders: batch 4, 1,500 rows in 0.5 s (3,000 rows/s)",
        "orders: ended",
    ]
