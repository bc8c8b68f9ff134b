"""Which identity a run continues: of its folder, of the cluster's record, or none."""

from dataclasses import replace

import pytest

from klamm.model.errors import ConfigError
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.core.identity import QueryIdentity
from klamm.pipeline.sql.core.pipeline_record import PipelineLease, PipelineRecord, choose_identity, shared_queries

TEXT = """
CREATE STREAM orders (id INT) WITH (topic = 'orders');
CREATE STREAM copies WITH (topic = 'copies') AS SELECT id FROM orders;
CREATE STREAM others WITH (topic = 'others') AS SELECT id FROM orders;
"""
PIPELINE = compile_text(TEXT, "shop.sql")
STORED = QueryIdentity("one", "shop", {}, {}).renew(PIPELINE)
RECORD = PipelineRecord(STORED, "host", "/home")


def choose(stored, record=RECORD, pipeline=PIPELINE, repaired=()):
    return choose_identity(pipeline, "shop", "here:/folder", stored, record, frozenset(repaired))


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
