"""Which identity a run continues: of its folder, of the cluster's record, or none."""

from dataclasses import replace

import pytest

from klamm.model.errors import ConfigError
from klamm.pipeline.core.batch_ledger import LedgerFault, SinkBatch
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.adoption import _prepare
from klamm.pipeline.sql.core.identity import QueryIdentity
from klamm.pipeline.sql.core.pipeline_record import (
    PipelineLease,
    PipelineRecord,
    choose_identity,
    find_renamed,
    output_places,
    shared_queries,
)
from klamm.pipeline.sql.query_ledger import QueryLedger

TEXT = """
CREATE STREAM orders (id INT) WITH (topic = 'orders');
CREATE STREAM copies WITH (topic = 'copies') AS SELECT id FROM orders;
CREATE STREAM others WITH (topic = 'others') AS SELECT id FROM orders;
"""
PIPELINE = compile_text(TEXT, "shop.sql")
STORED = QueryIdentity("one", "shop", {}, {}).renew(PIPELINE)
RECORD = PipelineRecord(STORED, "host", "/home")


def choose(stored, record=RECORD, pipeline=PIPELINE, repaired=(), name="shop", has_run=True):
    records = {} if record is None else {record.name: record}
    outputs = output_places(pipeline, "host", "/work")
    place = "here:/folder"
    return choose_identity(pipeline, name, place, stored, records, frozenset(repaired), outputs, has_run=has_run)


def renamed(text, record=RECORD):
    pipeline = compile_text(text, "store.sql")
    return find_renamed({record.name: record}, "store", pipeline, output_places(pipeline, "host", "/work"))


def test_a_record_comes_back_as_it_was():
    assert PipelineRecord.decode(RECORD.encode(), "t") == RECORD
    with pytest.raises(ConfigError, match="no pipeline"):
        PipelineRecord.decode(b"{}", "t")


def test_a_folder_with_the_recorded_identity_continues():
    assert choose(STORED) == STORED
    assert choose(STORED, None) == STORED
    assert choose(None, None) is None


def test_a_pipeline_of_the_same_name_with_other_outputs_is_another_one():
    other = compile_text(TEXT.replace("'copies'", "'c2'").replace("'others'", "'o2'"), "shop.sql")
    assert shared_queries(RECORD, other) == []
    assert choose(None, pipeline=other) is None


def test_a_removed_folder_is_refused_unless_every_query_is_repaired():
    with pytest.raises(ConfigError, match="it has run in host:/home, and here:/folder has no checkpoints") as refusal:
        choose(None, repaired=["copies"])
    assert "--adopt others" in str(refusal.value)
    assert "--adopt copies" not in str(refusal.value)
    assert choose(None, repaired=["copies", "others"]) == STORED


def test_two_folders_of_one_name_are_refused_with_both_places():
    with pytest.raises(ConfigError, match=r"in host:/home, which writes to the same .* this one is in here:/folder"):
        choose(replace(STORED, id="two"), repaired=["copies", "others"])


def test_a_copy_from_before_a_rebuild_is_refused():
    rebuilt = replace(RECORD, identity=STORED.with_generation("copies", 2))
    with pytest.raises(ConfigError, match="older than its last rebuild") as refusal:
        choose(STORED, rebuilt)
    assert "--adopt copies" in str(refusal.value)
    assert choose(STORED, rebuilt, repaired=["copies"]).generations == {"copies": 2, "others": 0}


def test_a_lease_blocks_other_folders_while_it_is_fresh():
    lease = PipelineLease("run", "host", 7, "/home", 100_000)
    assert PipelineLease.decode(lease.encode()) == lease
    assert PipelineLease.decode("decided 7") is None
    assert lease.blocks("host", "/copy", 110_000)
    assert lease.blocks("elsewhere", "/home", 110_000)
    assert not lease.blocks("host", "/home", 110_000)  # the same folder after kill -9
    assert not lease.blocks("host", "/copy", 130_000)
    assert not replace(lease, heartbeat_ms=0).blocks("host", "/copy", 110_000)


def test_dead_letters_have_a_generation_of_their_own_once_they_are_rebuilt():
    name = "orders.dead_letters"
    assert STORED.generation("orders", name) == 0
    assert STORED.renew(PIPELINE, frozenset({name})).generation("orders", name) == 1


