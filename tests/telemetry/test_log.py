"""One line per event, with the fields of the logger in front."""

import io
import logging
import re

import pytest

from klamm.telemetry import Level, capture_stdlib, configure, get_logger


@pytest.fixture(autouse=True)
def as_at_the_start():
    """A node in this process may have chosen another level for all."""
    configure()


@pytest.fixture
def lines():
    stream = io.StringIO()
    configure(Level.INFO, stream)
    yield lambda: stream.getvalue().splitlines()
    configure()


def without_time(line: str) -> str:
    match = re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (.*)", line)
    assert match
    return match.group(1)


def test_an_event_is_one_line_with_bound_fields_first(lines):
    log = get_logger("raft", node=1)
    log.info("leader elected", epoch=7, voters=3)
    assert [without_time(line) for line in lines()] == ["INFO raft leader elected node=1 epoch=7 voters=3"]


def test_bind_adds_fields_and_leaves_the_first_logger_alone(lines):
    log = get_logger("storage", node=1)
    log.bind(partition="orders-0").warning("slow flush", ms=1200)
    log.error("disk full")
    assert [without_time(line) for line in lines()] == [
        "WARNING storage slow flush node=1 partition=orders-0 ms=1200",
        "ERROR storage disk full node=1",
    ]


def test_values_that_would_break_the_line_are_quoted(lines):
    get_logger("net").info("refused", why='said "no"\nand left', empty="", path="a=b")
    assert without_time(lines()[0]) == r'INFO net refused why="said \"no\"\nand left" empty="" path="a=b"'


def test_a_level_that_is_off_writes_nothing(lines):
    log = get_logger("net")
    log.debug("request", api="Fetch")
    assert lines() == []
    assert not log.enabled(Level.DEBUG)
    assert log.enabled(Level.ERROR)


def test_debug_can_be_switched_on():
    stream = io.StringIO()
    configure(Level.DEBUG, stream)
    try:
        get_logger("net").debug("request", api="Fetch")
    finally:
        configure()
    assert stream.getvalue().endswith("DEBUG net request api=Fetch\n")


def test_an_unexpected_failure_brings_its_traceback(lines):
    try:
        {}["x"]
    except KeyError as error:
        get_logger("server").failure("handler failed", error, api="Fetch")
    first, *rest = lines()
    assert without_time(first).startswith("ERROR server handler failed api=Fetch error=")
    assert rest[0].startswith("Traceback")
    assert rest[-1] == "KeyError: 'x'"


def test_a_failure_does_not_log_the_text_that_could_not_be_encoded(lines):
    page = "password " * 10_000 + "\udc00"
    try:
        page.encode()
    except UnicodeEncodeError as error:
        get_logger("console").failure("request failed", error)
    first, *rest = lines()
    assert "UnicodeEncodeError" in first
    assert "utf-8" in first
    assert "position 90000" in first
    assert "surrogates not allowed" in first
    assert "password password" not in "".join([first, *rest])


def test_the_text_of_a_failure_is_bounded(lines):
    try:
        raise ValueError("x" * 100_000)
    except ValueError as error:
        get_logger("console").failure("request failed", error)
    first, *rest = lines()
    assert "ValueError" in first
    assert rest[0].startswith("Traceback")
    assert len("".join([first, *rest])) < 5000


def test_lines_go_to_standard_error(capsys):
    get_logger("server").info("hello")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("INFO server hello\n")


def test_a_closed_stream_silences_the_log_and_nothing_else():
    stream = io.StringIO()
    stream.close()
    configure(Level.INFO, stream)
    try:
        get_logger("server").info("hello")
        get_logger("server").info("hello")
    finally:
        configure()


@pytest.fixture
def _captured():
    capture_stdlib()
    capture_stdlib()


@pytest.mark.usefixtures("_captured")
def test_records_of_the_standard_library_are_lines_of_this_log(lines):
    log = logging.getLogger("klamm.client.cluster")
    log.warning("broker %d was not reached", 3)
    log.debug("below the level")
    try:
        {}["x"]
    except KeyError:
        log.exception("refresh failed")
    first, second, *rest = lines()
    assert without_time(first) == "WARNING client broker 3 was not reached"
    assert without_time(second) == "ERROR client refresh failed"
    assert rest[0].startswith("Traceback")
    assert rest[-1] == "KeyError: 'x'"


@pytest.mark.usefixtures("_captured")
def test_the_level_of_the_log_holds_for_captured_records():
    stream = io.StringIO()
    configure(Level.DEBUG, stream)
    logging.getLogger("klamm.pipeline").debug("batch planned")
    assert stream.getvalue().endswith("DEBUG pipeline batch planned\n")
