"""What a change of a file means for the state there is."""

import fcntl
import os

import pytest

from klamm.model.errors import ConfigError
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.core.identity import QueryIdentity, compare
from klamm.pipeline.sql.core.query_progress import summarize_progress
from klamm.pipeline.sql.runner import renew_identity
from klamm.pipeline.sql.state_folders import find_home, known_homes
from klamm.pipeline.sql.status import Home, error_line, error_summary

TEXT = """
CREATE STREAM payments (account STRING, amount INT, at TIMESTAMP) WITH (timestamp = 'at', watermark = '10 seconds');
CREATE VIEW big AS SELECT * FROM payments WHERE amount > 900;
CREATE STREAM suspicious AS SELECT account, amount FROM big;
CREATE TABLE balances AS SELECT account, sum(amount) AS balance FROM payments GROUP BY account;
CREATE TABLE rich WITH (key = 'account') AS SELECT account FROM balances WHERE balance > 9;
"""


def verdicts(before, after):
    stored = QueryIdentity("id", "bank", {}, {}).renew(compile_text(before))
    stored = QueryIdentity.decode(stored.encode(), "here")
    return {change.name: (change.verdict, change.reason) for change in compare(stored, compile_text(after))}


def change(old, new):
    assert old in TEXT
    return {name: verdict for name, verdict in verdicts(TEXT, TEXT.replace(old, new)).items() if verdict[0] != "same"}


def test_the_same_words_are_the_same():
    assert {verdict for verdict, _ in verdicts(TEXT, TEXT.replace("SELECT", "select\n\t -- x\n")).values()} == {"same"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("> 900", "> 800", {"suspicious": "continues"}),
        ("sum(amount)", "count(*)", {"balances": "rebuild"}),
        ("balance > 9", "balance > 8", {"rich": "continues"}),
        ("'10 seconds'", "'20 seconds'", {"suspicious": "continues", "balances": "rebuild"}),
        ("amount INT", "amount BIGINT", {"suspicious": "continues", "balances": "continues"}),
        ("amount INT", "amount DOUBLE", {"suspicious": "continues", "balances": "rebuild"}),
        ("account STRING", "account BINARY", {"suspicious": "continues", "balances": "rebuild"}),
        ("STREAM suspicious AS", "STREAM suspicious WITH (topic = 'odd') AS", {"suspicious": "rebuild"}),
        ("STREAM suspicious AS", "STREAM suspicious WITH (trigger = '1 minute') AS", {}),
        ("STREAM suspicious AS", "STREAM suspicious WITH (format = 'csv') AS", {"suspicious": "incompatible"}),
        ("STREAM suspicious AS", "STREAM suspicious WITH (key = 'account') AS", {"suspicious": "incompatible"}),
        ("STREAM suspicious AS", "TABLE suspicious WITH (key = 'account') AS", {"suspicious": "incompatible"}),
        ("STREAM suspicious AS", "STREAM odd AS", {"odd": "new", "suspicious": "removed"}),
        ("payments (", "payments2 (a INT); CREATE STREAM payments (", {}),
    ],
)
def test_changes(old, new, expected):
    assert {name: verdict for name, (verdict, _) in change(old, new).items()} == expected


def test_another_input_needs_a_rebuild_and_says_which():
    more = TEXT + "CREATE STREAM other (account STRING, amount INT);"
    changes = verdicts(more, more.replace("FROM big;", "FROM big UNION ALL SELECT * FROM other;"))
    assert changes["suspicious"] == ("rebuild", "now reads other")