def test_a_renamed_file_is_found_by_its_outputs():
    assert renamed(TEXT) == RECORD
    assert renamed(TEXT + "CREATE STREAM more AS SELECT id FROM orders;") == RECORD
    # One of two queries is not enough: the other one still belongs to the pipeline of that name.
    assert renamed(TEXT.replace("'others'", "'o2'")) is None
    assert renamed(TEXT, replace(RECORD, identity=replace(STORED, name="store"))) is None
    # A folder that the file names has run under the older name.
    assert choose(STORED, name="store") == replace(STORED, name="store")
    with pytest.raises(
        ConfigError, match=r"has run as shop in host:/home, and here:/folder is a new .*'shop'"
    ) as refusal:
        choose(None, name="store")
    assert "--adopt others" in str(refusal.value)
    assert choose(None, name="store", repaired=["copies", "others"]) == replace(STORED, name="store")


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("'others'", "'o2'"),
        TEXT.replace("'others'", "'o2'").replace("STREAM copies", "STREAM doubles"),
        TEXT.replace("'others'", "'o2'").replace("SELECT id", "SELECT id + 1"),
    ],
)
def test_rows_that_another_pipeline_writes_are_not_written_twice(text):
    """The same query, the same statement under another name, and the same query with another statement."""
    other = compile_text(text, "store.sql")
    for stored in (None, QueryIdentity("two", "store", {}, {})):
        with pytest.raises(
            ConfigError, match=r"writes to topic copies, as the pipeline shop in host:/home does: .*twice"
        ):
            choose(stored, pipeline=other, name="store")
    # A pipeline of an older version has written there before: it goes on.
    both = QueryIdentity("two", "store", {}, {}).renew(other)
    assert choose(both, pipeline=other, name="store") == both
    # A backfill has stored the identity, and no query has run.
    with pytest.raises(ConfigError, match="as the pipeline shop in host:/home does"):
        choose(both, pipeline=other, name="store", has_run=False)


def test_another_statement_may_add_rows_to_a_topic():
    merged = compile_text(TEXT.replace("copies WITH", "more WITH").replace("SELECT id", "SELECT id + 1"), "store.sql")
    merged = compile_text(merged.source.text.replace("'others'", "'o2'"), "store.sql")
    assert choose(None, pipeline=merged, name="store") is None


LAKE = """
CREATE STREAM orders (id INT) WITH (topic = 'orders');
CREATE SINK lake WITH (format = 'parquet', path = '{path}') AS SELECT id FROM orders;
"""


def test_a_relative_path_is_a_folder_of_the_machine_and_of_the_run():
    def places(path, host="host", folder="/work"):
        return output_places(compile_text(LAKE.format(path=path), "lake.sql"), host, folder)["lake"]

    assert places("out") == places("file:///work/out") == places("/work/x/../out") == "host:/work/out"
    assert places("out", folder="/other") != places("out") != places("out", host="second")
    assert places("s3a://bucket/out") == "s3a://bucket/out"
    stored = QueryIdentity("one", "lake", {}, {}).renew(compile_text(LAKE.format(path="out"), "lake.sql"))
    assert PipelineRecord(stored, "host", "/home").places == {}
    absolute = QueryIdentity("one", "lake", {}, {}).renew(compile_text(LAKE.format(path="/a/out"), "lake.sql"))
    assert PipelineRecord(absolute, "host", "/home").places == {"lake": "host:/a/out"}


@pytest.mark.parametrize(
    ("statement", "effect"),
    [
        (
            "STREAM firsts WITH (topic = 'firsts')",
            "writes all of its rows again to topic firsts, .* with another topic",
        ),
        ("SINK firsts WITH (format = 'parquet', path = 'lake')", "replaces all of its rows"),
    ],
)
def test_state_that_is_lost_cannot_be_adopted_and_the_refusal_says_what_a_rebuild_does(tmp_path, statement, effect):
    text = f"""CREATE STREAM orders (id INT, at TIMESTAMP)
      WITH (topic = 'orders', timestamp = 'at', watermark = '1 hour', deduplicate = 'id');
    CREATE {statement} AS SELECT id FROM orders;"""
    pipeline = compile_text(text, "shop.sql")
    old, new = (QueryLedger("firsts", f"app.{number}", str(tmp_path / f"firsts.{number}")) for number in range(2))
    with pytest.raises(ConfigError, match=f"--rebuild firsts reads from the beginning and {effect}"):
        _prepare(pipeline, pipeline.node("firsts"), old, new, SinkBatch(3), LedgerFault.CHECKPOINT_SET_BACK)
