"""A pytest plugin: with `--record`, how each test of a program ended goes into results.json and the table."""

import datetime as dt
import inspect
from collections.abc import Generator
from typing import Any

import pytest

from ecosystem.results import Check, Results, write_page


class Recorder:
    """Collects the outcome of every test marked `program(name, version)`; the first paragraph of the docstring says
    what was done."""

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.tests: set[str] = set()
        self.failed: set[str] = set()
        self.skipped: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.tests = {test_name(item) for item in items}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        marker = item.get_closest_marker("program")
        if marker is not None:
            self._observe(item, marker.args[0], marker.args[1], report)
        return report

    def pytest_sessionfinish(self) -> None:
        if not self.tests:  # the collection itself failed
            return
        results = Results.load()
        results.forget_all_but(self.tests)
        results.save()
        write_page()

    def _observe(self, item: pytest.Item, program: str, version: str, report: pytest.TestReport) -> None:
        name = test_name(item)
        if report.failed:
            self.failed.add(name)
        if report.skipped:
            self.skipped.add(name)
        if report.when != "teardown" or name in self.skipped:  # pytest reports the teardown of a skipped test as passed
            return
        result = "failed" if name in self.failed else "passed"
        today = dt.datetime.now(dt.UTC).date().isoformat()
        # Kept test by test: a run that is cut keeps what it came to, and a run of the other broker may go on beside it.
        results = Results.load()
        results.record(program, self.broker, version, name, Check(describe(item), result, today))
        results.save()


def test_name(item: pytest.Item) -> str:
    """The file and the name of a test: the same wherever the tree lies and whichever broker is tested."""
    return f"{item.path.name}::{item.name}"


def describe(item: Any) -> str:
    """What a test did: the first paragraph of its docstring on one line, with the parameters of a parametrized one."""
    text = inspect.getdoc(item.function)
    assert text, f"{item.name} has no docstring: the table would not say what was done"
    what = " ".join(text.split("\n\n")[0].split()).removesuffix(".")
    parameters = item.name.partition("[")[2].removesuffix("]")
    return (f"{what} ({parameters})" if parameters else what).replace("|", "\\|")