def test_a_pipeline_is_held_to_its_folder(tmp_path):
    place = Home(str(tmp_path / "bank"))
    first = renew_identity(compile_text(TEXT), place)
    place.keep(first)
    assert renew_identity(compile_text(TEXT), place) == first
    changed = compile_text(TEXT.replace("sum(amount)", "count(*)"))
    with pytest.raises(ConfigError, match="--rebuild balances"):
        renew_identity(changed, place)
    rebuilt = renew_identity(changed, place, ["balances"])
    assert (rebuilt.id, rebuilt.generations["balances"], rebuilt.generations["rich"]) == (first.id, 1, 0)
    with pytest.raises(ConfigError, match="no query nothing"):
        renew_identity(changed, place, ["nothing"])
    with pytest.raises(ConfigError, match="another name or topic"):
        renew_identity(
            compile_text(TEXT.replace("STREAM suspicious AS", "STREAM suspicious WITH (format = 'csv') AS")), place
        )


def test_a_folder_has_one_process_and_tells_others(tmp_path):
    place = Home(str(tmp_path / "bank"))
    place.keep(QueryIdentity("id", "bank", {}, {}))
    assert place.status()["state"] == "never ran"
    with place.hold_lock():
        place.write_status({"state": "running", "queries": {}})
        assert place.status()["state"] == "running"
        with pytest.raises(ConfigError, match="runs already"), place.hold_lock():
            pass
    assert place.status()["state"] == "gone"
    place.request_stop()
    assert place.stop_requested()
    place.clear_stop_request()
    place.clear_stop_request()
    assert not place.stop_requested()
    assert [known.name for known in known_homes(str(tmp_path))] == ["bank"]
    with pytest.raises(ConfigError, match="did you mean bank"):
        find_home("bnk", str(tmp_path))


def test_a_status_command_does_not_block_a_start(tmp_path, monkeypatch):
    place = Home(str(tmp_path / "bank"))
    assert not place.running()
    looking = os.open(tmp_path / "bank" / "lock", os.O_RDWR)
    fcntl.flock(looking, fcntl.LOCK_SH)
    assert not place.running(), "two commands check at the same time"
    monkeypatch.setattr("klamm.pipeline.sql.status.time.sleep", lambda _: fcntl.flock(looking, fcntl.LOCK_UN))
    with place.hold_lock():
        assert place.running()
    os.close(looking)


def test_an_identity_of_another_kind_is_refused():
    for text in ("{}", "[]", "no", '{"version": 9}'):
        with pytest.raises(ConfigError):
            QueryIdentity.decode(text, "here")


def test_facts_of_a_batch():
    progress = {
        "batchId": 3,
        "numInputRows": 7,
        "processedRowsPerSecond": 3.54,
        "durationMs": {"triggerExecution": 120},
        "eventTime": {"max": "2026-01-01T00:00:10.000Z", "watermark": "2026-01-01T00:00:00.000Z"},
        "stateOperators": [{"numRowsTotal": 2, "memoryUsedBytes": 10}, {"numRowsTotal": 1, "memoryUsedBytes": 5}],
        "sources": [
            {"endOffset": '{"t": {"0": 5, "1": 1}}', "latestOffset": {"t": {"0": 9, "1": 1}, "@ids": {"t": "x"}}}
        ],
    }
    assert summarize_progress(progress, 1_767_225_611_000) == {
        "batch": 3,
        "rows": 7,
        "rows_per_s": 3.5,
        "lag_records": 4,
        "lag_ms": 1000,
        "watermark": "2026-01-01T00:00:00.000Z",
        "watermark_ms": 1_767_225_600_000,
        "state_rows": 3,
        "state_bytes": 15,
        "batch_ms": 120,
    }
    assert summarize_progress({}, 0)["lag_records"] is None


def test_errors_are_told_without_plans_and_traces():
    assert error_summary(RuntimeError("away.\n=== Streaming Query ===\nIdentifier: x")) == "away."
    assert error_summary("no\n\tat org.x\n\tat org.y") == "no"
    assert len(error_summary("x" * 10_000)) < 2001
    frames = "".join(f'  File "/lib/module{number}.py", line 7, in call\n    call()\n' for number in range(200))
    trace = f"An exception was raised. Return Message: Traceback (most recent call last):\n{frames}OSError: disk full"
    assert len(error_summary(trace)) < 2001
    assert error_line(error_summary(trace)) == "OSError: disk full"
