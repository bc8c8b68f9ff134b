"""How results of programs are kept, dropped and shown; versions come from manifests."""

import pytest

from ecosystem import manifests
from ecosystem.results import Check, Results

POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <properties><one.version>1.2</one.version></properties>
  <dependencies>
    <dependency><groupId>g</groupId><artifactId>one</artifactId><version>${one.version}-a</version></dependency>
    <dependency><groupId>g</groupId><artifactId>two</artifactId><version>7</version></dependency>
  </dependencies>
</project>
"""


def check(result="passed", date="2026-01-01", what="Counts words"):
    return Check(what, result, date)


def test_a_row_for_each_program_and_broker_survives_the_file(tmp_path):
    results = Results([])
    results.record("Streams", "klamm", "1", "t.py::a", check())
    results.record("Streams", "kafka", "1", "t.py::a", check(date="2026-01-02"))
    results.record("Streams", "klamm", "1", "t.py::b", check("failed"))
    results.save(tmp_path / "results.json")
    again = Results.load(tmp_path / "results.json")
    assert again.rows == results.rows
    assert "| Streams | 1 | Counts words | passed | passed | 2026-01-01 |" in again.page()
    assert "| Streams | 1 | Counts words | failed | not run | 2026-01-01 |" in again.page()


def test_results_of_another_version_are_dropped():
    results = Results([])
    results.record("Streams", "klamm", "1", "t.py::a", check())
    results.record("Streams", "klamm", "2", "t.py::b", check())
    assert set(results.rows["Streams", "klamm"].checks) == {"t.py::b"}
    assert results.rows["Streams", "klamm"].version == "2"


def test_checks_without_a_test_are_dropped():
    results = Results([])
    results.record("Streams", "klamm", "1", "t.py::a", check())
    results.record("Flink", "klamm", "1", "t.py::b", check())
    results.forget_all_but({"t.py::a"})
    assert set(results.rows) == {("Streams", "klamm")}


def test_programs_that_cannot_be_had_are_named():
    """They were left out of the table, which then seemed to be complete."""
    reason = "not run: no package on the public registries"
    results = Results([])
    assert results.page().count(f"| {reason} | {reason} | |") == 2
    assert "| Karapace | none |" in results.page()
    results.record("kminion", "klamm", "2", "t.py::a", check())
    assert "| kminion | 2 | Counts words | passed | not run |" in results.page()
    assert results.page().count(f"| {reason} | {reason} | |") == 1


def test_versions_are_read_from_manifests(tmp_path):
    (tmp_path / "pom.xml").write_text(POM)
    (tmp_path / "go.mod").write_text(
        "module x\nrequire example.org/one v1.4.0\nrequire (\n\texample.org/two v0.2.1 // indirect\n)\n"
    )
    (tmp_path / "requirements.txt").write_text("one[extra]==1.0\nTwo==2.5 ; python_version > '3'\n")
    assert manifests.maven_version(tmp_path / "pom.xml", "one") == "1.2-a"
    assert manifests.maven_version(tmp_path / "pom.xml", "two") == "7"
    assert manifests.go_version(tmp_path / "go.mod", "example.org/one") == "1.4.0"
    assert manifests.go_version(tmp_path / "go.mod", "example.org/two") == "0.2.1"
    assert manifests.pip_version(tmp_path / "requirements.txt", "one") == "1.0"
    assert manifests.pip_version(tmp_path / "requirements.txt", "two") == "2.5"
    with pytest.raises(manifests.NotInManifest):
        manifests.maven_version(tmp_path / "pom.xml", "three")


INI = """\
[pytest]
asyncio_default_fixture_loop_scope = function
markers = program(name, version)
"""
OUTCOMES = """\
import pytest

@pytest.mark.program("Good", "1")
def test_good():
    '''Does
    well.

    More is not shown.'''

@pytest.mark.program("Bad", "2")
@pytest.mark.parametrize("size", [3])
def test_bad(size):
    '''Does badly.'''
    assert size == 4

@pytest.fixture
def broken():
    yield
    raise RuntimeError("the end of a fixture fails")

@pytest.mark.program("Late", "3")
def test_late(broken):
    '''Fails at its end.'''

@pytest.mark.program("Absent", "4")
@pytest.mark.skip(reason="the program is not there")
def test_absent():
    '''Does nothing.'''
"""


def test_the_recorder_keeps_how_tests_ended(tmp_path, monkeypatch, capsys):
    kept = tmp_path / "results.json"
    load, save = Results.load, Results.save
    monkeypatch.setattr("ecosystem.recorder.Results.load", lambda: load(kept))
    monkeypatch.setattr("ecosystem.recorder.Results.save", lambda results: save(results, kept))
    monkeypatch.setattr("ecosystem.recorder.write_page", lambda: None)
    from ecosystem.recorder import Recorder

    (tmp_path / "test_outcomes.py").write_text(OUTCOMES)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_default_fixture_loop_scope = function\nmarkers = program(name, version)\n"
    )
    options = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    code = pytest.main([str(tmp_path), *options], plugins=[Recorder("klamm")])
    assert code == pytest.ExitCode.TESTS_FAILED
    results = load(kept)
    ends = {name: (row.version, row.checks) for (name, _), row in results.rows.items()}
    assert {name: [one.result for one in checks.values()] for name, (_, checks) in ends.items()} == {
        "Good": ["passed"],
        "Bad": ["failed"],
        "Late": ["failed"],
    }
    assert ends["Good"][1]["test_outcomes.py::test_good"].what == "Does well"
    assert ends["Bad"][1]["test_outcomes.py::test_bad[3]"].what == "Does badly (3)"
