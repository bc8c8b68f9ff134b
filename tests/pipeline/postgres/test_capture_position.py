"""How a capture begins: by its position and by what PostgreSQL reports; what is lost is never passed over."""

from dataclasses import replace

import pytest

from klamm.model.errors import ConfigError
from klamm.pipeline.postgres.core.capture_position import (
    CANNOT_CONTINUE,
    SNAPSHOT,
    STREAMING,
    CaptureError,
    CapturePosition,
    CaptureStep,
    DatabaseState,
    SlotState,
    choose_step,
    default_slot,
    slot_name,
)

POSITION = CapturePosition(STREAMING, "klamm", lsn=500, reached=600, topic_id="t1", system="s1", batch=3)
DATABASE = DatabaseState("s1", "shop", 1_000, SlotState(450))


def choose(position=POSITION, database=DATABASE, topic_id="t1"):
    return choose_step(position, "klamm", "accounts", topic_id, database)


def test_a_first_start():
    assert choose(None, replace(DATABASE, slot=None)) is CaptureStep.SNAPSHOT


def test_a_start_after_a_snapshot_that_did_not_end():
    unfinished = CapturePosition(SNAPSHOT, "klamm", system="s1")
    assert choose(unfinished) is CaptureStep.SNAPSHOT_AGAIN
    assert choose(unfinished, replace(DATABASE, slot=None)) is CaptureStep.SNAPSHOT


@pytest.mark.parametrize("confirmed", [450, 500, 600])
def test_a_restart(confirmed):
    assert choose(database=replace(DATABASE, slot=SlotState(confirmed))) is CaptureStep.CONTINUE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position": None}, "no position of it; .* pg_drop_replication_slot"),
        ({"database": replace(DATABASE, system="s2")}, "another PostgreSQL"),
        ({"topic_id": "t2"}, "topic accounts was deleted and created again"),
        ({"database": replace(DATABASE, slot=None)}, "no replication slot klamm: .* after 0/1F4 are lost"),
        ({"database": replace(DATABASE, slot=SlotState(450, "lost"))}, "max_slot_wal_keep_size"),
        ({"database": replace(DATABASE, slot=SlotState(601))}, "something else reads the slot"),
        ({"database": replace(DATABASE, current_lsn=499)}, "was restored from a backup"),
    ],
)
def test_lost_changes_are_refused(change, message):
    with pytest.raises(CaptureError, match=message) as refused:
        choose(**change)
    assert CANNOT_CONTINUE in str(refused.value)


def test_positions_are_kept_as_json():
    assert CapturePosition.decode(POSITION.encode(), "topic") == POSITION
    with pytest.raises(ConfigError, match="version 2"):
        CapturePosition.decode(b'{"version": 2}', "topic")
    for damaged in (b"", b"[]", b'{"version": 1, "slot": "x"}', b'{"version": 1, "more": 1}'):
        with pytest.raises(ConfigError, match="no position of a capture"):
            CapturePosition.decode(damaged, "topic")


def test_names_of_slots():
    assert default_slot("0123456789abcdef", "Käufe.source") == "klamm_01234567_k_ufe_source"
    assert slot_name("klamm", 0) == "klamm"
    assert slot_name("klamm", 2) == "klamm_2"
    long = default_slot("0123456789abcdef", "n" * 100)
    assert len(slot_name(long, 1234)) <= 63
    assert slot_name(long, 1) != slot_name(long, 2)
